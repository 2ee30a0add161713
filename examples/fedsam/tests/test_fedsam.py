"""FedSAM: one step by hand, and plain training without a radius."""

import torch
from fedapps.clients.local_part import PHASES, TRAINING_STEP
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedsam.method import FedSam, FedSamOptions, FedSamPart, sharp_step
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedapps.base.options import parse_options

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
    assert FedSamPart(0.0).plan(["phase"], Point(), None, None) == ["phase"]


def test_it_needs_the_step_for_itself_and_its_radius_comes_from_the_options():
    assert {PHASES, TRAINING_STEP} <= FedSamPart.exclusive
    assert FedSam(radius=0.125).local_parts() == [FedSamPart(0.125)]
    (error,) = parse_options(FedSamOptions, {"radius": -1.0}, "fedsam.")[1]
    assert error == "fedsam.radius = -1.0: must be a number at least 0"
