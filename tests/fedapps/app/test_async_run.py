"""Runs that do not wait for all nodes, in simulated time: their records, their bits, and how they resume."""

import pytest
from small_runs import LQR, run_inline, with_changes
from toys import same_bits

from fedapps.runs.run_folder import RunFolder

SPEEDS = {"robot-00": 30.0, "robot-01": 1.0, "robot-02": 2.0}


@pytest.fixture(scope="module")
def federate(tmp_path_factory):
    """Run three robots, one of which is much slower than the others, under a name with other keys."""
    folder = tmp_path_factory.mktemp("async")
    rows = "".join(f"{name},{speed},,\n" for name, speed in SPEEDS.items())
    (folder / "devices.csv").write_text("device,speed,up,down\n" + rows)

    def run(name, **changes):
        given = LQR | {"name": name, "methods": "fedavg", "rounds": 6, "clock-devices": str(folder / "devices.csv")}
        return run_inline(with_changes(given, changes), folder)

    return run


def trained(folder):
    return [row for row in folder.lines("nodes.jsonl") if row["phase"] == "train"]


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


def test_a_slow_node_is_folded_with_its_staleness(federate):
    folder = federate("late", mode="async", buffer=1, rounds=48, evaluate_every=48)
    slow = [row["staleness"] for row in trained(folder) if row["node"] == "robot-00"]
    assert slow
    assert min(slow) >= 30  # the others take 1 and 2 s for what takes it 30


def test_a_deadline_closes_rounds_and_names_late_replies(federate):
    steps = trained(federate("steps", rounds=1))[0]["metrics"]["steps"]
    folder = federate("deadline", deadline=5.0 * steps, rounds=15, evaluate_every=15)
    rows = folder.lines("metrics.jsonl")
    assert rows[0]["clock"] == 5 * steps
    assert [late["node"] for row in rows for late in row.get("dropped", [])] == ["robot-00"]
    folded = federate("folded", deadline=5.0 * steps, rounds=15, evaluate_every=15, late_replies="fold")
    late = [row for row in trained(folded) if row.get("staleness")]
    assert [row["node"] for row in late] == ["robot-00"]


def test_a_run_that_was_killed_goes_on(federate, monkeypatch):
    record = RunFolder.record

    def crash(self, name, stage, report):
        if report.round == 4:
            raise ConnectionError("power cut")
        record(self, name, stage, report)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "record", crash)
        with pytest.raises(ConnectionError, match="power cut"):
            federate("resumed", mode="async", buffer=2)
    folder = federate("resumed", mode="async", buffer=2, resume=True)
    rows = folder.lines("metrics.jsonl")
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["replies"] for row in rows] == [2] * 6
    assert sorted(row["clock"] for row in rows) == [row["clock"] for row in rows]
