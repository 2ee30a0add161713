"""Nodes that cannot train with others, and nodes that fail among others."""

import math

import numpy as np
import pytest
import torch
from fedapps.clients import joint_training
from fedapps.clients.joint_training import train_jobs
from fedapps.clients.named_arrays import get_arrays
from fedapps.clients.training import DivergedError
from joint_jobs import Net, assert_close, job, loss_of, state, trained
from training_plans import phase


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
        ({"net": Counted}, "the model has buffers"),
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
