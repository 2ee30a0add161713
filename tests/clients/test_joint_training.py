"""Nodes that train at once, against the same nodes one after another; nodes that cannot, and nodes that fail."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients import joint_training
from fedapps.clients.arrays import get_arrays
from fedapps.clients.joint_training import Job, train_jobs
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.rules import NodeLimits
from fedapps.clients.training import Plateau
from hypothesis import given
from hypothesis import strategies as st
from joint_jobs import Net, assert_close, counted_passes, job, loss_of, state, trained
from training_plans import Scalar, phase

from fedapps.base.errors import DivergedError

# -- by hand -------------------------------------------------------------------------------------------------------


def scalar_job(value, slope, steps, **changes):
    return Job(
        Scalar(value),
        [phase(optimizer="sgd", steps=steps, **changes)],
        lambda batch_size: iter([{"c": torch.tensor([slope])}]),
        half_square,
    )


def half_square(model, batch):
    return (0.5 * batch["c"] * model.w**2).sum()


def test_two_nodes_by_hand():
    """w ← w − 0.1 c w: the first node takes two steps with c = 4, the second one step with c = 2."""
    jobs = [scalar_job(1.0, 4.0, steps=2), scalar_job(3.0, 2.0, steps=1)]
    found = train_jobs(jobs, [state(0), state(1)])
    assert [one.model.w.item() for one in jobs] == pytest.approx([0.36, 2.4])
    assert [(one.steps, one.loss) for one in found] == [(2, pytest.approx(0.72)), (1, pytest.approx(9.0))]


@pytest.mark.parametrize("double", [False, True])
def test_each_gradient_is_clipped_by_itself(double):
    """Gradients 4 and 2, clipped to 2.5 at rate 0.1; also of parameters without dimensions and of double precision."""
    jobs = [scalar_job(1.0, slope, steps=1, clip_norm=2.5) for slope in (4.0, 2.0)]
    for one in jobs if double else ():
        one.model.w = torch.nn.Parameter(one.model.w.detach().double().reshape(()))
    found = train_jobs(jobs, [state(0), state(1)])
    assert [one.model.w.item() for one in jobs] == pytest.approx([0.75, 0.8])
    assert [one.loss for one in found] == [2.0, 1.0]


@pytest.mark.parametrize("alone", ["", "it does not want to"])
def test_the_steps_of_each_node_count_for_its_own_limits(alone):
    jobs = []
    for most in (2, 3, 1):
        with NodeLimits(steps=most).applied():
            jobs.append(replace(scalar_job(1.0, 4.0, steps=2), alone=alone))
    *trained_fully, refused = train_jobs(jobs, [state(number) for number in range(3)])
    assert [one.steps for one in trained_fully] == [2, 2]
    assert "takes at most 1 optimizer steps" in str(refused)


def test_each_node_has_its_own_prior_rate_and_learning_rate():
    def prior(target):
        return QuadraticPrior.around({"w": torch.tensor([target])}, 2.0)

    jobs = [
        scalar_job(1.0, 4.0, steps=1, prior=prior(3.0)),  # 4 + 2 (1 − 3) = 0
        scalar_job(1.0, 4.0, steps=1, rates={"w": torch.tensor(0.5)}),  # 0.5 · 0.1 · 4
        scalar_job(1.0, 4.0, steps=1, learning_rate=0.2),
    ]
    train_jobs(jobs, [state(number) for number in range(3)])
    assert [one.model.w.item() for one in jobs] == pytest.approx([1.0, 0.8, 0.2])


# -- as alone ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.sampled_from(["adam", "adamw", "rmsprop", "sgd"]),
    st.lists(st.integers(1, 12), min_size=2, max_size=4),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.5]),
)
def test_as_one_after_another(optimizer, sizes, batch_size, linear_decay, momentum, weight_decay, clip_norm):
    """For any number of examples, so that nodes end in different steps and have batches of different sizes."""
    plan = [
        phase(
            optimizer=optimizer,
            batch_size=batch_size,
            learning_rate=0.01,
            linear_decay=linear_decay,
            momentum=momentum,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
        )
    ]
    assert_close(*trained(lambda number: job(number, plan, examples=sizes[number]), len(sizes)))


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_phases_with_frozen_parameters_priors_and_rates(large, monkeypatch):
    monkeypatch.setattr(joint_training, "_LARGE", large)

    def make(number):
        prior = QuadraticPrior.around({"first.weight": torch.full((4, 3), float(number))}, 0.3)
        first = phase(trainable=["first.*"], learning_rate=0.01, prior=prior if number else None)
        second = phase(learning_rate=0.02, rates={"last.weight": torch.full((1, 4), 0.1 * number)})
        return job(number, [first, second], examples=5 + number)

    assert_close(*trained(make, 3))
    (_, together), _ = trained(lambda number: job(number, [phase(trainable=["last.*"])]), 2)
    for number, one in enumerate(together):
        assert torch.equal(one.model.first.weight, job(number, []).model.first.weight)
        assert all(parameter.requires_grad for parameter in one.model.parameters())


def test_parameters_that_are_frozen_throughout_stay_as_they_are():
    def make(number):
        one = job(number, [phase(learning_rate=0.1)], examples=5 + number)
        one.model.first.weight.requires_grad_(False)
        return one

    assert_close(*trained(make, 3))
    (_, together), _ = trained(make, 3)
    for number, one in enumerate(together):
        assert torch.equal(one.model.first.weight, make(number).model.first.weight)
        assert not torch.equal(one.model.last.weight, make(number).model.last.weight)
        assert not one.model.first.weight.requires_grad


def test_learning_rates_fall_on_each_nodes_own_plateau():
    made = {}

    def make(number):
        plateau = Plateau(1, 0.5, 0.0, 0.05)
        one = job(number, [], examples=4 + number)
        held = torch.linspace(-1, 1, 6).view(2, 3)
        plan = [
            phase(
                epochs=6,
                plateau=plateau,
                validation_loss=lambda: float(((one.model(held) - number) ** 2).mean().detach()),
            )
        ]
        made.setdefault(number, []).append(plateau)
        return job(number, plan, examples=4 + number, model=one.model)

    assert_close(*trained(make, 3))
    for together, alone in made.values():
        assert (together.learning_rate, together.stale) == (alone.learning_rate, alone.stale)
        assert together.best == pytest.approx(alone.best, rel=1e-4)
    assert len({plateaus[0].learning_rate for plateaus in made.values()}) > 1


class Scaled(Net):
    """A network with a constant that is not in the state, as the statistics of pixels."""

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, x):
        return super().forward(x * self.scale)


def test_each_node_has_its_own_constants(monkeypatch):
    passes = counted_passes(monkeypatch)
    plan = [phase(epochs=1, batch_size=10, learning_rate=0.01)]
    assert_close(*trained(lambda number: job(number, plan, net=lambda: Scaled(1.0 + number)), 3))
    assert passes == [3]


def test_batches_of_different_shapes_have_backward_passes_of_their_own(monkeypatch):
    passes = counted_passes(monkeypatch)

    def make(number):
        x = torch.ones(2, 1 + number % 2)
        return Job(Scalar(2.0), [phase(epochs=1)], lambda size: iter([{"x": x}]), summed)

    assert_close(*trained(make, 3))
    assert passes == [2, 1]


def summed(model, batch):
    return (model.w * batch["x"]).sum()


def same_as_alone(first, second):
    (found, together), (expected, alone) = first, second
    assert found == expected
    for one, other in zip(together, alone, strict=True):
        arrays = get_arrays(other.model, other.model.state_dict())
        assert all(one.model.state_dict()[name].numpy().tobytes() == array.tobytes() for name, array in arrays.items())


class Counted(Net):
    """A network with a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"net": lambda: Net(dropout=0.5)}, "torch cannot vectorise the loss: vmap: called random operation"),
        ({"net": Counted}, "the model has buffers that training can change"),
        ({"alone": "a reason"}, "a reason"),
    ],
)
def test_they_train_alone_bit_for_bit_and_the_log_says_why(changes, reason, monkeypatch):
    told = []
    monkeypatch.setattr(joint_training, "log", lambda level, message, *values: told.append(message % values))
    joint_training._say_once.cache_clear()
    same_as_alone(*trained(lambda number: job(number, [phase(), phase(epochs=1)], **changes), 2))
    assert len(told) == 1
    assert reason in told[0]


