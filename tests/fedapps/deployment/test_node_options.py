"""What a SuperNode is given is checked before it starts."""

import socket
from pathlib import Path

import pytest

from fedapps.base.processes import free_port
from fedapps.cli.commands import main
from fedapps.deployment.credentials import make_certificates, make_key_pair
from fedapps.deployment.supernode import check_options


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """The options of a node that can start."""
    (tmp_path / "data").mkdir()
    return {
        "--auth-supernode-private-key": str(make_key_pair(tmp_path, "car-7").private),
        "--root-certificates": str(make_certificates(tmp_path).ca),
        "--node-config": f'state-dir="{tmp_path}/state" data-dir="{tmp_path}/data"',
        "--port": str(free_port()),
    }


def words(options: dict[str, str], *, joined: bool = False) -> list[str]:
    pairs = [[f"{name}={value}"] if joined else [name, value] for name, value in options.items()]
    return ["--superlink", "fl.example.org:9092", *(word for pair in pairs for word in pair)]


@pytest.mark.parametrize("joined", [False, True])
def test_a_node_with_all_files_can_start(options: dict[str, str], joined: bool) -> None:
    check_options(words(options, joined=joined))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--auth-supernode-private-key", "{}/none.key", r"none\.key: no such file; create it .*keys node FOLDER NAME"),
        ("--auth-supernode-private-key", "{}/car-7.pub", r"car-7\.pub: is not the private key of a node; create it"),
        ("--auth-supernode-private-key", "{}/data", r"data: Is a directory; give it to the user"),
        ("--root-certificates", "{}/none.crt", r"none\.crt: no such file; copy ca\.crt from the server"),
        ("--root-certificates", "{}/superlink.key", r"superlink\.key: is not the certificate; copy ca\.crt"),
        ("--node-config", 'data-dir="{}/none"', r"data-dir='.*/none': no such folder"),
        ("--node-config", "data-dir={}/data", r"must be in double quotes, such as data-dir=\"/data/car-7\""),
        ("--node-config", 'data-dir="{}/data" dp="lokal"', r"node config dp = 'lokal': must be one of 'none', 'local'"),
        ("--node-config", 'data-dir="{}/data" dp=local', r"the correct format|invalid format"),
        ("--node-config", 'data-dir="{}/data" max-steps=0', r"node config max-steps = 0: must be a number above 0"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    options: dict[str, str], option: str, value: str, message: str, joined: bool, tmp_path: Path
) -> None:
    given = options | {option: value.format(tmp_path)}
    with pytest.raises(ValueError, match=f"{option}.*{message}"):
        check_options(words(given, joined=joined))


def test_a_port_in_use_is_named(options: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(ValueError, match=rf"--port {port}: .*in use.* each node on a machine needs a port"):
            check_options(words(options | {"--port": port}))


def test_the_command_says_it_in_one_line(options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    given = options | {"--auth-supernode-private-key": "/none/car-7.key"}
    assert main(["supernode", *words(given)]) == 2
    assert "--auth-supernode-private-key /none/car-7.key: no such file" in capsys.readouterr().err
