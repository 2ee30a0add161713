from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.strategies.optimizers import OPTIMIZER_NAMES, SGD, AdaGrad, Adam, Momentum, Yogi, optimizer_by_name
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

ALL = [SGD(0.5), Momentum(), Momentum(nesterov=True), AdaGrad(), Adam(), Adam(bias_correction=True), Yogi()]


def one(value, dtype=np.float64):
    return {"w": np.array(value, dtype)}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_sgd_with_rate_one_is_federated_averaging_bit_for_bit(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64", "int64", "bool"]))
    current, mean = ({"w": data.draw(hnp.arrays(dtype, shape))} for _ in range(2))
    result = SGD().step(current, mean)["w"]
    assert result.tobytes() == mean["w"].tobytes()
    assert (result.dtype, result.shape) == (mean["w"].dtype, mean["w"].shape)
    assert not np.shares_memory(result, mean["w"])


def test_sgd_by_hand():
    assert SGD(0.25).step(one([4.0, 0.0]), one([0.0, 8.0]))["w"].tolist() == [3.0, 2.0]


def test_momentum_by_hand():
    optimizer = Momentum(0.5, 0.5)
    theta = optimizer.step(one(8.0), one(4.0))  # v = 4
    assert theta["w"] == 6.0
    assert optimizer.step(theta, one(4.0))["w"] == 4.0  # v = 2 + 2
    assert Momentum(0.5, 0.5, nesterov=True).step(one(8.0), one(4.0))["w"] == 5.0  # Δ + m v = 6


def test_momentum_zero_is_sgd():
    rng = np.random.default_rng(0)
    current, mean = one(rng.normal(size=9), np.float32), one(rng.normal(size=9), np.float32)
    momentum, sgd = Momentum(0.3, 0.0).step(current, mean)["w"], SGD(0.3).step(current, mean)["w"]
    np.testing.assert_array_equal(momentum, sgd)


def test_adagrad_by_hand():
    optimizer = AdaGrad(1.0, tau=3.0)  # v = 9 + 16
    assert optimizer.step(one(8.0), one(4.0))["w"] == 8 - 4 / (5 + 3)
    assert AdaGrad(1.0, tau=1.0, initial_accumulator=0.0).step(one(8.0), one(5.0))["w"] == 8 - 3 / (3 + 1)


def test_adam_begins_at_tau_squared_as_in_the_paper():
    result = Adam(1.0, beta1=0.5, beta2=0.75, tau=2.0).step(one(10.0), one(4.0))["w"]
    np.testing.assert_allclose(result, 10 - 3 / (np.sqrt(0.75 * 4 + 0.25 * 36) + 2), rtol=1e-15)


def test_the_first_corrected_step_of_adam_is_the_learning_rate():
    result = Adam(0.125, tau=1e-12, bias_correction=True).step(one([5.0, -5.0]), one([4.0, 5.0]))["w"]
    np.testing.assert_allclose(result, [4.875, -4.875], rtol=1e-10)


def test_yogi_is_its_definition():
    rng, theta, m, v = np.random.default_rng(1), np.zeros(5), np.zeros(5), np.full(5, 0.1**2)
    optimizer, ours = Yogi(0.1, 0.9, 0.99, 0.1), one(theta)
    for _ in range(50):
        mean = rng.normal(size=5)
        delta = theta - mean
        m = 0.9 * m + 0.1 * delta
        v = v - 0.01 * delta**2 * np.sign(v - delta**2)
        theta = theta - 0.1 * m / (np.sqrt(v) + 0.1)
        ours = optimizer.step(ours, one(mean))
    np.testing.assert_allclose(ours["w"], theta, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_the_second_moment_of_yogi_is_never_negative(means):
    optimizer, theta = Yogi(), one(0.0)
    for mean in means:
        theta = optimizer.step(theta, one(mean))
        assert optimizer.state()["second.w"] >= 0


ORACLES = {
    "sgd": (SGD(0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (Momentum(0.05, 0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "nesterov": (
        Momentum(0.05, 0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
    "adagrad": (AdaGrad(0.1, tau=1e-6, initial_accumulator=0.0), lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6)),
    "adagrad-initial": (
        AdaGrad(0.1, tau=1e-3, initial_accumulator=0.25),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3, initial_accumulator_value=0.25),
    ),
    "adam": (
        Adam(0.01, 0.9, 0.999, tau=1e-8, bias_correction=True),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8),
    ),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_hundred_steps_agree_with_torch(name, dtype):
    optimizer, make = replace(ORACLES[name][0]), ORACLES[name][1]
    rng = np.random.default_rng(2)
    start = {"w": rng.normal(size=(4, 3)).astype(dtype), "s": np.array(rng.normal(), dtype)}
    theirs = {key: torch.tensor(value, requires_grad=True) for key, value in start.items()}
    oracle, ours = make(list(theirs.values())), start
    for _ in range(100):
        mean = {key: np.asarray(rng.normal(size=value.shape)).astype(dtype) for key, value in start.items()}
        ours = optimizer.step(ours, mean)
        for key, parameter in theirs.items():
            parameter.grad = parameter.detach() - torch.tensor(mean[key])
        oracle.step()
    rounding = 50 * np.finfo(dtype).eps
    for key, parameter in theirs.items():
        assert ours[key].dtype == dtype
        np.testing.assert_allclose(ours[key], parameter.detach().numpy(), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_every_kind_of_array_keeps_its_form(optimizer):
    optimizer = replace(optimizer)
    current = {
        "half": np.ones(3, np.float16),
        "single": np.ones((), np.float32),
        "double": np.ones((2, 0)),
        "steps": np.array(3),
        "mask": np.array([True, False]),
    }
    mean = {name: np.zeros_like(array) for name, array in reversed(current.items())}
    for _ in range(2):
        result = optimizer.step(current, mean)
    assert list(result) == list(current)
    for name, array in current.items():
        assert isinstance(result[name], np.ndarray)
        assert (result[name].dtype, result[name].shape) == (array.dtype, array.shape)
    assert result["steps"] == 0
    assert result["mask"].tolist() == [False, False]
    for name, moment in optimizer.state().items():
        if name.endswith((".half", ".single")):
            assert moment.dtype == np.float32


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_an_optimizer_that_goes_on_from_its_state_takes_the_same_steps(optimizer):
    rng = np.random.default_rng(3)
    means = [{"a.w": rng.normal(size=4).astype(np.float32)} for _ in range(6)]
    whole, first, second = replace(optimizer), replace(optimizer), replace(optimizer)
    theta = halfway = {"a.w": np.zeros(4, np.float32)}
    for index, mean in enumerate(means):
        theta = whole.step(theta, mean)
        if index < 3:
            halfway = first.step(halfway, mean)
        else:
            if index == 3:
                second.load_state(first.state())
            halfway = second.step(halfway, mean)
    np.testing.assert_array_equal(theta["a.w"], halfway["a.w"])


def test_the_state_is_a_copy_and_is_checked():
    optimizer = Adam()
    assert optimizer.state() == {}
    optimizer.load_state({})
    optimizer.step(one(1.0), one(0.0))
    state = optimizer.state()
    assert sorted(state) == ["first.w", "second.w", "steps"]
    state["first.w"][...] = 99
    assert optimizer.state()["first.w"] != 99
    for other in (SGD(), Momentum()):
        with pytest.raises(ValueError, match="another optimizer saved it"):
            other.load_state(state)
    del state["steps"]
    with pytest.raises(ValueError, match="no 'steps'"):
        optimizer.load_state(state)
    assert optimizer.state()["steps"] == 1


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_arrays_of_another_form_are_refused_before_anything_moves(optimizer):
    optimizer = replace(optimizer)
    with pytest.raises(ValueError, match="'w' must be"):
        optimizer.step(one([1.0, 2.0]), one([1.0]))
    assert optimizer.state() == {}


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (SGD, {"learning_rate": 0.0}, r"learning_rate = 0\.0: must be finite and above 0"),
        (Adam, {"learning_rate": float("nan")}, "learning_rate = nan"),
        (Adam, {"learning_rate": "0.1"}, r"learning_rate = '0\.1': must be finite and above 0"),
        (Momentum, {"momentum": 1.0}, r"momentum = 1\.0: must be at least 0 and below 1"),
        (Adam, {"beta1": -0.1}, r"beta1 = -0\.1"),
        (Yogi, {"beta2": 1.5}, r"beta2 = 1\.5"),
        (Yogi, {"tau": 0.0}, r"tau = 0\.0"),
        (AdaGrad, {"tau": -1.0}, r"tau = -1\.0"),
        (AdaGrad, {"initial_accumulator": -1.0}, r"initial_accumulator = -1\.0: must be at least 0"),
    ],
)
def test_ranges(kind, options, match):
    with pytest.raises(ValueError, match=match):
        kind(**options)


# -- by name ---------------------------------------------------------------------------------------------------

NAMED = {
    "sgd": SGD(0.2),
    "momentum": Momentum(0.2),
    "adagrad": AdaGrad(0.2, tau=0.05),
    "adam": Adam(0.2, tau=0.05),
    "yogi": Yogi(0.2, tau=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_every_name_makes_a_new_optimizer_with_the_numbers_given(name):
    named = optimizer_by_name(name, 0.2, tau=0.05)
    assert named == NAMED[name]
    named.step(one(2.0), one(1.0))
    assert optimizer_by_name(name, 0.2, tau=0.05).state() == {}


@pytest.mark.parametrize("name", ["", "SGD", "yogi ", "adamw"])
def test_an_unknown_name_is_an_error_that_lists_the_known(name):
    with pytest.raises(ValueError, match=f"server optimizer = {name!r}: must be one of 'sgd', 'momentum', "):
        optimizer_by_name(name, 0.1)
