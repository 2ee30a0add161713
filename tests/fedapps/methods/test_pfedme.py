"""pFedMe: by hand, beside FedAvg, and the steps that it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from toys import same_bits, same_rounds

from fedapps.base.options import with_values
from fedapps.config.run_config import RunConfig
from fedapps.methods.pfedme import PFedMe

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731
#: So many steps that θ is the minimiser.
EXACT = "personal-steps=90,personal-learning-rate=0.1"


def test_two_worlds():
    assert run_method(f"pfedme(lambda=2,{EXACT})").values() == near(0.016089, 0.029326)
    run = run_method(f"pfedme(lambda=2,{EXACT},run.server-learning-rate=0.5)")  # β of the paper
    assert run.values() == near(0.008044, 0.015376)
    run = run_method("pfedme(lambda=2,personal-steps=2,personal-learning-rate=0.1)")
    assert run.values() == near(-0.014778, -0.027560)

    run = run_method(f"pfedme(lambda=1,{EXACT})", SecondWorld)
    assert run.values() == near(-0.023438, -0.044041)
    last = [float(r["arrays"].to_numpy_ndarrays()[0][0]) for kind, _, _, r in run.messages if kind == "train"][-2:]
    minimisers = [(a * b + x) / (a + 1) for x, (a, b) in zip(last, SecondWorld.nodes, strict=True)]
    assert minimisers == near(0.538174, -0.791107)
    # The node keeps θ of its last step, from which it made the last x = .9 x' + .1 θ.
    for theta, x, (a, b) in zip(run.memory("personal.theta"), last, SecondWorld.nodes, strict=True):
        before = (x - 0.1 * theta) / 0.9
        assert theta == pytest.approx((a * b + before) / (a + 1))


@pytest.mark.parametrize("keys", [{}, {"weight_decay": 0.1}, {"linear_decay": True, "steps": 1}])
def test_one_step_to_the_personal_model_is_fedavg(keys):
    given = {"learning_rate": 0.5} | keys
    run = run_method("pfedme(lambda=2,personal-steps=1,personal-learning-rate=0.5)", Points, **given)
    assert same_rounds(run.arrays, run_method("fedavg", Points, **given).arrays)
    for node in (0, 1):
        sent = [r["arrays"] for kind, n, _, r in run.messages if (kind, n) == ("train", node)][-1]
        for name, array in zip(sent, sent.to_numpy_ndarrays(), strict=True):
            assert np.array_equal(run.kept[node][f"memory.personal.{name}"], array)


@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_the_default_rate_of_the_personal_model_is_half_of_the_learning_rate(rate):
    default = run_method("pfedme(lambda=2)", Points, learning_rate=rate)
    half = run_method(f"pfedme(lambda=2,personal-learning-rate={rate / 2})", Points, learning_rate=rate)
    assert same_rounds(default.arrays, half.arrays)
    assert all(same_bits(default.kept[node], half.kept[node]) for node in (0, 1))


@settings(deadline=None, max_examples=5)
@given(st.floats(0.1, 15), st.floats(0.01, 1.9))
def test_the_fixed_point_of_nodes_that_agree_is_their_optimum(weight, product):
    class World(Quadratics):
        name = "agreed"
        nodes = ((1.0, 1.5), (3.0, 1.5))
        start = 1.5

    label = f"pfedme(lambda={weight},personal-learning-rate={min(0.1, 1 / weight)})"
    run = run_method(label, World, learning_rate=product / weight)
    assert run.values() == [1.5, 1.5]
    assert run.memory("personal.theta") == [1.5, 1.5]


@settings(deadline=None, max_examples=5)
@given(st.floats(0.5, 4), st.floats(-3, 3))
def test_x_lies_between_where_it_was_and_the_personal_model(weight, optimum):
    class World(Quadratics):
        name = "between"
        nodes = ((1.0, optimum), (1.0, optimum))

    run = run_method(f"pfedme(lambda={weight},{EXACT})", World, rounds=1, steps=1, learning_rate=0.2)
    theta = optimum / (1 + weight)
    assert run.memory("personal.theta") == pytest.approx([theta, theta])
    assert run.values() == pytest.approx([0.2 * weight * theta])


@pytest.mark.parametrize(
    ("label", "given", "said"),
    [
        ({}, {"optimizer": "adam"}, "optimizer = 'adam': must be 'sgd' with pfedme"),
        ({}, {"momentum": 0.9}, "momentum = 0.9: must be 0 with pfedme"),
        ({}, {"clip_norm": 1.0}, "clip-norm = 1: must be 0 with pfedme"),
        ({}, {"learning_rate": 0.2}, "learning-rate = 0.2 and pfedme.lambda = 15: their product must be below 2"),
        ({"personal_learning_rate": 0.2}, {}, "pfedme.personal-learning-rate = 0.2 and pfedme.lambda = 15"),
    ],
)
def test_what_diverges_or_has_no_meaning_is_refused(label, given, said):
    run = with_values(RunConfig(), {"optimizer": "sgd"} | given)
    ((_, message),) = PFedMe(**label).conflicts(run, Quadratics())
    assert message.startswith(said)
    assert not list(PFedMe().conflicts(with_values(RunConfig(), {"optimizer": "sgd"}), Quadratics()))