def test_nodes_with_losses_of_their_own_train_alone_bit_for_bit():
    def make(number):
        return job(number, [phase()], loss_of=lambda model, batch: number * loss_of(model, batch))

    same_as_alone(*trained(make, 2))


def test_nodes_with_steps_of_their_own_train_alone_bit_for_bit():
    own = phase(step=lambda model, batch, update: update(loss_of(model, batch)))
    same_as_alone(*trained(lambda number: job(number, [own]), 2))


def test_a_single_node_trains_bit_for_bit_as_always():
    same_as_alone(*trained(lambda number: job(number, [phase(), phase(epochs=1)]), 1))


def test_models_of_different_architectures_train_in_groups():
    class Other(Net):
        pass

    assert_close(*trained(lambda number: job(number, [phase(learning_rate=0.01)], net=(Net, Other)[number % 2]), 4))


def test_nodes_without_a_step_keep_their_parameters():
    (found, together), _ = trained(lambda number: job(number, [phase(epochs=0)]), 2)
    assert [(one.steps, one.loss) for one in found] == [(0, 0.0), (0, 0.0)]
    assert torch.equal(together[1].model.first.weight, job(1, []).model.first.weight)


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_node_that_diverges_is_told_and_changes_no_other_node():
    def poisoned(batch_size):
        yield {"x": torch.full((2, 3), math.nan), "y": torch.zeros(2, 1)}

    plan = [phase(learning_rate=0.01)]
    jobs = [job(0, plan), job(1, plan, epoch=poisoned), job(2, plan)]
    found = train_jobs(jobs, [state(number) for number in range(3)])
    assert isinstance(found[1], DivergedError)
    assert "learning rate 0.01" in str(found[1])
    _, (_, alone) = trained(lambda number: job(number, plan), 3)
    for number in (0, 2):
        np.testing.assert_allclose(
            jobs[number].model.last.weight.detach(), alone[number].model.last.weight.detach(), rtol=1e-4, atol=1e-5
        )


def test_a_node_whose_data_cannot_be_read_ends_alone():
    def broken(batch_size):
        raise OSError("no such disk")

    plan = [phase(linear_decay=True)]
    found = train_jobs([job(0, plan), job(1, plan, epoch=broken)], [state(0), state(1)])
    assert found[0].steps == 6
    assert str(found[1]) == "no such disk"


def test_a_node_without_batches_is_told():
    plan = [phase(steps=3)]
    found = train_jobs([job(0, plan), job(1, plan, epoch=lambda size: iter(()))], [state(0), state(1)])
    assert found[0].steps == 3
    assert isinstance(found[1], ValueError)
    assert "no training batches" in str(found[1])


def test_a_phase_that_matches_no_parameter_is_told():
    found = train_jobs([job(n, [phase(trainable=["none"])]) for n in range(2)], [state(0), state(1)])
    assert all("matches no parameter" in str(error) for error in found)
