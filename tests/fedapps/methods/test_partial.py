"""FedBN: which parameters and buffers stay on the node."""

from typing import ClassVar

import pytest
import torch
from fedapps.tasks.profiles import PrivateParameters
from hypothesis import given
from hypothesis import strategies as st
from method_worlds import BodyAndHead, run_method
from quadratics import QuadraticTask
from torch import nn

from fedapps.app.strategy import shared_names
from fedapps.config.parsing import ConfigError, parse
from fedapps.methods.partial import FedBN


class _Shift(nn.GroupNorm):
    """A normalisation layer with a single parameter, v, which starts at 0."""

    def __init__(self):
        super().__init__(1, 1, affine=False)
        self.v = nn.Parameter(torch.zeros(1, dtype=torch.float64))


class BodyAndShift(BodyAndHead):
    """Node i minimises ½ a_i (u + v - b_i)² + ½ v², where v belongs to a normalisation layer."""

    name = "body-and-shift"

    def build_model(self):
        return nn.ModuleDict({"body": super().build_model()["body"], "head": _Shift()})


def task_with(module):
    """A task whose model is ``module``."""

    class Modelled(QuadraticTask):
        name: ClassVar[str] = "modelled"

        def build_model(self):
            torch.rand(3)  # a draw, as initialisation takes
            return module

    return Modelled([1.0], [[0.0]])


def network():
    block = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    return nn.ModuleDict(
        {"block": block, "norm": nn.LayerNorm(4), "group": nn.GroupNorm(1, 2), "head": nn.Linear(4, 1)}
    )


def test_two_rounds_by_hand():
    """Those of FedPer with the normalisation layer as head."""
    run = run_method("fedbn", BodyAndShift)
    assert run.values("body.u") == pytest.approx([-0.03, -0.00385], abs=2e-6)
    assert run.private("head.v") == pytest.approx([0.5661, -0.5538], abs=2e-6)
    assert list(run.arrays[0]) == ["body.u"]


def test_parameters_and_buffers_of_normalisation_modules_are_private():
    task, model = task_with(network()), network()
    private = FedBN().private(task)
    shared = shared_names(private, (), model.state_dict())
    assert shared == ("block.0.weight", "block.0.bias", "head.weight", "head.bias")
    assert set(private.patterns) == {
        "block.1.weight", "block.1.bias", "block.1.running_mean", "block.1.running_var", "block.1.num_batches_tracked",
        "norm.weight", "norm.bias", "group.weight", "group.bias",
    }  # fmt: skip


def test_without_normalisation_nothing_is_private_as_in_fedavg():
    private = FedBN().private(QuadraticTask([1.0], [[0.0]]))
    assert private == PrivateParameters()
    assert shared_names(private, (), ["theta"]) == ("*",)


@pytest.mark.parametrize(
    "module", [nn.BatchNorm1d(2), nn.InstanceNorm2d(2, affine=True), nn.RMSNorm(2), nn.SyncBatchNorm(2)]
)
def test_every_kind_of_normalisation_is_found(module):
    names = set(nn.Sequential(module).state_dict())
    assert set(FedBN().private(task_with(nn.Sequential(module))).patterns) == names


@given(st.lists(st.sampled_from(["linear", "norm"]), min_size=1, max_size=6))
def test_what_stays_and_what_travels_is_the_whole_model(kinds):
    model = nn.Sequential(*(nn.Linear(2, 2) if kind == "linear" else nn.BatchNorm1d(2) for kind in kinds))
    private = set(FedBN().private(task_with(model)).patterns)
    stays = {f"{i}.{name}" for i, kind in enumerate(kinds) if kind == "norm" for name in model[i].state_dict()}
    assert private == stays


def test_the_draws_of_the_caller_are_left_alone():
    task = task_with(network())
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    FedBN().private(task)
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("method", "task", "reason"),
    [
        ("fedbn", "lqr", "its model has no normalisation layers"),
        ("lg-fedavg", "vpr", "its model has no body under a head"),
        ("q-ffl", "vpr", "its examples are mined with the model in training"),
        ("ifca", "vpr", "its examples are mined with the model in training"),
    ],
)
def test_a_task_without_what_the_method_needs_is_refused(method, task, reason):
    with pytest.raises(ConfigError, match=f"methods: '{method}' has no meaning for task '{task}', because {reason}"):
        parse({"task": task, "methods": method, "collect-after": 0})


def test_momentum_is_of_sgd_alone():
    with pytest.raises(ConfigError, match=r"momentum = 0.9: must be 0 with optimizer = 'adam'"):
        parse({"task": "lqr", "methods": "fedavg", "collect-after": 0, "momentum": 0.9})
