"""SCAFFOLD: by hand, by its invariants, beside FedAvg, and where it must beat FedAvg."""

import numpy as np
import pytest
from fedapps.sim.inprocess import NodeError
from fedapps.strategies import SGD, BaseStrategy, CentralPrivacy, Median, TooFewRepliesError, UniformFraction, to_record
from fedapps.strategies import Scaffold as ScaffoldStrategy
from fedapps.strategies.wire import SCAFFOLD_CONTROL, SCAFFOLD_LENGTH
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratics import FOUR, Federation, QuadraticTask, best_of, damaged

from fedapps.base.options import with_values
from fedapps.config.run_config import RunConfig
from fedapps.methods.base import StrategyParts
from fedapps.methods.scaffold import Scaffold, ScaffoldOptions, ScaffoldPart

TWO = QuadraticTask([1.0, 2.0], [[4.0], [-2.0]])
NUMBERS = st.floats(-4, 4, width=32)


def scaffold(task=TWO, *, steps=2, learning_rate=0.25):
    return Federation(task, [ScaffoldPart()], steps=steps, learning_rate=learning_rate)


def server(**base):
    return ScaffoldStrategy(**base)


def controls(strategy, count=2):
    """c_i of each node."""
    return [strategy._controls[f"node-{index}"]["theta"] for index in range(count)]


def fedavg(task=TWO, *, steps=2, learning_rate=0.25):
    return Federation(task, [], steps=steps, learning_rate=learning_rate)


def test_two_rounds_worked_out_by_hand():
    # f_1 = ½ (θ − 4)², f_2 = (θ + 2)², x = 0, K = 2, η_l = ¼, η_g = 1; all numbers are exact in float32.
    federation, strategy = scaffold(), server()
    federation.run(strategy, 1)
    # Node 1: 0 → 1 → 1.75 with gradients −4, −3. Node 2: 0 → −1 → −1.5 with gradients 4, 2.
    assert federation.theta == [[0.125]]
    assert controls(strategy) == [[-3.5], [3.0]]
    assert strategy.control["theta"] == [-0.25]

    federation, strategy = scaffold(), server()
    federation.run(strategy, 2)
    # Corrections c − c_i: 3.25 and −3.25. Node 1: 0.125 → 0.28125 → 0.3984375. Node 2: 0.125 → −0.125 → −0.25.
    assert federation.theta == [[0.125], [0.07421875]]
    assert controls(strategy) == [[-3.796875], [4.0]]
    assert strategy.control["theta"] == [0.1015625]
    assert (strategy.control["scale"] == 0).all(), "a buffer has no gradient"


def test_the_global_step_size_scales_the_step_of_the_server():
    assert scaffold().run(ScaffoldStrategy(server_optimizer=SGD(2.0)), 1) == [0.25]
    method = Scaffold(ScaffoldOptions(global_learning_rate=0.5))
    strategy = method.strategy(StrategyParts(RunConfig()))
    assert isinstance(strategy, ScaffoldStrategy)
    assert scaffold().run(strategy, 1) == [0.0625]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0.25, 2, width=32), NUMBERS, NUMBERS), min_size=1, max_size=5),
    st.floats(0.2, 1),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_the_server_keeps_the_mean_of_the_nodes_control_variates(nodes, fraction, rounds, steps):
    task = QuadraticTask([a for a, _, _ in nodes], [[x, y] for _, x, y in nodes])
    strategy = server(sampler=UniformFraction(fraction, seed=1))
    scaffold(task, steps=steps).run(strategy, rounds)
    mean = np.sum([control["theta"] for control in strategy._controls.values()], axis=0) / len(nodes)
    np.testing.assert_allclose(strategy.control["theta"], mean, atol=1e-4)


def refusing(*replies, **base):
    """The strategy that refuses the replies (round, node)."""

    class Refusing(ScaffoldStrategy):
        def refusal_reason(self, reply):
            return "late" if (self.report.round, reply.profile.key) in replies else super().refusal_reason(reply)

    return Refusing(**base)


def test_a_reply_that_was_refused_changes_no_control_variate():
    federation, strategy = scaffold(), refusing((1, "node-0"))
    federation.run(strategy, 2)
    # After round 1: x = −1.5, c_1 = 3, c = 1.5. Node 0 goes on with c_0 = 0, so the corrections are ±1.5.
    # Node 0: −1.5 → −0.5 → 0.25 with gradients −5.5, −4.5. Node 1: −1.5 → −1.375 → −1.3125 with gradients 1, 1.25.
    assert federation.theta == [[-1.5], [-0.53125]]
    assert controls(strategy) == [[-5.0], [1.125]]
    assert strategy.control["theta"] == [-1.9375]


def test_a_restarted_server_counts_nodes_that_are_away():
    strategy, restarted = server(), server()
    scaffold().run(strategy, 1)
    restarted.load_state(strategy.state())
    assert restarted.control["theta"] == [(-3.5 + 3.0) / 2]


