"""Batches of padded texts without more padding than they need."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import Batch


def trimmed(examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Batches of ``examples`` (``ids``, ``length``, ``label``) in an order, each as long as its longest text."""
    for chosen in torch.split(order, batch_size):
        longest = int(examples["length"][chosen].max())
        batch = {name: tensor[chosen] for name, tensor in examples.items()}
        yield {**batch, "ids": batch["ids"][:, :longest]}


def by_length(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Batches of texts of like length."""
    yield from trimmed(examples, examples["length"].argsort(stable=True), batch_size)


@dataclass(frozen=True, eq=False)
class CommonTest:
    """Test examples that are the same for all nodes, kept once for all of them.

    ``translation`` int32 ``[words]`` turns their ids into those of one node; ``None`` where all nodes have the same.
    """

    examples: Batch
    translation: Tensor | None

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """The examples in the node's ids, texts of like length together."""
        for batch in by_length(self.examples, batch_size):
            yield translated(batch, self.translation)


def translated(batch: Batch, translation: Tensor | None) -> Batch:
    """``batch`` with the ids that ``translation`` says, or as it is."""
    return batch if translation is None else {**batch, "ids": translation[batch["ids"].long()]}
