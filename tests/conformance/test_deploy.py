"""The files in deploy/ against what they are for: Flower's commands as installed, Docker's and systemd's formats.

No container and no service is started.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fedapps.clients.guard import Guard
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fedapps.cli.parser import command_parser

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = {"fedapps-superlink.service": "superlink.env.example", "fedapps-supernode@.service": "supernode.env.example"}
PARSERS = {"flower-superlink": _parse_args_run_superlink, "flower-supernode": _parse_args_run_supernode}
#: Of the Compose Specification, those that are used here.
TOP_KEYS = {"name", "services", "volumes"}
SERVICE_KEYS = {
    "build", "cap_drop", "command", "deploy", "healthcheck", "image", "init", "logging", "network_mode", "ports",
    "profiles", "read_only", "restart", "security_opt", "tmpfs", "user", "volumes",
}  # fmt: skip
HEALTH_KEYS = {"test", "interval", "timeout", "start_period", "retries"}
BIND_KEYS = {"type", "source", "target", "read_only", "bind"}


def options_of(words: list[str]) -> Any:
    """What Flower's own parser makes of a command; it ends the process for an option that it does not know."""
    if words[1:4] == ["-m", "fedapps", "supernode"]:
        _, others = command_parser().parse_known_args(words[3:])
        return PARSERS["flower-supernode"]().parse_args(others)
    return PARSERS[Path(words[0]).name]().parse_args(words[1:])


def variables(name: str) -> dict[str, str]:
    """Those of an environment file."""
    lines = (DEPLOY / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled(text: str, values: dict[str, str]) -> str:
    """With the values of ``${NAME}`` and ``${NAME:-default}``; every one must have one in the environment file."""
    return re.sub(r"\$\{(\w+)(?::-[^}]*)?\}", lambda found: values[found[1]], text)


# -- compose ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_has_no_key_that_docker_does_not_know(compose):
    assert {key for key in compose if not key.startswith("x-")} == TOP_KEYS
    assert compose["services"].keys() == {"superlink", "supernode", "web"}
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())
    assert gpu.keys() == {"services"}
    assert gpu["services"].keys() <= compose["services"].keys()
    for service in [*compose["services"].values(), *gpu["services"].values()]:
        assert service.keys() <= SERVICE_KEYS
        assert service.get("healthcheck", {}).keys() <= HEALTH_KEYS


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_a_service_keeps_its_state_in_a_volume_and_gets_the_rest_read_only(compose, name):
    service = compose["services"][name]
    named = [volume for volume in service["volumes"] if isinstance(volume, str)]
    assert named == [f"{name}:/var/lib/fedapps"]
    assert name in compose["volumes"]
    for bind in (volume for volume in service["volumes"] if not isinstance(volume, str)):
        assert bind.keys() == BIND_KEYS
        assert (bind["type"], bind["read_only"], bind["bind"]) == ("bind", True, {"create_host_path": False})
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_the_environment_files_say_what_compose_asks_for(compose, name):
    values = variables(f"{name}.env.example")
    text = yaml.safe_dump(compose["services"][name])
    assert filled(text, values)
    for default in re.findall(r"\$\{(\w+)\}", text):
        pytest.fail(f"{default} has no default, which compose wants for the other service too")


