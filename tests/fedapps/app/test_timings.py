"""The key timings: seconds by phase of the server and of the nodes; the results are the same bits."""

import pytest
from fedapps.strategies.wire import NODE_PHASES
from small_runs import LQR
from toys import same_bits

SERVER_PHASES = {"prepare", "wait", "decode", "fold", "step", "other"}


@pytest.fixture
def runs(federate):
    given = {**LQR, "methods": "fedavg", "rounds": 2, "evaluate_every": 1}
    return federate("plain", **given), federate("timed", **given, timings=True)


def test_phases_are_recorded_where_the_run_asks_for_them_and_change_no_result(runs):
    plain, timed = runs
    for name in ("metrics.jsonl", "nodes.jsonl"):
        assert not any("timings" in row for row in plain.lines(name))
        assert all(row["timings"] for row in timed.lines(name))
    assert same_bits(*(run.checkpoints("fedavg").latest().arrays for run in runs))
    assert [row["evaluate"] for row in plain.lines("metrics.jsonl")] == [
        row["evaluate"] for row in timed.lines("metrics.jsonl")
    ]


def test_the_phases_of_a_round_are_all_of_its_time(runs):
    first, second = runs[1].lines("metrics.jsonl")
    assert first["timings"].keys() == SERVER_PHASES
    assert second["timings"].keys() == SERVER_PHASES | {"save"}, "saving counts for the round after"
    for row in (first, second):
        times = dict(row["timings"])
        times.pop("save", None)
        assert sum(times.values()) == pytest.approx(row["seconds"], rel=1e-3)


def test_the_phases_of_the_nodes_are_within_the_waiting_of_the_server(runs):
    timed = runs[1]
    for row in timed.lines("metrics.jsonl"):
        nodes = [node for node in timed.lines("nodes.jsonl") if node["round"] == row["round"]]
        assert {phase for node in nodes for phase in node["timings"]} <= set(NODE_PHASES)
        assert 0 < sum(sum(node["timings"].values()) for node in nodes) <= row["timings"]["wait"]
        for node in nodes:
            assert node["timings"][node["phase"]] > 0
            assert ("evaluate" in node["timings"]) is (node["phase"] == "evaluate")


def test_the_size_of_each_reply_is_part_of_the_traffic(runs):
    for run in runs:
        for row in run.lines("metrics.jsonl"):
            sizes = [node["bytes_up"] for node in run.lines("nodes.jsonl") if node["round"] == row["round"]]
            assert sum(sizes) == row["bytes_up"]
