"""The local training of one node, as something to do together with that of other nodes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from tasks.base import Batch

from .training import Loss, Phase


@dataclass(frozen=True)
class Job:
    """The local training of one node.

    Parameters
    ----------
    model, plan, epoch, loss_of
        As for :func:`~clients.training.run_plan`.
    padded : callable
        :meth:`tasks.base.Task.padded`.
    alone : str
        Why the node cannot train together with others; empty if it can.
    """

    model: nn.Module
    plan: Sequence[Phase]
    epoch: Callable[[int], Iterator[Batch]]
    loss_of: Loss
    padded: Callable[[Sequence[Batch]], Sequence[Batch]]
    alone: str = ""
