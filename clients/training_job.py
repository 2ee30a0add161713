"""The local training of one node, as something to do together with that of other nodes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedapps.tasks.base import Batch, Task
from torch import nn

from .composed_parts import ComposedParts
from .training import Loss, Phase

#: ``epoch(batch_size)`` yields the batches of one epoch.
Epoch = Callable[[int], Iterator[Batch]]


@dataclass(frozen=True)
class Job:
    """The local training of one node.

    Parameters
    ----------
    model, plan, epoch, loss_of
        As for :func:`~fedapps.clients.training.run_plan`.
    padded : callable
        :meth:`fedapps.tasks.base.Task.padded`.
    alone : str
        Why the node cannot train together with others; empty if it can.
    """

    model: nn.Module
    plan: Sequence[Phase]
    epoch: Epoch
    loss_of: Loss
    padded: Callable[[Sequence[Batch]], Sequence[Batch]]
    alone: str = ""

    @classmethod
    def of(cls, task: Task, parts: ComposedParts, model: nn.Module, plan: Sequence[Phase], epoch: Epoch) -> "Job":
        """The job of a node with this task and these local parts."""
        alone = ""
        if not task.vectorises:
            alone = f"the task {task.name!r} cannot be vectorised over nodes"
        elif type(task).training_batches is not Task.training_batches:
            alone = f"the batches of the task {task.name!r} can depend on the model"
        elif part := parts.with_own_objective():
            alone = f"{part} changes the model or its loss"
        return cls(model, plan, epoch, parts.loss(task.loss), task.padded, alone)
