"""Layers of a transformer that stay as they are: which they are, and the states that they give."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedapps.base.errors import DataError


def layers_of(encoder: Any, name: str) -> tuple[str, nn.ModuleList]:
    """Return the path of the list of an encoder's layers, and the list.

    Raises
    ------
    DataError
        The encoder, called ``name`` in the message, has no such list.
    """
    count = encoder.config.num_hidden_layers
    for path, module in encoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return path, module
    raise DataError(
        f"text.frozen-layers: the encoder {name!r} has no list of its {count} layers; set text.frozen-layers = 0"
    )


def frozen_patterns(encoder: Any, name: str, frozen: int, *, embedding: bool) -> tuple[str, ...]:
    """Return glob patterns of the parameters below the first trained layer, as a classifier names them.

    Parameters
    ----------
    encoder : PreTrainedModel
    name : str
        Its name, for messages.
    frozen : int
        How many of the lowest layers are frozen.
    embedding : bool
        Whether the embedding is frozen, too.

    Raises
    ------
    DataError
        The encoder has fewer layers, or no list of them.
    """
    patterns = ("embedding.*",) if embedding else ()
    if not frozen:
        return patterns
    path, layers = layers_of(encoder, name)
    if frozen > len(layers):
        raise DataError(f"text.frozen-layers = {frozen}: the encoder {name!r} has {len(layers)} layers; use fewer")
    return (*patterns, *(f"encoder.{path}.{layer}.*" for layer in range(frozen)))


@contextmanager
def only_layers(encoder: Any, name: str, start: int, stop: int | None) -> Iterator[None]:
    """Let the encoder within this context have the layers ``start`` to ``stop`` (exclusive) alone."""
    path, layers = layers_of(encoder, name)
    parent, _, last = path.rpartition(".")
    holder = encoder.get_submodule(parent)
    setattr(holder, last, layers[start:stop])
    try:
        yield
    finally:
        setattr(holder, last, layers)
