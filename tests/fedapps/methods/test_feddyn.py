"""FedDyn: by hand, at its fixed point, by its invariant, and with α = 0."""

import numpy as np
import pytest
from fedapps.sim.inprocess import NodeError
from fedapps.strategies import SGD, Adam, BaseStrategy, FedDyn
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from quadratics import FOUR, Federation, QuadraticTask, best_of, damaged
from toys import same_rounds

from fedapps.methods.feddyn import FedDynOptions, FedDynPart

near = lambda *numbers, within=2e-6: pytest.approx(list(numbers), abs=within)  # noqa: E731


def terms(run):
    """g_i of the nodes that have one."""
    return [float(array[0]) for name, array in sorted(run.server[-1].items()) if name.startswith("_terms.")]


def test_two_rounds_of_two_steps():
    run = run_method("feddyn(alpha=0.5)", SecondWorld)
    assert run.values() == near(-0.31, -0.540475)
    assert [float(server["_sum.theta"][0]) / 2 for server in run.server] == near(0.0775, 0.096369)
    assert terms(run) == near(-0.205119, 0.397856)
    first = run_method("feddyn(alpha=0.5)", SecondWorld, rounds=1)
    assert terms(first) == near(-0.0925, 0.2475)


def test_with_exact_minima_it_reaches_the_optimum_of_the_mean():
    exact = {"steps": 130}
    run = run_method("feddyn(alpha=0.5)", Quadratics, **exact)
    assert run.values() == near(0.476190, 0.142857)
    assert [float(server["_sum.theta"][0]) / 2 for server in run.server] == near(-0.119048, 0.023810)
    assert terms(run) == near(-0.952381, 1.0)
    run = run_method("feddyn(alpha=0.5)", Quadratics, rounds=62, evaluate_every=62, **(exact | {"steps": 30}))
    assert run.values()[-1] == pytest.approx(-0.25, abs=1e-4)
    assert terms(run) == near(-2.25, 2.25, within=1e-3)


def test_absent_nodes_count_in_h_but_not_in_the_mean():
    run = run_method("feddyn(alpha=0.5)", Quadratics, rounds=1, absent={(1, 1)})
    assert terms(run) == near(-0.5 * 0.37)
    # y_1 = .37 with steps .1 (2 - θ - θ/2); h = -.185 / 2; θ = .37 + .0925 / .5.
    assert run.values() == near(0.37 + 0.0925 / 0.5)


def test_a_reply_that_was_refused_changes_no_linear_term():
    run = run_method("feddyn(alpha=0.5)", Quadratics, refused={(1, 0)})
    # y_1 = −.495, g_1 = .2475, θ = −.495 − .2475. Node 0 goes on with g_0 = 0: −.7425 → −.46825 → −.2351375; node 1:
    # −.7425 → −.795 → −.829125. So g moves by −.5 · .5073625 and .5 · .086625.
    assert run.values() == near(-0.7425, -0.5692625)
    assert terms(run) == near(-0.25368125, 0.2908125)
    assert float(run.server[-1]["_sum.theta"][0]) == pytest.approx(0.03713125)
    resumed = run_method("feddyn(alpha=0.5)", Quadratics, refused={(1, 0)}, cut=2)
    assert resumed.values() == run.values(), "the checkpoint has the terms"


ONE_OF_TWO = st.dictionaries(st.integers(1, 3), st.integers(0, 1), max_size=2).map(dict.items)


@settings(deadline=None, max_examples=8)
@given(st.floats(0.01, 2), st.integers(1, 3), ONE_OF_TWO, st.dictionaries(st.integers(1, 2), st.integers(0, 1)))
def test_h_is_the_mean_of_the_linear_terms(alpha, rounds, absent, refused):
    refused = {(number, node) for number, node in refused.items() if number < rounds and number not in dict(absent)}
    run = run_method(f"feddyn(alpha={alpha})", Quadratics, rounds=rounds, absent=set(absent), refused=refused)
    assert float(run.server[-1]["_sum.theta"][0]) == pytest.approx(sum(terms(run)), rel=1e-12, abs=1e-12)


def test_what_a_false_reply_has_done_to_the_linear_terms_ends():
    strategy, part = damaged(FedDyn)(alpha=1.0, weighting="uniform"), FedDynPart(FedDynOptions(alpha=1.0))
    result = Federation(FOUR, [part], steps=20, learning_rate=0.05).run(strategy, 24)
    assert np.abs(result - best_of(FOUR)).max() < 1e-3


def test_a_restarted_server_counts_nodes_that_are_away():
    task, part = QuadraticTask([1.0, 2.0], [[4.0], [-1.0]]), FedDynPart(FedDynOptions(alpha=1.0))
    strategy, restarted = FedDyn(alpha=1.0, weighting="uniform"), FedDyn(alpha=1.0, weighting="uniform")
    Federation(task, [part], steps=1, learning_rate=0.25).run(strategy, 1)
    restarted.load_state(strategy.state())
    assert restarted.h["theta"] == [(-1.0 + 0.5) / 2], "the nodes have moved by 1 and -0.5"


def test_without_regularisation_it_is_fedavg():
    still, fedavg = run_method("feddyn(alpha=0)", Points), run_method("fedavg", Points)
    assert same_rounds(still.arrays, fedavg.arrays)


def test_statistics_of_normalisations_are_averaged():
    run, fedavg = run_method("feddyn(alpha=1)", Points, rounds=1), run_method("fedavg", Points, rounds=1)
    assert "_sum.body.1.running_mean" not in run.server[0]
    assert not np.array_equal(run.arrays[0]["head.bias"], fedavg.arrays[0]["head.bias"])


@pytest.mark.parametrize(
    ("part", "value"), [("weighting", "num-examples"), ("server_optimizer", Adam(0.1)), ("server_optimizer", SGD(0.5))]
)
def test_the_server_corrects_the_plain_mean(part, value):
    assert (FedDyn().weighting, FedDyn().server_optimizer) == ("uniform", SGD(1.0))
    FedDyn(weighting="uniform", server_optimizer=SGD(1.0))
    with pytest.raises(ValueError, match=rf"^{part} = .*: must be .*; leave it out"):
        FedDyn(**{part: value})


@pytest.mark.parametrize("alpha", [-1.0, float("inf")])
def test_alpha_is_finite(alpha):
    with pytest.raises(ValueError, match=f"alpha = {alpha}: must be finite and at least 0"):
        FedDyn(alpha=alpha)


@pytest.mark.parametrize(("keys", "message"), [({"weighting": "num-examples"}, "weighting"), ({"dp": "local"}, "dp")])
def test_what_breaks_the_sum_is_refused_before_the_run(keys, message):
    with pytest.raises(Exception, match=message):
        run_method("feddyn", **keys)


def test_a_message_needs_a_linear_term_that_fits():
    quadratics = Federation(QuadraticTask([1.0], [[4.0]]), [FedDynPart()], steps=1, learning_rate=0.1)
    with pytest.raises(NodeError, match=r"the message has no ArrayRecord 'feddyn\.gradient'"):
        quadratics.run(BaseStrategy(), 1)
    assert FedDynPart().read({}, RecordDict()) == FedDynPart(), "an evaluation needs none"
