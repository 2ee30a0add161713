"""The learning rate that falls, by hand, from round to round, and inside local training."""

import numpy as np
import pytest
import torch
from fedapps.clients.plateau import Plateau
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from toys import ToyModel, ToyTask


def test_halved_after_five_stale_epochs_and_again():
    plateau = Plateau(patience=5, factor=0.5, minimum=0.3, learning_rate=1.0)
    rates = []
    for loss in [2.0, 1.0, *[1.0] * 5, *[3.0] * 5, *[3.0] * 5]:
        plateau.epoch_ended(loss)
        rates.append(plateau.learning_rate)
    assert rates == [1.0] * 6 + [0.5] * 5 + [0.3] * 6  # 0.25 is below the minimum


def test_a_lower_loss_starts_the_count_again():
    plateau = Plateau(2, 0.5, 0.0, 1.0)
    for loss in [1.0, 1.5, 0.9, 1.5, 0.8, float("nan")]:
        plateau.epoch_ended(loss)
    assert (plateau.learning_rate, plateau.best, plateau.stale) == (1.0, 0.8, 1)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 39))
def test_it_is_torchs_schedule_also_across_rounds(losses, patience, cut):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = ReduceLROnPlateau(optimizer, factor=0.5, patience=patience - 1, threshold=0, min_lr=0.2, eps=0)
    mine = Plateau(patience, 0.5, 0.2, 1.0)
    for index, loss in enumerate(losses):
        if index == cut:
            kept, mine = mine.arrays(), Plateau(patience, 0.5, 0.2, 1.0)
            mine.resume(kept)
        reference.step(loss)
        mine.epoch_ended(loss)
        assert mine.learning_rate == optimizer.param_groups[0]["lr"]


def test_nothing_kept_is_a_fresh_start():
    plateau = Plateau(2, 0.5, 0.0, 1.0)
    plateau.resume({})
    assert (plateau.learning_rate, plateau.stale) == (1.0, 0)


@pytest.mark.parametrize("length", [{"epochs": 3}, {"epochs": 1, "steps": 5}])
def test_training_asks_after_every_epoch_and_steps_at_the_new_rate(length):
    task, model, asked = ToyTask(), ToyModel(), []
    data = task.data(1)
    plateau = Plateau(1, 0.0625, 0.0, 1.0)

    def validation_loss():
        asked.append(model.head.bias.item())
        return 1.0

    def linear(net, batch):
        return net.head.bias.sum()  # its gradient is 1: the bias falls by the rate in every step

    model.head.bias.data.zero_()
    training = LocalTraining(learning_rate=9.0, batch_size=3, optimizer="sgd", **length)
    phase = Phase(training, plateau=plateau, validation_loss=validation_loss)
    run_plan(model, [phase], lambda size: task.batches(data, "train", size), linear)
    # two steps an epoch: at 1, then, as the first loss is the best, at 1 again, then at 1/16
    expected = [-2.0, -4.0, -4.125] if "steps" not in length else [-2.0, -4.0, -4.0625]
    np.testing.assert_allclose(asked, expected)
