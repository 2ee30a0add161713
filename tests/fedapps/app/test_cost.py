"""The local budget of a method, and what it took to reach a target, from what nodes report."""

import pytest
import tomli_w
from fedapps.strategies import epsilon
from hypothesis import given
from hypothesis import strategies as st

from fedapps.app.cost import cost_to_target, guarantee_of_all, simulated_time, slowest_tenth, steps_per_node
from fedapps.config.parsing import parse
from fedapps.config.run_config import RunConfig
from fedapps.runs.run_folder import RunFolder


def row(phase, server_round, node, **metrics):
    return {"phase": phase, "round": server_round, "node": node, "metrics": metrics}


def test_the_steps_by_hand():
    """10 + 6 steps of training on 4 nodes, and 3 + 1 before the last evaluation of 2 nodes: 16/4 + 4/2 = 6."""
    before = {"steps.count": 99.0}
    rows = [
        row("train", 1, "a", steps=10.0),
        row("evaluate", 1, "a", **before),
        row("train", 2, "b", steps=6.0),
        row("evaluate", 2, "a", **{"steps.count": 3.0}),
        row("evaluate", 2, "b", **{"steps.count": 1.0}),
    ]
    assert steps_per_node(rows, 4) == {"steps_per_node": 6.0}


def test_nodes_beyond_the_number_of_the_run_config_count():
    assert steps_per_node([row("train", 1, node, steps=4.0) for node in "abc"], 2) == {"steps_per_node": 4.0}


def test_other_replies_do_not_count():
    rows = [row("train", 1, "a", steps=8.0), row("train", 1, "b", steps=[1.0, 2.0]), row("train", 1, "c", loss=1.0)]
    assert steps_per_node(rows, 4) == {"steps_per_node": 2.0}
    assert steps_per_node(rows[1:], 4) == {}
    assert steps_per_node([], 4) == {}


@given(steps=st.lists(st.integers(0, 9), min_size=1, max_size=6), rounds=st.integers(1, 4))
def test_without_steps_before_evaluations_it_is_the_mean_of_all_training(steps, rounds):
    rows = [row("train", r, str(k), steps=float(s)) for r in range(rounds) for k, s in enumerate(steps)]
    rows += [row("evaluate", rounds, str(k), loss=1.0) for k in range(len(steps))]
    assert steps_per_node(rows, len(steps))["steps_per_node"] == pytest.approx(rounds * sum(steps) / len(steps))


TRAINED = [row("train", r, node, steps=steps) for r, node, steps in [(1, "a", 10.0), (2, "b", 6.0), (4, "a", 5.0)]]


def evaluated(*values, **more):
    """Rounds of 100 bytes down and 10 up, of which each second one is evaluated."""
    sent = {"bytes_down": 100, "bytes_up": 10}
    found = [{"evaluate": of} for value in values for of in ({}, {"sr": value})]
    return [{"round": number, **row, **sent, **more} for number, row in enumerate(found, 1)]


@pytest.mark.parametrize(
    ("values", "mode", "found"),
    [
        ((0.25, 0.5, 0.75), "max", {"rounds_to_target": 4.0, "steps_to_target": 21.0, "bytes_to_target": 440.0}),
        ((0.5, 0.25, 0.75), "max", {"rounds_to_target": 2.0, "steps_to_target": 25.0, "bytes_to_target": 220.0}),
        ((0.25, 0.4, 0.45), "max", {}),
        ((0.75, 0.5, 0.25), "min", {"rounds_to_target": 4.0, "steps_to_target": 21.0, "bytes_to_target": 440.0}),
    ],
)
def test_the_first_evaluation_at_the_target_decides(values, mode, found):
    """Node a takes 10 steps in round 1, 9 before the evaluation of round 2 and 5 in round 4, node b 6 in round 2."""
    run = RunConfig(target=0.5, track_metric="sr", track_mode=mode)
    rows = [*TRAINED, row("evaluate", 2, "a", **{"steps.count": 9.0})]
    assert cost_to_target(run, evaluated(*values), rows) == found


