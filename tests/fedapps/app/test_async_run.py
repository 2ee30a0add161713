"""Runs that do not wait for all nodes, in simulated time: their records, their bits, and how they resume."""

from functools import cache
from itertools import count
from math import isfinite

import pytest
from fedapps.strategies.loop import RoundLoop
from fedapps.strategies.optimizers import SGD
from small_runs import timed_runs
from toys import same_bits

from fedapps.runs.checkpoints import DiskCheckpoints
from fedapps.runs.run_folder import RunFolder

SPEEDS = {"robot-00": 30.0, "robot-01": 1.0, "robot-02": 2.0}


@pytest.fixture(scope="module")
def federate(tmp_path_factory):
    """Run three robots, one of which is much slower than the others, under a name with other keys."""
    return timed_runs(tmp_path_factory.mktemp("async"), SPEEDS, rounds=6)


def trained(folder):
    return [row for row in folder.lines("nodes.jsonl") if row["phase"] == "train"]


@pytest.mark.slow
def test_an_asynchronous_run_does_not_wait_for_the_slowest(federate):
    waiting, folder = federate("sync"), federate("async", mode="async", buffer=2)
    assert folder.lines("metrics.jsonl")[-1]["clock"] < 0.2 * waiting.lines("metrics.jsonl")[-1]["clock"]
    assert [row["replies"] for row in folder.lines("metrics.jsonl")] == [2] * 6
    assert {row["node"] for row in trained(folder)} >= {"robot-01", "robot-02"}
    assert any(row.get("staleness") for row in trained(folder))
    evaluated = {row["node"] for row in folder.lines("nodes.jsonl") if row["phase"] == "evaluate"}
    assert evaluated == set(SPEEDS), "also the node that is at work"
    assert folder.lines("metrics.jsonl")[-1]["strategy"].keys() == {
        "staleness-mean", "staleness-max", "in-flight", "versions",
    }  # fmt: skip
    again = federate("async-again", mode="async", buffer=2)
    assert again.lines("nodes.jsonl") == folder.lines("nodes.jsonl")
    assert same_bits(*(run.checkpoints("fedavg").latest().arrays for run in (folder, again)))


SLOW_METHODS = ("spfl", "per-fedavg", "fedala", "pfedme(run.optimizer=sgd)", "apfl-deng")


@pytest.mark.parametrize("method", ["ditto", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_METHODS)])
def test_personal_methods_work_asynchronously(federate, method):
    keys = {"methods": method, "mode": "async", "buffer": 2, "rounds": 3}
    rows = federate(f"personal-{method.partition('(')[0]}", **keys).lines("metrics.jsonl")
    assert [(row["replies"], row["refused"]) for row in rows] == [(2, [])] * 3
    assert all(isfinite(value) for value in rows[-1]["evaluate"].values())


def test_a_slow_node_is_folded_with_its_staleness(federate):
    folder = federate("late", mode="async", buffer=1, rounds=48, evaluate_every=48)
    slow = [row["staleness"] for row in trained(folder) if row["node"] == "robot-00"]
    assert slow
    assert min(slow) >= 30  # the others take 1 and 2 s for what takes it 30


@pytest.mark.slow
def test_a_deadline_closes_rounds_and_names_late_replies(federate):
    steps = trained(federate("steps", rounds=1))[0]["metrics"]["steps"]
    folder = federate("deadline", deadline=5.0 * steps, rounds=15, evaluate_every=15)
    rows = folder.lines("metrics.jsonl")
    assert rows[0]["clock"] == 5 * steps
    assert [late["node"] for row in rows for late in row.get("dropped", [])] == ["robot-00"]
    folded = federate("folded", deadline=5.0 * steps, rounds=15, evaluate_every=15, late_replies="fold")
    late = [row for row in trained(folded) if row.get("staleness")]
    assert [row["node"] for row in late] == ["robot-00"]


PACES = {
    "async": {"mode": "async", "buffer": 2, "max_staleness": 40},
    "private": {"mode": "async", "buffer": 1, "methods": "ditto", "compression": "top-k", "rounds": 8},
    "fold": {"deadline": 9.0, "late_replies": "fold"},
    "drop": {"over_selection": 1.5, "fraction_train": 0.6},
    "timeout": {"timeout": 20.0},
}
PHASES = {  # where the server of the fourth round dies
    "before the messages leave": (RoundLoop, "aggregate_train", "before"),
    "with replies in flight": (RoundLoop, "_read", "before"),
    "after the step": (SGD, "step", "after"),
    "before the checkpoint": (RunFolder, "record", "before"),
    "after the checkpoint": (DiskCheckpoints, "save", "after"),
}


@pytest.fixture(scope="module")
def uninterrupted(federate):
    return cache(lambda pace: federate(f"whole-{pace}", **PACES[pace]))


@pytest.mark.parametrize(
    ("pace", "phase"),
    [  # each pace and each phase once in `make test`, all phases of two paces among the slow tests
        pytest.param(pace, phase, marks=() if number == other else pytest.mark.slow)
        for number, pace in enumerate(PACES)
        for other, phase in enumerate(PHASES)
        if number == other or pace in ("async", "fold")
    ],
)
def test_a_run_that_was_killed_repeats_its_bits(federate, uninterrupted, monkeypatch, pace, phase):
    whole, (owner, name, when) = uninterrupted(pace), PHASES[phase]
    original, calls = getattr(owner, name), count(1)
    fatal = 4 * sum(row["replies"] for row in whole.lines("metrics.jsonl")[:3]) // 3 if name == "_read" else 4

    def dying(self, *given, **named):
        last = next(calls) == fatal
        if last and when == "before":
            raise ConnectionError("power cut")
        result = original(self, *given, **named)
        if last:
            raise ConnectionError("power cut")
        return result

    run = f"{pace}, {phase}"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(ConnectionError, match="power cut"):
            federate(run, **PACES[pace])
    folder = federate(run, **PACES[pace], resume=True)
    assert folder.lines("nodes.jsonl") == whole.lines("nodes.jsonl")
    kept = [
        [(row["clock"], row.get("dropped"), row["strategy"]) for row in f.lines("metrics.jsonl")]
        for f in (folder, whole)
    ]
    assert kept[0] == kept[1]
    (method,) = {row["method"] for row in whole.lines("metrics.jsonl")}
    assert same_bits(*(f.checkpoints(method).latest().arrays for f in (folder, whole)))
