"""Batches of padded texts with as little padding as possible."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from fedapps.tasks.base import Batch
from torch import Tensor


def trimmed(examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``examples`` (``ids``, ``length``, ``label``) in this order, padded to their longest text."""
    for chosen in torch.split(order, batch_size):
        longest = int(examples["length"][chosen].max())
        batch = {name: tensor[chosen] for name, tensor in examples.items()}
        yield {**batch, "ids": batch["ids"][:, :longest]}


def by_length(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Yield batches of texts of similar length."""
    yield from trimmed(examples, examples["length"].argsort(stable=True), batch_size)


@dataclass(frozen=True, eq=False)
class CommonTest:
    """Test examples that are common to all nodes and stored once.

    ``translation`` int32 ``[words]`` maps their ids to those of one node; ``None`` if all nodes have the same ids.
    """

    examples: Batch
    translation: Tensor | None

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield the examples with the node's ids, texts of similar length together."""
        for batch in by_length(self.examples, batch_size):
            yield translated(batch, self.translation)


def translated(batch: Batch, translation: Tensor | None) -> Batch:
    """Return ``batch`` with translated ids."""
    return batch if translation is None else {**batch, "ids": translation[batch["ids"].long()]}
