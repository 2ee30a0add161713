"""A run in simulated time: what it records, how long its rounds are, and the same bits as without it."""

import csv

import pytest
from fedapps.sim.inprocess import InProcessGrid
from small_runs import power_cut, timed_runs
from toys import same_bits

SPEEDS = {"robot-00": 3.0, "robot-01": 1.0, "robot-02": 2.0}
#: Devices that are drawn.
DRAWN = {
    "clock_devices": "",
    "clock_step_seconds": "lognormal(median=0.5,sigma=1)",
    "clock_uplink": "0.01",
    "clock_availability": "on-off(on=uniform(low=0.001,high=0.002),off=0.0005)",
}


@pytest.fixture(scope="module")
def federate(tmp_path_factory):
    """Run three robots, whose steps take 3, 1 and 2 s, under a name with other keys."""
    return timed_runs(tmp_path_factory.mktemp("clock"), SPEEDS)


@pytest.fixture(scope="module")
def timed(federate):
    return federate("timed")


def arrays(folder):
    return folder.checkpoints("fedavg").latest().arrays


def test_a_synchronous_round_lasts_as_long_as_its_slowest_node(timed):
    nodes = [row for row in timed.lines("nodes.jsonl") if row["phase"] == "train"]
    steps = {row["node"]: row["metrics"]["steps"] for row in nodes}
    assert {row["node"]: row["seconds"] for row in nodes} == {name: steps[name] * SPEEDS[name] for name in SPEEDS}
    slowest = 3 * steps["robot-00"]
    assert [row["clock"] for row in timed.lines("metrics.jsonl")] == [slowest, 2 * slowest, 3 * slowest]


def test_simulated_time_changes_no_bit_and_nothing_is_recorded_without_it(federate, timed):
    plain = federate("plain", clock_devices="")
    assert same_bits(arrays(plain), arrays(timed))
    assert all("clock" not in row for row in plain.lines("metrics.jsonl"))
    assert not (plain.path / "devices.csv").exists()


def test_the_run_records_the_device_of_each_node_as_a_file_that_the_key_takes(federate, timed):
    with (timed.path / "devices.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["device"]: float(row["speed"]) for row in rows} == SPEEDS
    assert same_bits(arrays(federate("again", clock_devices=str(timed.path / "devices.csv"))), arrays(timed))


def test_a_reply_after_the_timeout_is_refused_and_ends_the_round(federate, timed):
    slowest = timed.lines("metrics.jsonl")[0]["clock"]
    cut = federate("cut", timeout=slowest * 0.9)
    row, second, _ = cut.lines("metrics.jsonl")
    assert [(r["node"], r["reason"]) for r in row["refused"]] == [("robot-00", f"no reply within {slowest * 0.9:g} s")]
    assert row["clock"] == pytest.approx(slowest * 0.9)
    assert second["clock"] == pytest.approx(2 * slowest * 0.9)  # the node is still busy with the first message
    assert second["replies"] == 2


def test_a_resumed_run_goes_on_at_the_time_of_its_checkpoint(federate):
    given = DRAWN | {"min_replies": 3}
    undisturbed = federate("undisturbed", **given)
    with power_cut(2):
        federate("resumed", **given)
    resumed = federate("resumed", resume=True, **given)
    assert same_bits(arrays(undisturbed), arrays(resumed))
    assert [row["clock"] for row in undisturbed.lines("metrics.jsonl")] == [
        row["clock"] for row in resumed.lines("metrics.jsonl")
    ]
    assert undisturbed.lines("nodes.jsonl") == resumed.lines("nodes.jsonl")


PACES = {
    "over-selection": {"over-selection": 1.5, "late-replies": "fold"},
    "async": {"mode": "async", "concurrency": 3, "buffer": 2},
}


@pytest.mark.parametrize("pace", PACES)
def test_the_bits_do_not_depend_on_what_is_computed_first(federate, monkeypatch, pace):
    given = DRAWN | {"num_nodes": 5, "fraction_train": 0.6, "evaluate_every": 3} | PACES[pace]
    lazily = federate(f"{pace}-lazily", **given)
    push, pull = InProcessGrid.push_messages, InProcessGrid.pull_messages
    there = {}

    def push_and_compute(grid, messages):
        """As in Ray, nodes begin at once; here the last one ends first."""
        ids = list(push(grid, messages))
        for message_id in reversed(ids):
            there[message_id] = list(pull(grid, [message_id]))
        return ids

    monkeypatch.setattr(InProcessGrid, "push_messages", push_and_compute)
    monkeypatch.setattr(InProcessGrid, "pull_messages", lambda grid, ids: [r for i in ids for r in there.pop(i, [])])
    eagerly = federate(f"{pace}-eagerly", **given)
    assert same_bits(arrays(lazily), arrays(eagerly))
    assert lazily.lines("nodes.jsonl") == eagerly.lines("nodes.jsonl")
    assert [row["clock"] for row in lazily.lines("metrics.jsonl")] == [
        row["clock"] for row in eagerly.lines("metrics.jsonl")
    ]
