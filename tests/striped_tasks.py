"""The task "vpr" on striped places: a tiny network, its training and its evaluation."""

from dataclasses import replace

from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.task import VprTask
from striped_places import SIZE

from fedapps.base.seeding import torch_seed

OPTIONS = Options(backbone="tiny@body", height=SIZE[0], width=SIZE[1], radius=1000.0, negatives=3)
SPOTS = 6


def task_with(**changes):
    return VprTask(replace(OPTIONS, **changes))


def model_of(task, seed=0):
    with torch_seed(seed):
        return task.build_model()


def train(task, model, data, epochs, seed=0):
    """As a client trains."""
    with torch_seed(seed):
        plan = [Phase(LocalTraining(epochs=epochs, learning_rate=0.01, batch_size=4))]
        trained = run_plan(model, plan, lambda size: task.training_batches(model, data, size), task.loss)
    model.eval()
    return trained


def evaluated(task, model, data):
    model.eval()
    return task.evaluate(model, data, seed=0, final=True).metrics
