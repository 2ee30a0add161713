"""Two predictions of one classifier: for balanced labels, and for examples with the label shares of its node."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_MARK = "_own_label_shares"
_ADDED = "_added_logits"


@contextmanager
def own_label_shares(model: nn.Module) -> Iterator[None]:
    """Let a classifier predict for examples with the label shares of its node while the context lasts.

    A task evaluates examples of the node's own distribution in this context, and examples common to all nodes outside
    of it. Only a model that was trained with adjusted logits distinguishes the two: its logits f_y are those of
    balanced labels, and f_y + τ log π_y those of the node's label shares π (Hong et al., Disentangling Label
    Distribution for Long-tailed Visual Recognition, CVPR 2021, Section 3.2, https://arxiv.org/abs/2012.00321; τ = 1
    there).
    """
    setattr(model, _MARK, True)
    try:
        yield
    finally:
        delattr(model, _MARK)


def predicts_for_own_shares(model: nn.Module) -> bool:
    """Whether the model is used within :func:`own_label_shares`."""
    return getattr(model, _MARK, False)


def adjust_logits(model: nn.Module, added: Tensor) -> None:
    """Let a classifier add τ log π to its logits in training, and within :func:`own_label_shares`.

    Parameters
    ----------
    model : Module
        Changed in place; it returns logits ``[b, classes]``.
    added : Tensor float64 [classes]
        τ log π.
    """

    def adjusted(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits + added.to(logits) if module.training or predicts_for_own_shares(module) else logits

    setattr(model, _ADDED, added)
    model.register_forward_hook(adjusted)


def added_logits(model: nn.Module) -> Tensor | None:
    """What :func:`adjust_logits` lets a model add; ``None`` for other models."""
    return getattr(model, _ADDED, None)