def test_flower_takes_the_commands_of_compose(compose):
    services = compose["services"]
    server = options_of([filled(word, variables("superlink.env.example")) for word in services["superlink"]["command"]])
    assert server.enable_supernode_auth
    assert not server.insecure
    assert not server.runtime_dependency_install
    assert (server.host, server.port, server.fleet_api_address) == ("0.0.0.0", 8000, None)
    ports = [filled(port, variables("superlink.env.example")) for port in services["superlink"]["ports"]]
    assert ports == ["9092:9092", "127.0.0.1:8000:8000"], "only nodes are let in from outside"
    assert Path(server.database).parent == Path("/var/lib/fedapps")
    mounted = {volume["target"] for volume in services["superlink"]["volumes"] if isinstance(volume, dict)}
    assert {str(Path(path).parent) for path in (server.ssl_ca_certfile, server.ssl_certfile, server.ssl_keyfile)} == (
        mounted
    )
    node = options_of([filled(word, variables("supernode.env.example")) for word in services["supernode"]["command"]])
    assert not node.insecure
    mounted = {volume["target"] for volume in services["supernode"]["volumes"] if isinstance(volume, dict)}
    assert {"/data", node.root_certificates, node.auth_supernode_private_key} == mounted
    expected = {"data-dir": "/data", "state-dir": "/var/lib/fedapps/state", "private": "", "keep-model": False}
    assert node_config(node.node_config) == expected


def node_config(text: str) -> dict[str, Any]:
    """As a SuperNode reads it."""
    from flwr.common.config import parse_config_args

    return parse_config_args([text])


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_health_checks_are_programs_that_compile(compose, name):
    kind, python, flag, program = compose["services"][name]["healthcheck"]["test"]
    assert (kind, python, flag) == ("CMD", "python", "-c")
    compile(program, name, "exec")
    asked = options_of([filled(word, variables(f"{name}.env.example")) for word in
                        compose["services"][name]["command"]])  # fmt: skip
    assert f"127.0.0.1:{asked.port}/health" in program


# -- the image -------------------------------------------------------------------------------------------------


def instructions() -> Iterator[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def test_the_image_holds_every_package_and_nothing_that_is_not_there():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    copied = []
    for sources in (shlex.split(rest)[:-1] for word, rest in instructions() if word == "COPY"):
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source.rstrip('/')}" in ignored, source
            copied.append(source.rstrip("/"))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= set(copied)
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_the_image_is_pinned_and_its_user_is_not_root(compose):
    found = list(instructions())
    assert found[0] == ("FROM", "python:3.11-slim-bookworm")
    assert compose["services"]["superlink"]["image"] == compose["services"]["supernode"]["image"]
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version
    assert compose["services"]["superlink"]["image"] == f"fedapps:{version[1]}-${{TRANSPORT:-http}}"
    assert compose["services"]["superlink"]["build"]["args"] == {"TRANSPORT": "${TRANSPORT:-http}"}
    words = [word for word, _ in found]
    assert dict(found)["USER"] == "fedapps"
    assert words.index("USER") > max(index for index, word in enumerate(words) if word in ("RUN", "COPY"))
    assert any("useradd" in rest and "10001" in rest for word, rest in found if word == "RUN")
    for rest in (rest for word, rest in found if word == "RUN" and "pip install" in rest):
        assert "--no-cache-dir" in rest
        assert re.search(r"--constraint constraints(-grpc)?\.txt ", rest) or "--no-deps" in rest


def test_the_web_server_before_nodes_that_use_http_shares_the_network_of_the_server(compose):
    """It reaches the SuperLink at the loopback, as with systemd, and the SuperLink's published port is its port."""
    web, superlink = compose["services"]["web"], compose["services"]["superlink"]
    site = (DEPLOY / "nginx.conf").read_text()
    assert web["network_mode"] == "service:superlink"
    assert "ports" not in web
    (listens,) = re.findall(r"listen (\d+) ssl;", site)
    assert [port.rpartition(":")[2] for port in superlink["ports"]] == [listens, "8000"]
    sources = {volume["target"]: volume["source"] for volume in web["volumes"]}
    assert sources["/etc/nginx/conf.d/default.conf"] == "./nginx.conf"
    certificates = sources.pop("/etc/fedapps/certificates")
    assert certificates == next(v["source"] for v in superlink["volumes"] if not isinstance(v, str))


# -- systemd ---------------------------------------------------------------------------------------------------


