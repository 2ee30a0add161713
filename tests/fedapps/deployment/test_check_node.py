"""``check-node``: what it prints, which problems it finds, and that it leaves no files."""

import re
import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from fedapps.strategies import epsilon
from fedapps.tasks.lqr.world import write_world
from fedapps.tasks.text.sources import write_examples

from fedapps.app.server_app import initial_arrays
from fedapps.base.processes import free_port
from fedapps.base.report.numbers import format_bytes
from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.deployment import credentials
from fedapps.deployment.credentials import make_certificates, make_key_pair
from fedapps.deployment.supernode import check_options
from fedapps.launch.estimate import KEPT_VERSIONS

ROBOT = ["lqr", "--set", "collect-after=0"]


@pytest.fixture
def place(tmp_path):
    """A folder with a robot's data in ``data``, and nothing else."""
    (path,) = write_world(tmp_path / "data", 1, seed=1)
    assert path.parent == tmp_path / "data"
    return tmp_path


def checked(capsys, *arguments):
    """The exit status and the printed lines of a check."""
    status = main(["check-node", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out.splitlines()


@pytest.fixture
def check(place, capsys):
    """As :func:`checked`, of the robot's node with keys of the run."""

    def of(*options, data_dir=place / "data", state_dir=place / "state", **keys):
        given = [f"--set={key.replace('_', '-')}={value}" for key, value in keys.items()]
        return checked(capsys, *ROBOT, "--data-dir", data_dir, "--state-dir", state_dir, *given, *options)

    return of


def test_a_node_that_can_join_prints_its_requirements(place, check):
    before = sorted(place.rglob("*"))
    status, lines = check(methods="local,apfl")
    assert status == 0, lines
    assert lines[-1] == "this node can join"
    assert lines[0].startswith("read:   1 robots (robot-00.csv")
    del lines[0]
    assert lines[0].startswith("data:   node robot-00: ")
    assert "train examples" in lines[0]
    assert [line.partition(":")[0].strip() for line in lines[1:-1]] == ["device", "local", "apfl", "memory", "disk"]
    for line in lines[2:4]:
        assert "the first step took " in line
        assert " s; training messages per round: " in line
    assert sorted(place.rglob("*")) == before, "no files are left, not even the state folder"


@pytest.mark.parametrize(
    ("keys", "rules"),
    [
        ({"sampling": "poisson", "fraction_train": 0.0001}, []),
        ({"aggregation": "trimmed-mean"}, []),
        (
            {"secure_aggregation": "true", "dp": "distributed", "dp_noise": 2.0},
            ["--node-config=dp=distributed", "--node-config=dp-noise=2.0"],
        ),
    ],
    ids=["sampling", "aggregation", "distributed noise"],
)
def test_the_node_trains_in_the_check_also_where_a_round_needs_many(check, keys, rules):
    status, lines = check(*rules, methods="sfl", **keys)
    assert status == 0, lines
    assert any("the first step took " in line for line in lines)


def test_the_disk_holds_the_kept_versions_and_the_personal_model(check, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fedapps.deployment.check_node.format_bytes", lambda count: seen.append(count) or format_bytes(count)
    )
    check(methods="sfl")
    assert seen[-2] == 0, "FedAvg stores nothing on a node"
    check(methods="apfl")
    assert seen[-2] == 8 * 4, "a personalised model of eight float32 parameters"
    check(methods="local")
    assert seen[-2] % KEPT_VERSIONS == 0
    assert seen[-2] > KEPT_VERSIONS * 8 * 4, "every version has a header besides its parameters"


def test_the_models_that_a_node_keeps_need_room_and_have_a_place(place, check, monkeypatch):
    monkeypatch.setattr("fedapps.deployment.check_node.format_bytes", lambda count: f"{count} bytes")
    status, lines = check("--keep-model", methods="fedavg", name="first")
    assert status == 0, lines
    folder = place / "state" / "models" / "first" / "fedavg" / "robot-00"
    (size,) = [line.split()[3] for line in lines if line.endswith(f" bytes will be in {folder}")]
    assert f"disk:   a run needs up to {3 * int(size)} bytes in " in "\n".join(lines), "two, and the one being written"
    assert not (place / "state").exists()
    monkeypatch.setattr("fedapps.clients.kept_models.Path.symlink_to", refuse)
    status, lines = check("--keep-model", methods="fedavg")
    assert (status, lines[-1]) == (
        1, "- fedavg: keep-model: no model was kept: put --state-dir on a file system with symbolic links"
    )  # fmt: skip


def test_a_year_of_weekly_runs_takes_what_the_kept_runs_and_the_champions_take(check, monkeypatch):
    monkeypatch.setattr("fedapps.deployment.check_node.format_bytes", lambda count: f"{count} bytes")

    def numbers(*options, **keys):
        lines = check(*options, methods="local", **keys)[1]
        (run,) = [line for line in lines if "a run needs up to" in line]
        years = [line for line in lines if "a year of weekly runs takes up to" in line]
        return int(run.split()[6]), [[int(word) for word in line.split() if word.isdigit()] for line in years]

    one, none = numbers()
    assert none == []
    registry = {"registry": "champions", "name": "first"}
    models = numbers("--keep-model")[0] - one
    assert one > 0 < models
    assert numbers(**registry)[0] == one
    for keep, runs in ((4, 8), (1, 5), (0, 52), (100, 52)):
        _, ((year, counted, champions),) = numbers(**registry, keep_runs=keep)
        assert (year, counted) == (runs * one + champions, runs)
        assert champions == pytest.approx(models, rel=0.1)  # the name of the run is in the model


def refuse(*_, **__):
    raise PermissionError(1, "Operation not permitted")


def test_a_text_node_with_its_own_vocabulary_cannot_share_it(tmp_path, capsys):
    texts = [f"{word} {number} goals" for word in ("win", "loss") for number in range(8)]
    (tmp_path / "shop").mkdir()
    for name in ("train", "test"):
        write_examples(tmp_path / "shop" / f"{name}.jsonl", texts, [i % 2 for i in range(len(texts))])
    options = {
        "task": "text", "text.dataset": "mine", "text.classes": 2, "text.hidden": 3, "text.embedding-width": 4,
        "collect-after": 0, "methods": "fedvocab", "node-cpus": 1,
    }  # fmt: skip
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("".join(f'"{key}" = {value!r}\n' for key, value in options.items()))
    given = [recipe, "--data-dir", tmp_path / "shop", "--state-dir", tmp_path]
    status, lines = checked(capsys, *given)
    assert status == 0, lines
    assert lines[0].startswith(
        "read:   texts in the column text and labels in the column label; train: 16 from train.jsonl"
    )
    assert lines[1].startswith("data:   node shop: ")
    status, lines = checked(capsys, *given, "--set", "methods=fedavg")
    assert status == 1
    assert "- data: text.vocabulary: deployed nodes do not know" in "\n".join(lines)


def test_what_stays_private_is_printed_and_methods_that_share_it_are_problems(check):
    first, second, *_ = initial_arrays(parse({"task": "lqr", "collect-after": 0}))
    private = f"--private={first}, {second}"
    status, lines = check(private, methods="local")
    assert status == 0, lines
    assert f"private: {first}, {second} never leave this node" in lines
    status, lines = check(private, methods="local,sfl")
    assert status == 1
    assert lines[-1].startswith(
        f"- --private {first}, {second}: sfl shares {first}, {second}, so this node would refuse"
    )
    status, lines = check("--private=misspelt.*", methods="local")
    assert status == 1
    assert lines[-1].startswith("- --private = misspelt.*: no parameter of the model matches; it has ")


def test_the_privacy_rules_of_the_node_are_checked_with_its_budget(place, check):
    rules, keys = ["--node-config=dp=local", "--node-config=max-releases=4"], {"methods": "sfl,local", "rounds": 4}
    status, lines = check(*rules, **keys)
    assert status == 1
    assert lines[-1].startswith("- --node-config: the node config of this node demands more of the run: dp = 'none'")
    keys["dp"] = "local"
    status, lines = check(*rules, **keys)
    assert status == 0, lines
    (line,) = [line for line in lines if line.startswith("privacy: ")]
    assert line == (
        "privacy: 0 updates have left this node, epsilon 0; the run takes at most 4 more, epsilon "
        f"{epsilon(1.0, 4, 1e-5, sensitivity=2.0):.3g} at delta 1e-05"
    )
    assert not (place / "state" / "releases.jsonl").exists(), "nothing has left"
    status, lines = check(*rules, **keys | {"rounds": 5})
    assert lines[-1] == (
        "- --node-config: node config max-releases = 4: 0 updates have left this node, and 5 more would be too many"
    )
    status, lines = check(*rules, "--node-config=dp-nois=2.0", "--node-config=max-steps=-1", **keys)
    assert lines[-2:] == [
        "- --node-config dp-nois: no key of the node config; did you mean 'dp-noise'?",
        "- --node-config: node config max-steps = -1: must be a number above 0 and at most 1e+12, without quotes",
    ]


def test_the_parent_of_the_state_folder_is_noted(place, check):
    (place / "state").mkdir()
    assert not any("state folder" in line for line in check(methods="fedavg", state_dir=place)[1])
    (place / "state" / "releases.jsonl").write_text("")
    status, lines = check(methods="fedavg", state_dir=place)
    assert status == 0, lines
    (note,) = [line for line in lines if line.startswith("note: ")]
    assert note == (
        f"note:   {place / 'state'} has a releases.jsonl, so it is probably the node's state folder: give --state-dir "
        f"{place / 'state'}, or what has left this node before is not counted here"
    )
    assert not any("state folder" in line for line in check(methods="fedavg")[1])


def test_all_problems_are_reported_at_once(place, check):
    (place / "file").write_text("")
    (place / "empty").mkdir()
    status, lines = check(methods="cloud,sfl,apfl", data_dir=place / "empty", state_dir=place / "file" / "state")
    assert status == 1
    assert lines[1] == "this node cannot join: 3 problems"
    assert lines[2:4] == [
        "- methods: cloud trains on the pooled data of all nodes, which no deployed node has",
        f"- data: {place / 'empty'}: expected files robot-*.csv, .csv.gz or .csv.xz, found none",
    ]
    assert lines[4].startswith(f"- --state-dir {place / 'file' / 'state'}: cannot be written (")


def test_a_node_without_data_or_training_examples_cannot_join(place, check):
    status, lines = check(methods="sfl", data_dir=place / "none")
    assert status == 1
    assert f"- data: the node's data-dir = '{place / 'none'}': no such folder" in lines[-1]
    (path,) = (place / "data").iterdir()
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *(row for row in rows if "train" not in row)]) + "\n")
    status, lines = check(methods="sfl")
    assert status == 1
    assert lines[-1] == f"- data: {place / 'data'} has no training examples: the run would exclude this node"