def test_the_rounds_before_a_started_run_do_not_count():
    """Two rounds of the run reach the target, 16 steps and 220 bytes after ten rounds of another one."""
    later = [[row | {"round": 10 + row["round"]} for row in rows] for rows in (evaluated(0.5, clock=75.0), TRAINED)]
    run = RunConfig(target=0.5, track_metric="sr", track_mode="max")
    cost = cost_to_target(run, *later, begun=10, since=70.0)
    assert cost == {"rounds_to_target": 2.0, "steps_to_target": 16.0, "bytes_to_target": 220.0, "time_to_target": 5.0}


def test_without_a_target_nothing_is_counted():
    assert cost_to_target(RunConfig(), evaluated(1.0), TRAINED) == {}


def test_in_simulated_time_the_target_has_a_time():
    rounds = [row | {"clock": 7.0 * row["round"]} for row in evaluated(0.25, 0.5)]
    assert (
        cost_to_target(RunConfig(target=0.5, track_metric="sr", track_mode="max"), rounds, [])["time_to_target"] == 28
    )
    assert simulated_time(rounds) == {"simulated_time": 28.0}
    assert simulated_time(evaluated(0.5)) == simulated_time([]) == {}


def test_the_slowest_tenth_by_hand():
    """Of eleven nodes, two are the slowest tenth: j and k. Node k gave one of four replies."""
    speeds = {node: float(place) for place, node in enumerate("abcdefghijk")}
    rows = [row("train", 1, node) for node in "abck"] + [row("evaluate", 1, "k", sr=9.0)]
    rows += [row("evaluate", 2, "a", sr=0.9), row("evaluate", 2, "j", sr=0.2), row("evaluate", 2, "k", sr=0.4)]
    found = slowest_tenth(RunConfig(track_metric="sr"), rows, speeds)
    assert found == {"slowest_tenth.sr": pytest.approx(0.3), "slowest_tenth.replies": 0.25}
    assert slowest_tenth(RunConfig(track_metric="sr"), rows, {}) == {}


POISSON = {"dp": "central-server", "sampling": "poisson", "fraction-train": 0.1}
SEEDED = POISSON | {"dp-seeded": True}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([{}, {}], None),
        ([{"dp": "local"}] * 2, epsilon(1.0, 6, 1e-5, 2.0)),
        ([POISSON, POISSON | {"seed": 1}], epsilon(1.0, 6, 1e-5, sampling_probability=0.1)),
        ([SEEDED, SEEDED], epsilon(1.0, [2, 4], 1e-5, sampling_probability=0.1)),  # the seed draws the same nodes
        ([POISSON, POISSON | {"dp-noise": 0.5}], epsilon(1.0, 3 + 4 * 3, 1e-5)),
        ([POISSON, {"dp": "local", "dp-noise": 0.5}], epsilon(1.0, 3 + 4 * 3, 1e-5, 2.0)),
        ([POISSON, {}], float("inf")),
        ([POISSON, {"methods": "local"}], epsilon(1.0, 3, 1e-5, sampling_probability=0.1)),
    ],
)
def test_the_epsilon_of_runs_together(tmp_path, keys, expected):
    """Each run has released round 1 once and round 2 twice."""
    for number, of_run in enumerate(keys):
        config = parse(
            {"task": "lqr", "num-nodes": 10, "collect-after": 0, "methods": "fedavg", "name": str(number)} | of_run
        )
        folder = RunFolder(tmp_path / str(number), "")
        folder.path.mkdir()
        (folder.path / "config.toml").write_text(tomli_w.dumps(config.flat()))
        for server_round in (1, 2, 2) if config.run.dp != "none" else ():
            folder.releases("fedavg").add(server_round, "a")
    text = guarantee_of_all([*sorted(tmp_path.iterdir()), tmp_path / "never-began"])
    assert (f"all {len(keys)} runs together" in text) == (expected is not None)
    assert f"epsilon = {expected:.3g} at delta = 1e-05 after" in text if expected is not None else not text