def lines_of(name: str, key: str) -> list[str]:
    """The values of a key of a unit, which may stand in it several times."""
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened_and_starts_again(name):
    expected = {
        "User": "fedapps", "Restart": "on-failure", "NoNewPrivileges": "yes", "ProtectSystem": "strict",
        "ProtectHome": "yes", "PrivateTmp": "yes", "CapabilityBoundingSet": "", "UMask": "0077",
        "StateDirectoryMode": "0700",
    }  # fmt: skip
    assert {key: lines_of(name, key) for key in expected} == {key: [value] for key, value in expected.items()}
    assert lines_of(name, "StateDirectory")[0].startswith("fedapps-")
    (environment,) = lines_of(name, "EnvironmentFile")
    assert environment.startswith("/etc/fedapps/")
    path = "PATH=/opt/fedapps/.venv/bin:"
    assert any(line.startswith(path) for line in lines_of(name, "Environment")), "Flower starts its others by name"


def started(name: str) -> Any:
    """The options that Flower gets of a unit with the example of its environment."""
    (command,) = lines_of(name, "ExecStart")
    given = command.replace("%S", "/var/lib").replace("%i", "car-7")
    return options_of([filled(word, variables(UNITS[name])) for word in shlex.split(given)])


def test_flower_takes_the_command_of_the_servers_unit():
    server = started("fedapps-superlink.service")
    assert server.enable_supernode_auth
    assert not server.insecure
    assert not server.runtime_dependency_install
    assert (server.host, server.port, server.fleet_api_address) == ("127.0.0.1", 8000, None)
    assert server.database == "/var/lib/fedapps-superlink/superlink.db"


def test_flower_takes_the_command_of_a_nodes_unit():
    node = started("fedapps-supernode@.service")
    assert not node.insecure
    assert (node.superlink, node.host, node.port) == ("fl.example.org:9092", "127.0.0.1", 9094)
    assert node_config(node.node_config) == {
        "data-dir": "/srv/fedapps/car-7",
        "state-dir": "/var/lib/fedapps-supernode/car-7/state",
        "private": "",
        "keep-model": False,
    }


def test_the_page_checks_a_node_with_the_state_folder_of_its_service(compose):
    commands = [lines_of("fedapps-supernode@.service", "ExecStart"), compose["services"]["supernode"]["command"]]
    folders = re.findall(r'state-dir="([^"]*)"', " ".join(word for command in commands for word in command))
    expected = [folder.replace("%S", "/var/lib").replace("%i", "car-7") for folder in folders]
    page = (DEPLOY / "README.md").read_text().replace("\\\n", " ")
    assert re.findall(r" check-node .* --state-dir (\S+)", page) == expected


def test_the_weekly_unit_runs_a_command_that_there_is_and_has_the_servers_rights():
    service, server = ((DEPLOY / f"fedapps-{name}.service").read_text() for name in ("generation", "superlink"))
    (command,) = lines_of("fedapps-generation.service", "ExecStart")
    arguments = command_parser().parse_args(shlex.split(command)[3:])
    assert (arguments.federation, str(arguments.recipe)) == ("fleet", "/etc/fedapps/weekly.toml")
    rights = server.partition("# Hardening")[2].partition("[Install]")[0]
    assert rights.strip() in service
    assert "\nRestart=on-failure\n" in service
    assert "OnCalendar=Sun 22:00" in (DEPLOY / "fedapps-generation.timer").read_text()


@pytest.mark.subprocesses
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path):
    installed = Path(sys.executable).parent
    units = [tmp_path / path.name for kind in ("service", "timer") for path in DEPLOY.glob(f"*.{kind}")]
    assert len(units) == 4
    for path in units:
        path.write_text((DEPLOY / path.name).read_text().replace("/opt/fedapps/.venv/bin", str(installed)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_several_patterns_of_private_parameters_reach_the_node(compose):
    values = variables("supernode.env.example") | {"PRIVATE": "embedding.*,encoder.*"}
    node = options_of([filled(word, values) for word in compose["services"]["supernode"]["command"]])
    assert Guard.of(node_config(node.node_config)).node == ("embedding.*", "encoder.*")
