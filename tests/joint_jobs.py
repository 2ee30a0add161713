"""Jobs of small nodes that train at once, and the same nodes one after another."""

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.joint_training import Job, StackedPhase, train_jobs
from fedapps.clients.training import run_plan
from torch import nn
from torch.nn.functional import mse_loss

from fedapps.base.seeding import TorchState


class Net(nn.Module):
    """Two layers, optionally with dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x):
        return self.last(self.dropout(torch.tanh(self.first(x))))


def loss_of(model, batch):
    return mse_loss(model(batch["x"]), batch["y"])


def counted_passes(monkeypatch):
    """The number of nodes in each backward pass of nodes that train at once, a list that grows."""
    counts = []
    backward = StackedPhase._backward

    def counted(self, places, batch):
        counts.append(len(places))
        backward(self, places, batch)

    monkeypatch.setattr(StackedPhase, "_backward", counted)
    return counts


def job(number, plan, *, examples=10, net=Net, **changes):
    """The job of a node, with a model, examples and a prior of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(100 + number)
        model, x, y = net(), torch.randn(examples, 3), torch.randn(examples, 1)

    def epoch(batch_size):
        for chosen in torch.randperm(examples).split(batch_size):
            yield {"x": x[chosen], "y": y[chosen]}

    return Job(**{"model": model, "plan": plan, "epoch": epoch, "loss_of": loss_of, **changes})


def state(number):
    with torch.random.fork_rng():
        torch.manual_seed(number)
        return TorchState()


def trained(make, count):
    """What nodes get that train at once, and the parameters after it; the same one after another."""
    together, alone = [make(number) for number in range(count)], [make(number) for number in range(count)]
    states = [state(number) for number in range(count)]
    found = train_jobs(together, states)
    expected = []
    for number, one in enumerate(alone):
        with torch.random.fork_rng():
            torch.manual_seed(number)
            expected.append(run_plan(one.model, one.plan, one.epoch, one.loss_of))
            following = torch.rand(3)
        with states[number]:
            assert torch.equal(torch.rand(3), following)  # the generator is where it would be alone
    return (found, together), (expected, alone)


def assert_close(first, second):
    """The same steps, losses and parameters to rounding, and parameters that have moved."""
    (found, together), (expected, alone) = first, second
    for one, other, of_one, of_other in zip(found, expected, together, alone, strict=True):
        assert one.steps == other.steps > 0
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        for name, array in get_arrays(of_other.model, of_other.model.state_dict()).items():
            np.testing.assert_allclose(of_one.model.state_dict()[name], array, rtol=1e-4, atol=1e-5)