@settings(deadline=None, max_examples=25)
@given(st.floats(0.25, 2), st.lists(NUMBERS, min_size=1, max_size=3), st.integers(1, 6))
def test_a_control_variate_is_the_mean_of_the_local_gradients(curvature, optimum, steps):
    strategy = server()
    scaffold(QuadraticTask([curvature], [optimum]), steps=steps, learning_rate=0.1).run(strategy, 1)
    theta, gradients = np.zeros(len(optimum)), []
    for _ in range(steps):
        gradients.append(curvature * (theta - optimum))
        theta = theta - 0.1 * gradients[-1]
    np.testing.assert_allclose(controls(strategy, 1)[0], np.mean(gradients, axis=0), atol=1e-4)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4), st.integers(1, 5))
def test_the_first_round_is_fedavg_bit_for_bit(optima, steps):
    task = QuadraticTask([1.5] * len(optima), optima)
    first = scaffold(task, steps=steps).run(ScaffoldStrategy(), 1)
    np.testing.assert_array_equal(first, fedavg(task, steps=steps).run(BaseStrategy(), 1))


def test_one_node_is_fedavg():
    task = QuadraticTask([1.0], [[3.0, -1.0]])
    np.testing.assert_allclose(
        scaffold(task).run(ScaffoldStrategy(), 5), fedavg(task).run(BaseStrategy(), 5), rtol=1e-6
    )


def test_many_local_steps_on_different_quadratics_reach_the_optimum_where_fedavg_does_not():
    task = QuadraticTask([0.2, 1.0, 3.0], [[4.0, 0.0], [-2.0, 1.0], [1.0, -3.0]])
    found = scaffold(task, steps=20, learning_rate=0.05).run(ScaffoldStrategy(), 60)
    drifted = fedavg(task, steps=20, learning_rate=0.05).run(BaseStrategy(), 60)
    assert np.abs(found - best_of(task)).max() < 1e-3
    assert np.abs(drifted - best_of(task)).max() > 0.3


@pytest.mark.parametrize("bound", [0.0, 30.0])
def test_what_a_false_reply_has_done_to_the_control_variates_ends(bound):
    result = scaffold(FOUR, steps=20, learning_rate=0.05).run(damaged(ScaffoldStrategy)(size_bound=bound), 40)
    assert np.abs(result - best_of(FOUR)).max() < 1e-3


def test_a_reply_without_the_length_of_its_training_is_refused():
    with pytest.raises(
        TooFewRepliesError, match=f"metric {SCAFFOLD_LENGTH} is None: a client returns a number above 0"
    ):
        fedavg().run(ScaffoldStrategy(), 1)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (None, f"the message has no ArrayRecord '{SCAFFOLD_CONTROL}'"),
        ({"theta": np.zeros(2, np.float32)}, r"'theta' is \[2\], but the parameter is \[1\]"),
        ({"omega": np.zeros(2, np.float32)}, r"'omega' is \[2\], but it was not received"),
    ],
)
def test_a_control_that_does_not_fit_is_refused(arrays, said):
    class Stranger(BaseStrategy):
        def complete(self, phase, profile, content):
            if arrays is not None:
                content[SCAFFOLD_CONTROL] = to_record(arrays)

    with pytest.raises(NodeError, match=said):
        scaffold().run(Stranger(), 1)


def test_central_privacy_and_robust_aggregations_are_refused():
    with pytest.raises(ValueError, match="control variate"):
        ScaffoldStrategy(privacy=CentralPrivacy(1.0, 1.0, 3), weighting="uniform")
    assert Scaffold().privacy_conflict("local") == ScaffoldStrategy.privacy_gap
    with pytest.raises(ValueError, match=r"aggregation = Median\(\): does not protect.*control variates"):
        ScaffoldStrategy(aggregation=Median(), weighting="uniform")
    assert Scaffold().robustness_conflict() == ScaffoldStrategy.robustness_gap


def test_replies_have_equal_weights():
    assert ScaffoldStrategy().weighting == ScaffoldStrategy(weighting="uniform").weighting == "uniform"
    for other in ("num-examples", lambda examples: 1.0):
        with pytest.raises(ValueError, match=r"weighting = .*: must be 'uniform', .*; leave it out"):
            ScaffoldStrategy(weighting=other)


@pytest.mark.parametrize(
    "given",
    [{"optimizer": "adam"}, {"momentum": 0.9}, {"clip_norm": 1.0}, {"linear_decay": True}, {"plateau_patience": 2},
     {"weighting": "num-examples"}],
)  # fmt: skip
def test_what_breaks_the_control_variates_is_a_conflict(given):
    run = with_values(RunConfig(), {"optimizer": "sgd"} | given)
    ((names, message),) = Scaffold().conflicts(run, TWO)
    assert names == {*given, "methods"}
    assert "with scaffold" in message
    assert not list(Scaffold().conflicts(with_values(RunConfig(), {"optimizer": "sgd"}), TWO))


def test_an_evaluation_needs_no_control():
    assert ScaffoldPart().read({}, RecordDict()) == ScaffoldPart()
