"""Trackers get every round once; none of them can stop a run or change it; a missing package is refused before it."""

import logging
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies
from small_runs import run_inline
from toys import same_bits
from tracked_runs import SMALL, cut_and_resumed, expected

from fedapps.base.options import option
from fedapps.config.parsing import ConfigError, parse, read
from fedapps.deployment.gate import steer
from fedapps.registry import TRACKERS
from fedapps.runs.champions import Registry
from fedapps.runs.tracking import plain, round_values
from fedapps.trackers import TrackedRecord, Tracker

RECORDS = {}


@dataclass(frozen=True)
class NotesOptions:
    fails_in: str = option("", "rounds in which the tracker fails once, or open")
    volume: int = option(1, "unused", minimum=1)


class Notes(Tracker):
    """A tracker that keeps its records in memory."""

    name = "notes"
    line = "notes in memory"
    Options = NotesOptions

    def open(self, run):
        if self.options.fails_in == "open":
            raise ConnectionError("no paper")
        found = RECORDS.setdefault((run.name, run.method), Record(run))
        found.failures = [int(text) for text in self.options.fails_in.split()]
        found.opened += 1
        return found


class Record(TrackedRecord):
    def __init__(self, run):
        self.run, self.rounds, self.final, self.reports, self.opened, self.closed = run, [], {}, [], 0, 0
        self.models = []

    @property
    def last_round(self):
        return max((number for number, _ in self.rounds), default=0)

    def log(self, server_round, values):
        if server_round in self.failures:
            self.failures.remove(server_round)
            raise OSError("the pencil broke")
        assert server_round > self.last_round
        self.rounds.append((server_round, dict(values)))

    def finish(self, final):
        self.final = dict(final)

    def add_report(self, report):
        self.reports.append(report)

    def register(self, registry, alias, server_round, model):
        self.models.append((registry, alias, server_round, model.name))

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def _notes(monkeypatch):
    """The tracker ``notes`` is known."""
    monkeypatch.setattr(TRACKERS, "own", {**TRACKERS.own, "notes": Notes})
    RECORDS.clear()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return SMALL | {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_every_round_final_metrics_and_the_report_are_recorded(small, tmp_path):
    folder = run_inline(small | {"trackers": "notes"}, tmp_path)
    assert list(RECORDS) == [("run", "fedavg"), ("run", "local")]
    for (_, method), record in RECORDS.items():
        assert dict(record.rounds) == expected(folder.path, method)
        assert [number for number, _ in record.rounds] == [1, 2, 3]
        final = folder.summary()["methods"][method]["final"]
        assert record.final == {name: float(value) for name, value in final.items()}
        assert (record.reports, record.opened, record.closed) == ([folder.path / "report.html"], 1, 1)
        assert (record.run.task, record.run.folder, record.run.config["rounds"]) == ("lqr", folder.path, 3)
    assert len({record.run.id for record in RECORDS.values()}) == 2


def test_the_values_of_a_round_have_names_that_every_service_takes():
    row = {
        "train": {"loss": 0.5}, "evaluate": {"test.loss": 0.25, "matrix": [1, 2]}, "refused": [{}, {}],
        "replies": 3, "bytes_down": 10, "bytes_up": 20, "seconds": 1.5,
    }  # fmt: skip
    nodes = [{"node": "car-7", "phase": "evaluate", "metrics": {"test.loss": 0.125, "per session": 2, "list": [1.0]}}]
    assert round_values(row, nodes) == {
        "train/loss": 0.5, "evaluate/test.loss": 0.25, "nodes/car-7/evaluate/test.loss": 0.125,
        f"nodes/car-7/evaluate/{plain('per session')}": 2.0, "round/refused": 2.0, "round/replies": 3.0,
        "round/bytes_down": 10.0, "round/bytes_up": 20.0, "round/seconds": 1.5,
    }  # fmt: skip
    assert plain("per session").startswith("per_session-")


@given(strategies.text(max_size=80), strategies.text(max_size=80))
def test_different_names_stay_different(one, other):
    assert set(plain(one)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert 0 < len(plain(one)) <= 69
    assert plain(one) not in (".", "..")
    assert (plain(one) == plain(other)) == (one == other)


def test_a_tracker_changes_no_bit(small, tmp_path):
    with_tracker = run_inline(small | {"trackers": "notes", "methods": "fedavg"}, tmp_path / "with")
    without = run_inline(small | {"methods": "fedavg"}, tmp_path / "without")
    ours, theirs = (folder.checkpoints("fedavg").latest().arrays for folder in (with_tracker, without))
    assert same_bits(ours, theirs)


def test_a_tracker_that_fails_catches_up(small, tmp_path, warnings):
    given = small | {"trackers": "notes", "notes.fails-in": "1 3", "methods": "fedavg"}
    folder = run_inline(given, tmp_path)
    record = RECORDS["run", "fedavg"]
    assert [number for number, _ in record.rounds] == [1, 2, 3]
    assert dict(record.rounds) == expected(folder.path, "fedavg")
    assert (
        warnings()
        == ["tracker notes, fedavg: OSError: the pencil broke; the run goes on, and the tracker is tried again"] * 2
    )


def test_a_tracker_that_cannot_be_opened_does_not_stop_the_run(small, tmp_path, warnings):
    folder = run_inline(small | {"trackers": "notes", "notes.fails-in": "open", "methods": "fedavg"}, tmp_path)
    assert folder.finished("fedavg")
    assert RECORDS == {}
    assert len(warnings()) == 1 + 3 + 1 + 1  # start, rounds, end, report
    assert all("ConnectionError: no paper" in line for line in warnings())


def test_a_resumed_run_has_each_round_once(small, tmp_path):
    folder = cut_and_resumed(small | {"trackers": "notes"}, tmp_path)
    record = RECORDS["run", "fedavg"]
    assert [number for number, _ in record.rounds] == [1, 2, 3]
    for number, values in expected(folder.path, "fedavg").items():
        # Round 2 was recorded before the cut; its traffic and seconds are those of the first attempt.
        found = dict(record.rounds)[number]
        assert found.keys() == values.keys()
        assert all(found[name] == value for name, value in values.items() if not name.startswith("round/"))
    assert (record.opened, record.closed) == (2, 2)


def test_a_tracker_that_is_added_to_a_resumed_run_gets_the_earlier_rounds(small, tmp_path):
    run_inline(small | {"methods": "fedavg"}, tmp_path)
    folder = run_inline(small | {"methods": "fedavg", "trackers": "notes", "resume": True, "notes.volume": 2}, tmp_path)
    assert dict(RECORDS["run", "fedavg"].rounds) == expected(folder.path, "fedavg")
    assert RECORDS["run", "fedavg"].final


def test_a_promotion_and_a_rollback_give_models_their_aliases(small, tmp_path, monkeypatch):
    registry = tmp_path / "champions"
    keys = small | {"methods": "fedavg", "trackers": "notes", "track-metric": "test.total_loss"}
    folders = [run_inline(keys | {"name": f"week-{week}", "rounds": week}, tmp_path) for week in (1, 2, 3)]

    def models(action, number=None, **margins):
        for record in RECORDS.values():
            record.models.clear()
        steer(registry, number and folders[number - 1].path, action, "", {"gate-group-margin": 1e9, **margins})
        return {f"{name}: {alias}": model for (name, _), of in RECORDS.items() for _, alias, *model in of.models}

    one, two, three = ([week, f"round-{week:06d}.safetensors"] for week in (1, 2, 3))
    assert models("compare", 1) == {}, "a tracker without a registry of models is not asked"
    monkeypatch.setattr(Notes, "registers", True)
    assert models("compare", 2, **{"gate-margin": 1e9}) == {"week-2: challenger": two, "week-2: champion": two}
    assert models("compare", 3) == {"week-3: challenger": three, "week-2: champion": two}
    assert models("dry-run", 3) == {}
    assert models("rollback") == {"week-1: champion": one}
    record = RECORDS["week-1", "fedavg"]
    assert record.models[0][0] == "champions"
    assert record.opened == record.closed == 2
    assert dict(record.rounds) == expected(folders[0].path, "fedavg")


def test_a_tracker_that_fails_stops_no_promotion(small, tmp_path, monkeypatch, warnings):
    def failing(self, *arguments):
        raise OSError("the pencil broke")

    monkeypatch.setattr(Notes, "registers", True)
    monkeypatch.setattr(Record, "register", failing)
    keys = small | {"methods": "fedavg", "trackers": "notes", "track-metric": "test.total_loss"}
    folder = run_inline(keys, tmp_path)
    steer(tmp_path / "champions", folder.path, "compare", "", {})
    assert Registry.read(tmp_path / "champions").champion == 1
    assert len([text for text in warnings() if "the pencil broke" in text]) == 2


# -- what is refused ------------------------------------------------------------------------------------------


def test_a_missing_package_is_refused_with_the_command_that_installs_it(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Notes, "package", "no_such_package")
    monkeypatch.setattr(Notes, "requirement", "fedapps[notes]")
    with pytest.raises(
        ConfigError,
        match=r"trackers = 'notes': notes needs the package 'no_such_package', which is not installed: "
        r"pip install 'fedapps\[notes\]'",
    ):
        run_inline(small | {"trackers": "notes"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trackers": "notes,magic"}, r"trackers: 'magic' is unknown; known trackers: .*notes"),
        ({"trackers": "notes", "notes.volume": 0}, r"notes\.volume = 0: must be a whole number at least 1"),
        ({"notes.colour": "red"}, r"notes\.colour: unknown key; known keys: notes\.fails-in, notes\.volume"),
        ({"magic.colour": "red"}, r"magic\.colour: unknown key; 'magic' is neither a task, a method nor a tracker"),
    ],
)
def test_wrong_keys_are_refused(small, keys, message):
    with pytest.raises(ConfigError, match=message):
        parse(small | keys)


def test_nodes_need_no_tracker(small, monkeypatch):
    monkeypatch.setattr(Notes, "package", "no_such_package")
    given = small | {"trackers": "notes,magic", "magic.colour": "red", "notes.volume": 0}
    assert parse(given, on_node=True).trackers == {}
    assert read(given).trackers == {}


def test_the_options_are_keys_of_the_run(small):
    config = parse(small | {"trackers": "notes", "notes.volume": 3})
    assert config.flat()["notes.volume"] == 3
    assert parse(config.flat()).trackers["notes"].options == NotesOptions(volume=3)
    assert "notes.volume" not in parse(small).flat()