def test_a_disk_that_is_too_small_is_a_problem(check, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    status, lines = check(methods="local")
    assert status == 1
    assert "but only 10 B are free: free some space or choose another disk" in lines[-1]


def test_a_failed_training_step_is_reported_with_its_reason(check, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("fedapps.tasks.lqr.task.LqrTask.loss", broken)
    status, lines = check(methods="sfl")
    assert status == 1
    assert any(line.startswith("- sfl: round 1: 0 usable replies") for line in lines)
    assert any("out of memory" in line for line in lines)


def test_a_missing_gpu_is_a_problem(check, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, lines = check(device="cuda")
    assert status == 1
    assert "- device = 'cuda', but torch finds no GPU on this node: use 'auto' or 'cpu'" in lines


def test_an_invalid_run_config_is_refused(place, capsys):
    assert main(["check-node", "lqr", "--data-dir", str(place / "data"), "--set", "rounds=0"]) == 2
    assert "rounds = 0: must be a whole number at least 1" in capsys.readouterr().err
    assert main(["check-node", "lqr", "--data-dir", str(place / "data"), "--node-config", "x"]) == 2
    assert "fedapps: --node-config 'x': write it as key=value" in capsys.readouterr().err


# What a SuperNode is given is checked before it starts.


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


def clock(days: int) -> type[datetime]:
    """A clock that is ``days`` ahead."""

    class Moved(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(days=days)

    return Moved


def test_expired_certificates_are_refused_and_one_that_lasts_is_enough(options: dict[str, str]) -> None:
    file = Path(options["--root-certificates"])
    with mock.patch.object(credentials, "datetime", clock(-400)):
        old = make_certificates(file.parent / "old", days=365).ca.read_bytes()
    new = file.read_bytes()
    file.write_bytes(old)
    day = (datetime.now(UTC) - timedelta(days=35)).strftime("%Y-%m-%d")
    renew = rf"--root-certificates {file}: expired on {day}; make new ones .*keys certificates NEW-FOLDER"
    with pytest.raises(ValueError, match=renew):
        check_options(words(options))
    file.write_bytes(old + new)
    check_options(words(options))


@pytest.mark.parametrize(("days", "warned"), [(58, True), (62, False)])
def test_the_last_days_of_a_certificate_are_announced(
    options: dict[str, str], days: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = make_certificates(Path(options["--root-certificates"]).parent / "new", days=days).ca
    check_options(words(options | {"--root-certificates": str(file)}))
    day = datetime.now(UTC) + timedelta(days=days)
    assert (f"{file}: expires on {day:%Y-%m-%d}, and then no node can connect" in caplog.text) == warned


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ('privat="embedding.*"', "private"),
        ("max_steps=10", "max-steps"),
        ("dp_noise=2.0", "dp-noise"),
        ("max-epsilons=8.0", "max-epsilon"),
        ('secag="required"', "secagg"),
        ('DP_NOISE="2.0"', "dp-noise"),
        ("dp.noise=2.0", "dp-noise"),
        ("epsilon=8.0", "max-epsilon"),
    ],
)
def test_a_misspelt_key_does_not_switch_a_rule_off(options: dict[str, str], key: str, meant: str) -> None:
    name = key.partition("=")[0].replace(".", r"\.")
    given = options | {"--node-config": f"{options['--node-config']} keep-model=true {key}"}
    with pytest.raises(ValueError, match=rf"--node-config: {name}: unknown; did you mean '{meant}'\? Correct the name"):
        check_options(words(given))


def test_all_misspelt_keys_are_named_at_once(options: dict[str, str]) -> None:
    given = options | {"--node-config": "dp_noise=2.0 secag=true"}
    with pytest.raises(ValueError, match=r"dp_noise: unknown; .*'dp-noise'\? secag: unknown; .*'secagg'\? Correct"):
        check_options(words(given))


def test_keys_of_other_apps_are_no_misspelt_ones(options: dict[str, str]) -> None:
    other = 'model="/maps/a.pt" map-dir="/maps" state-path="/s" max-speed=0.5 planner.max-steps=3 node-id=7 log-level=2'
    check_options(words(options | {"--node-config": f"{options['--node-config']} {other}"}))


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


NO_COMMAND = "no such command; give the path of a program"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("secagg-key=/none/car.key", "node config secagg-key = '/none/car.key': cannot be read (FileNotFoundError)"),
        ("accept-model=/none/a.sh --fast", f"node config accept-model: '/none/a.sh': {NO_COMMAND}"),
        ("eligible=/none/ready.sh", f"node config eligible: '/none/ready.sh': {NO_COMMAND}"),
    ],
)
def test_files_and_commands_of_the_node_config_must_exist(check, rule, said):
    status, lines = check("--node-config", rule)
    assert status == 1
    assert lines[-1] == f"- --node-config: {said}"
    with pytest.raises(ValueError, match=re.escape(said)):
        check_options(["--node-config", '{}="{}"'.format(*rule.split("=", 1))])
