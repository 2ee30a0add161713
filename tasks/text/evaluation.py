"""Texts in batches of similar length, and the share of them that a model classifies correctly."""

from collections.abc import Iterator

import torch
from fedapps.tasks.base import Batch, Metrics
from fedapps.tasks.node_data import fingerprint
from torch import Tensor, nn

from .nodes import CommonTest, translated
from .options import STATES

CHUNK = 128  # examples per batch in evaluation


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """The logits of a batch, from the states above frozen layers where these are kept."""
    inputs = [batch["ids"], batch["length"], *([batch[STATES]] if STATES in batch else [])]
    logits: Tensor = model(*inputs)
    return logits


def trimmed(examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``examples`` (``ids``, ``length``, ``label``) in this order, padded to their longest text."""
    for chosen in torch.split(order, batch_size):
        longest = int(examples["length"][chosen].max())
        batch = {name: tensor[chosen] for name, tensor in examples.items()}
        yield {**batch, **{name: batch[name][:, :longest] for name in ("ids", STATES) if name in batch}}


def by_length(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Yield batches of texts of similar length."""
    yield from trimmed(examples, examples["length"].argsort(stable=True), batch_size)


def on_common(model: nn.Module, common: CommonTest, *, private: bool) -> Metrics:
    """The accuracy on the common test examples, computed once for a model that several nodes have.

    It is not looked up for a model with a ``private`` embedding, because each node has another one.
    """
    key = b"" if private or model.training else fingerprint(model.state_dict().values())
    if key and key in common.scores:
        return common.scores[key]
    batches = (translated(batch, common.translation) for batch in by_length(common.examples, CHUNK))
    metrics = accuracy("test.global_", model, batches)
    if key:
        common.scores.clear()
        common.scores[key] = metrics
    return metrics


def accuracy(prefix: str, model: nn.Module, batches: Iterator[Batch]) -> Metrics:
    """The share of correctly classified examples, and the number of examples."""
    device = next(model.parameters()).device
    correct = total = 0
    for batch in batches:
        logits = logits_of(model, {name: tensor.to(device) for name, tensor in batch.items()})
        correct += int((logits.argmax(dim=1).cpu() == batch["label"]).sum())
        total += len(batch["label"])
    return {f"{prefix}accuracy": correct / total, f"{prefix}accuracy.count": float(total)}
