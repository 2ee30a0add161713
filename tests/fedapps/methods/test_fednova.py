"""FedNova: by hand, by its fixed point, and with equal numbers of steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from toys import same_rounds

from fedapps.methods.fednova import length

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731
ONE_PASS = {"steps": 0, "epochs": 1, "batch_size": 1}


class Uneven(Quadratics):
    """One example on the first node, three on the second: as many steps."""

    name = "uneven"
    sizes = (1, 3)


class SecondUneven(SecondWorld):
    """Two examples on the first node, four on the second."""

    name = "second-uneven"
    sizes = (2, 4)


def test_two_rounds_by_hand():
    assert run_method("fednova", Uneven, **ONE_PASS).values() == near(-0.019, -0.031939)
    weighted = run_method("fednova", Uneven, weighting="num-examples", **ONE_PASS)
    assert weighted.values() == near(-0.285625, -0.436114)
    assert run_method("fednova", SecondUneven, **ONE_PASS).values() == near(-0.142462, -0.224028)
    assert run_method("fedavg", SecondUneven, **ONE_PASS).values() == near(-0.28495, -0.434563)
    # The second node alone moves by 3 d, d = -.219; then d = (-.2657, .075117) and τ_eff = 2.
    assert run_method("fednova", Uneven, absent={(1, 0)}, **ONE_PASS).values() == near(-0.657, -0.466417)


def test_momentum_and_a_proximal_term_shorten_or_lengthen_the_steps():
    assert [length(1, 0.9), length(3, 0.9)] == near(1, 5.61)
    assert [length(2, 0.9), length(4, 0.9)] == near(2.9, 9.049)
    assert length(3, decay=0.1) == pytest.approx(1 + 0.9 + 0.81)
    assert min(length(1, decay=rate * mu) for rate in (0.001, 0.05, 0.1) for mu in (0.001, 0.01, 1.0)) == 1
    assert length(1, 0.99) == 1, "the server refuses less"
    assert length(0) == 0
    assert run_method("fednova", Uneven, rounds=1, momentum=0.9, **ONE_PASS).values() == near(-0.045952)


@given(st.integers(1, 50), st.floats(0.01, 0.95))
def test_a_length_is_the_sum_of_the_weights_of_the_gradients(steps, rate):
    weights = [sum(rate**k for k in range(steps - j)) for j in range(steps)]
    assert length(steps, momentum=rate) == pytest.approx(sum(weights))
    assert length(steps, decay=rate) == pytest.approx(sum((1 - rate) ** k for k in range(steps)))


@pytest.mark.parametrize("keys", [{}, {"momentum": 0.9}, {"weighting": "num-examples"}])
def test_with_equal_numbers_of_steps_it_is_fedavg(keys):
    nova, fedavg = (run_method(name, Points, batch_size=3, **keys) for name in ("fednova", "fedavg"))
    assert same_rounds(nova.arrays, fedavg.arrays)


def test_with_a_proximal_term_and_equal_numbers_of_steps_it_is_fedprox():
    nova, fedprox = (run_method(name, Points) for name in ("fednova(mu=0.5)", "fedprox(mu=0.5)"))
    assert same_rounds(nova.arrays, fedprox.arrays)


@settings(deadline=None, max_examples=3)
@given(st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_small_steps_end_where_the_mean_loss_is_least_whatever_their_numbers(counts):
    class Counted(Quadratics):
        name = f"counted-{counts[0]}-{counts[1]}"
        sizes = counts

    rounds = {"rounds": 60, "evaluate_every": 60, "learning_rate": 0.02}
    assert run_method("fednova", Counted, **ONE_PASS, **rounds).values()[-1] == pytest.approx(-0.25, abs=0.03)


def test_a_false_length_is_refused(monkeypatch):
    monkeypatch.setattr("fedapps.methods.fednova.length", lambda *given, **named: 0.5)
    with pytest.raises(Exception, match=r"metric fednova.norm is 0.5: a client returns a number of at least 1"):
        run_method("fednova", rounds=1)


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("fednova", {"optimizer": "adam"}, "optimizer = 'adam': must be 'sgd' with fednova"),
        ("fednova(mu=1)", {"momentum": 0.9}, "momentum = 0.9: must be 0 with fednova"),
        ("fednova(mu=20)", {}, "fednova.mu = 20"),
        ("fednova", {"aggregation": "median"}, "how much their updates are divided"),
    ],
)
def test_what_has_no_known_length_is_refused_before_the_run(method, keys, message):
    with pytest.raises(Exception, match=message):
        run_method(method, **keys)
