"""FedSAM: one step by hand, and plain training without a radius."""

import pytest
import torch
from fedapps.clients.local_part import PHASES, TRAINING_STEP
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedsam.local_part import SharpnessAware, sharp_step
from fedsam.method import FedSam
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

SGD = LocalTraining(steps=2, learning_rate=0.25, optimizer="sgd")


class Point(nn.Module):
    """θ in one dimension."""

    def __init__(self, value=0.0):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([value]))


def loss(model, batch):
    return (0.5 * batch["a"] * (model.theta - batch["b"]) ** 2).mean()


def trained(radius, a=2.0, b=4.0, value=0.0):
    """θ after two steps on ½ a (θ - b)²."""
    model, batch = Point(value), {"a": torch.tensor([[a]]), "b": torch.tensor([[b]])}
    step = None if radius is None else lambda m, x, update: sharp_step(loss, m, x, update, radius)
    run_plan(model, [Phase(SGD, step=step)], lambda size: iter([batch]), loss)
    return model.theta.item()


def test_two_steps_worked_out_by_hand():
    # g(θ) = 2 (θ - 4), taken at θ - ½: 0 -> 0 - ¼ (-9) = 2.25 -> 2.25 - ¼ (-4.5) = 3.375.
    assert trained(0.5) == 3.375


@given(st.floats(0.25, 2, width=32), st.floats(-4, 4, width=32), st.floats(-4, 4, width=32))
def test_without_a_radius_it_is_plain_training(a, b, value):
    assert trained(0.0, a, b, value) == trained(None, a, b, value)
    assert SharpnessAware(0.0).plan(["phase"], Point(), None, None) == ["phase"]


def test_it_needs_the_step_for_itself_and_its_radius_comes_from_the_message():
    assert {PHASES, TRAINING_STEP} <= SharpnessAware.exclusive
    part = FedSam().local_parts()[0].read({"sam-radius": 0.125}, None)
    assert part.sam_radius == 0.125
    with pytest.raises(ValueError, match="sam-radius"):
        part.read({"sam-radius": -1.0}, None)
