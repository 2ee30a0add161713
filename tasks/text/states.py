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

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed

from .encoder_network import Transformer
from .options import STATES, Options
from .transformer import load_tokenizer, transformer
from .vocabulary import padded

_AT_ONCE = 128
#: What an encoder raises that needs other inputs, or other modules.
_UNSUITABLE = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
_ROUNDING = 1e-4  # by which numbers may differ that are computed in another order, relative to the largest


@lru_cache(maxsize=4)
def check_encoder(options: Options) -> None:
    """Compute two texts with an encoder as a run does.

    Raises
    ------
    DataError
        The encoder is not available (:func:`~fedapps.tasks.text.transformer.transformer`), cannot compute from
        embeddings and a mask, reads beyond the end of a text, or gives something else from the states above its frozen
        layers.
    """
    with torch_seed(0, "text", "check"), torch.no_grad():
        model = transformer(replace(options, precision="float32"), 2).eval()
        texts = padded(load_tokenizer(options.model).encode(["x 1 " * options.length, "x"], options.length))
        ids, length = texts["ids"], texts["length"]
        kind = f"{options.model!r} ({type(model.encoder).__name__})"
        other = "use an encoder such as BERT, DistilBERT, RoBERTa, MPNet or ModernBERT"
        try:
            together, alone = model(ids, length), model(ids[1:, : int(length[1])], length[1:])
        except _UNSUITABLE as error:
            raise DataError(
                f"text.model = {kind} needs more than the embeddings of a text and a mask "
                f"({error or type(error).__name__}); {other}"
            ) from error
        if not _close(together[1:], alone, 100 * _ROUNDING):
            raise DataError(
                f"text.model = {kind} reads beyond the end of a text, so that its answers depend on the other texts of "
                f"a batch; {other}"
            )
        if not options.cached_states:
            return
        advice = "set text.cached-states = false"
        try:
            above = model(ids, length, model.frozen_states(ids, length))
        except _UNSUITABLE as error:
            raise DataError(
                f"text.cached-states = true: {kind} cannot compute its upper layers alone ({error}); {advice}"
            ) from error
        if not _close(above, together, _ROUNDING):
            raise DataError(
                f"text.cached-states = true: {kind} gives something else when its upper layers are computed alone; "
                f"{advice}"
            )


def _close(states: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return bool((states - wanted).abs().max() <= tolerance * wanted.abs().max())


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
            frozen = model.frozen_states(ids, length[rows])
            inside = torch.arange(ids.shape[1]) < length[rows][:, None]
            states[rows, : ids.shape[1]] = frozen * inside[..., None]
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
