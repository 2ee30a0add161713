"""What a transformer gives for texts without training: the states above its frozen part, and mean vectors.

With a frozen embedding, the lowest frozen layers give the same states in every step, because frozen modules have no
dropout. They are computed once for each text of a node, and the common test texts once for each process, when they are
first read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

import torch
from fedapps.tasks.base import Batch
from torch import Tensor
from torch.nn.functional import normalize

from fedapps.base.seeding import torch_seed

from .encoder_network import Transformer
from .options import STATES, Options
from .transformer import transformer

_AT_ONCE = 128


def with_states(examples: Batch, options: Options) -> Batch:
    """Return examples (``ids``, ``length``) with the tensor :data:`~fedapps.tasks.text.options.STATES`.

    The states are float32 ``[n, L, width]``, and zeros beyond the end of a text. Without ``options.cached_states``, the
    examples are returned as they are.
    """
    return _WithStates(examples, options) if options.cached_states else examples


class _WithStates(Mapping[str, Tensor]):
    """Examples with their states. Data are also read where nothing is trained, and then no states are computed."""

    def __init__(self, examples: Batch, options: Options) -> None:
        self._examples = examples
        self._options = options

    def __getitem__(self, name: str) -> Tensor:
        return self._states if name == STATES else self._examples[name]

    def __contains__(self, name: object) -> bool:
        return name == STATES or name in self._examples

    def __iter__(self) -> Iterator[str]:
        yield from (*self._examples, STATES)

    def __len__(self) -> int:
        return len(self._examples) + 1

    @cached_property
    def _states(self) -> Tensor:
        model, length = _model(replace(self._options, partition_seed=0)), self._examples["length"]
        states = torch.zeros(*self._examples["ids"].shape, model.classifier.in_features)
        for rows, ids in _by_length(self._examples):
            found = model.frozen_states(ids, length[rows])
            inside = torch.arange(ids.shape[1]) < length[rows][:, None]
            states[rows, : ids.shape[1]] = found * inside[..., None]
        return states


@torch.no_grad()
def mean_vectors(examples: Batch, options: Options) -> Tensor:
    """Return the mean state of each text in the pretrained encoder, scaled to norm 1, float32 ``[n, width]``."""
    plain = replace(options, frozen_layers=0, frozen_embedding=False, cached_states=False, adapter="")
    model = _model(replace(plain, pooling="mean", partition_seed=0))
    vectors = torch.zeros(len(examples["ids"]), model.classifier.in_features)
    for rows, ids in _by_length(examples):
        vectors[rows] = normalize(model.vectors(ids, examples["length"][rows]))
    return vectors


def _by_length(examples: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows and ids of texts of similar length, for little padding."""
    for rows in torch.split(examples["length"].argsort(stable=True), _AT_ONCE):
        yield rows, examples["ids"][rows, : int(examples["length"][rows].max())]


@lru_cache(maxsize=1)
def _model(options: Options) -> Transformer:
    """A classifier of which only the pretrained frozen part is used."""
    with torch_seed(0, "text", "states"):
        return transformer(options, 2).eval()
