"""Small plans of local training, on the toy model and on a single number."""

import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from torch import nn
from toys import ToyModel, ToyTask

from fedapps.base.options import with_values

TASK = ToyTask()
DATA = TASK.data(1)


def toy_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ToyModel()


def train(model, *plan):
    """Returns what was trained, and the arrays after it."""
    torch.manual_seed(7)
    trained = run_plan(model, plan, lambda batch_size: TASK.batches(DATA, "train", batch_size), TASK.loss)
    return trained, get_arrays(model, model.state_dict())


def phase(**changes):
    return with_values(Phase(LocalTraining(epochs=2, learning_rate=0.1, batch_size=4)), changes)


class Scalar(nn.Module):
    """Loss ½ c (w − t)², whose gradient at w is c (w − t)."""

    def __init__(self, value=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))


def scalar_training(model, one_phase, slope=4.0, target=0.0):
    return run_plan(
        model,
        [one_phase],
        lambda batch_size: iter([{"x": torch.zeros(1)}]),
        lambda net, batch: (0.5 * slope * (net.w - target) ** 2).sum(),
    )
