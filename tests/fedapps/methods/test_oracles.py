"""Methods on two quadratics, with the numbers of an independent computation."""

import pytest
from method_worlds import BodyAndHead, SecondWorld, run_method

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


def test_fedavg():
    assert run_method("fedavg").values() == near(-0.065, -0.10725)
    assert run_method("fedavg", SecondWorld).values() == near(-0.16, -0.264)


def controls(run):
    return [float(run.server[-1][f"_controls.node-{node}.theta"][0]) for node in range(2)]


def test_scaffold_with_one_node_at_a_time():
    run = run_method("scaffold", absent={(1, 1), (2, 0)})
    assert run.values() == near(0.38, -0.1623)
    assert controls(run) == near(-1.9, 3.6615)
    assert run.server[-1]["_sum.theta"] / 2 == near(0.88075)


def test_lg_fedavg_shares_the_head_alone():
    run = run_method("lg-fedavg", BodyAndHead)
    assert list(run.arrays[0]) == ["head.v"]
    assert set(run.kept[0]) == {"body.u"}
