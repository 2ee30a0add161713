"""Nodes that train at once, against the same nodes one after another."""

import pytest
import torch
from fedapps.clients.joint_training import train_jobs
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.plateau import Plateau
from fedapps.clients.stacked_phase import StackedPhase
from fedapps.clients.training_job import Job
from fedapps.tasks.padding import zero_padded
from hypothesis import given
from hypothesis import strategies as st
from joint_jobs import assert_close, job, state, trained, unpadded
from training_plans import Scalar, phase

# -- by hand -------------------------------------------------------------------------------------------------------


def scalar_job(value, slope, steps, **changes):
    return Job(
        Scalar(value),
        [phase(optimizer="sgd", steps=steps, **changes)],
        lambda batch_size: iter([{"c": torch.tensor([slope])}]),
        half_square,
        unpadded,
    )


def half_square(model, batch):
    return (0.5 * batch["c"] * model.w**2).sum()


def test_two_nodes_by_hand():
    """w ← w − 0.1 c w: the first node takes two steps with c = 4, the second one step with c = 2."""
    jobs = [scalar_job(1.0, 4.0, steps=2), scalar_job(3.0, 2.0, steps=1)]
    found = train_jobs(jobs, [state(0), state(1)])
    assert [one.model.w.item() for one in jobs] == pytest.approx([0.36, 2.4])
    assert [(one.steps, one.loss) for one in found] == [(2, pytest.approx(0.72)), (1, pytest.approx(9.0))]


def test_each_gradient_is_clipped_by_itself():
    """Gradients 4 and 2, clipped to 2.5 at rate 0.1."""
    jobs = [scalar_job(1.0, 4.0, steps=1, clip_norm=2.5), scalar_job(1.0, 2.0, steps=1, clip_norm=2.5)]
    train_jobs(jobs, [state(0), state(1)])
    assert [one.model.w.item() for one in jobs] == pytest.approx([0.75, 0.8])


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
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.5]),
)
def test_as_one_after_another(optimizer, sizes, batch_size, linear_decay, weight_decay, clip_norm):
    """For any number of examples, so that nodes end in different steps and have batches of different sizes."""
    plan = [
        phase(
            optimizer=optimizer,
            batch_size=batch_size,
            learning_rate=0.01,
            linear_decay=linear_decay,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
        )
    ]
    assert_close(*trained(lambda number: job(number, plan, examples=sizes[number]), len(sizes)))


def test_phases_with_frozen_parameters_priors_and_rates():
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


def test_padding_joins_batches_of_different_widths(monkeypatch):
    """Without padding each node has a backward pass of its own, with it there is one for all."""
    passes = []
    backward = StackedPhase._backward
    monkeypatch.setattr(
        StackedPhase,
        "_backward",
        lambda self, places, batch: passes.append(len(places)) or backward(self, places, batch),
    )

    def make(padded):
        def of(number):
            x = torch.ones(2, 1 + number)
            return Job(Scalar(2.0), [phase(epochs=1)], lambda size: iter([{"x": x}]), summed, padded)

        return of

    assert_close(*trained(make(unpadded), 3))
    assert passes == [1, 1, 1]
    passes.clear()
    assert_close(*trained(make(zero_padded), 3))
    assert passes == [3]


def summed(model, batch):
    return (model.w * batch["x"]).sum()
