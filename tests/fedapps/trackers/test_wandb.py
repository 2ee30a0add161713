"""The offline files of Weights & Biases hold the numbers of the run, each round once."""

import json
import struct

import pytest
from tracked_runs import SMALL, cut_and_resumed, expected

from fedapps.config.parsing import ConfigError, parse

wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'fedapps[wandb]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    given = SMALL | {"cache-dir": str(tmp_path_factory.mktemp("worlds")), "trackers": "wandb"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp("wandb")))
        return cut_and_resumed(given, tmp_path_factory.mktemp("runs"))


def records(path):
    """The records of a ``.wandb`` file: a log of LevelDB with 32 KiB blocks, whose entries are wandb's messages."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, []  # a header of seven bytes
    assert data.startswith(b":W&B")
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(b"".join(parts))
            parts = []


@pytest.fixture(scope="module")
def runs(folder):
    """The records of each method by their kind."""
    found = {}
    for path in (folder.path / "wandb").glob("offline-run-*/*.wandb"):
        kinds = {}
        for record in records(path):
            kind = record.WhichOneof("record_type")
            kinds.setdefault(kind, []).append(getattr(record, kind))
        (run,) = kinds["run"]
        assert run.display_name not in found, "a resumed run replaces its files"
        found[run.display_name] = kinds
    return found


def values(items):
    return {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in items}


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_every_number_of_every_round_is_there_once(folder, runs, method):
    history = [values(step.item) for step in runs[f"run/{method}"]["history"]]
    rounds = expected(folder.path, method)
    assert [step["_step"] for step in history] == list(rounds)
    for step, numbers in zip(history, rounds.values(), strict=True):
        assert {name: value for name, value in step.items() if not name.startswith("_")} == pytest.approx(numbers)


def test_config_final_metrics_and_report_are_there(folder, runs):
    assert runs.keys() == {"run/fedavg", "run/local"}
    for name, kinds in runs.items():
        method = name.removeprefix("run/")
        config = values(kinds["run"][0].config.update)
        assert (config["method"], config["lqr.horizon"], kinds["run"][0].run_group) == (method, 6, "run")
        summary = {}
        for update in kinds["summary"]:
            summary |= values(update.update)
        final = folder.summary()["methods"][method]["final"]
        assert summary["final/test.excess"] == pytest.approx(final["test.excess"])
        (artifact,) = kinds["artifact"]
        assert [entry.path for entry in artifact.manifest.contents] == ["report.html"]


def test_online_without_a_login_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ConfigError, match=r"trackers = 'wandb': wandb needs a login: `wandb login`"):
        parse(SMALL | {"trackers": "wandb", "wandb.mode": "online"})
