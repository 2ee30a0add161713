"""The network of a text classifier with an encoder of the library ``transformers``."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from .layers import frozen_patterns, layers_of, only_layers
from .networks import TextClassifier
from .options import Options

_SPLIT = 8  # texts from which a batch is computed in two halves if they are of different lengths


class Transformer(TextClassifier):
    """An encoder of the library ``transformers`` with a classifier on its first token, or on the mean of its tokens.

    ``embedding`` is the encoder's module ``embeddings``: words, positions, normalisation. The state of the first token
    passes through the encoder's pooler, as in BERT, or, without a pooler, as in DistilBERT, through a layer
    ``pre_classifier`` with ReLU; the mean of all states passes through neither, but is scaled to unit variance. Then
    follow ``dropout`` in [0, 1) and ``classifier``.

    Parameters
    ----------
    encoder : PreTrainedModel
    classes : int
    options : Options
        Those of the head (``pooling``, ``dropout``), of what is frozen, and of the ``precision``. Frozen layers are
        computed without dropout.
    """

    def __init__(self, encoder: Any, classes: int, options: Options) -> None:
        super().__init__()
        width = encoder.config.hidden_size
        self.embedding = encoder.embeddings
        self.encoder = encoder
        self.encoder.embeddings = _Given()
        self.means = options.pooling == "mean"
        self.pools = not self.means and getattr(encoder, "pooler", None) is not None
        if self.means and hasattr(encoder, "pooler"):
            encoder.pooler = nn.Identity()  # SqueezeBERT calls it always
        if not self.pools and not self.means:
            self.pre_classifier = nn.Linear(width, width)
        self.dropout = nn.Dropout(options.dropout)
        self.classifier = nn.Linear(width, classes)
        self.brief = options.precision == "bfloat16"
        self.given, self.frozen = options.model, options.frozen_layers
        self.still: tuple[nn.Module, ...] = ()
        if self.frozen:
            frozen_patterns(encoder, self.given, self.frozen, embedding=False)  # checks the number
            self.still = tuple(layers_of(encoder, self.given)[1][: self.frozen])
        if options.frozen_embedding:
            self.still = (*self.still, self.embedding)
        for module in self.still:
            module.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> "Transformer":
        """Set the mode; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self.still:
            module.eval()
        return self

    def forward(self, ids: Tensor, length: Tensor, states: Tensor | None = None) -> Tensor:
        """Compute logits ``[b, classes]`` of ``ids [b, L]``, or of the ``states [b, L, width]`` above frozen layers."""
        inputs, vectors = (ids, self.vectors) if states is None else (states, self.vectors_above)
        if torch.compiler.is_compiling() or not _padded_much(length):
            return self.head(vectors(inputs, length))
        length = length.to(inputs.device)
        order = length.argsort(descending=True, stable=True)
        halves = [
            vectors(inputs.index_select(0, rows)[:, : int(length[rows[0]])], length[rows]) for rows in order.chunk(2)
        ]
        return self.head(torch.cat(halves).index_select(0, order.argsort()))

    def vectors(self, ids: Tensor, length: Tensor) -> Tensor:
        """Compute a vector of each text, ``[b, width]``, from ids ``[b, L]``."""
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.brief):
            return self.pooled(self.embedding(ids), length)

    def vectors_above(self, states: Tensor, length: Tensor) -> Tensor:
        """Compute a vector of each text, ``[b, width]``, from the states above frozen layers, ``[b, L, width]``."""
        with (
            torch.autocast(states.device.type, torch.bfloat16, enabled=self.brief),
            only_layers(self.encoder, self.given, self.frozen, None),
        ):
            return self.pooled(states, length)

    @torch.no_grad()
    def frozen_states(self, ids: Tensor, length: Tensor) -> Tensor:
        """Compute the states ``[b, L, width]`` above a frozen embedding and frozen layers."""
        with (
            torch.autocast(ids.device.type, torch.bfloat16, enabled=self.brief),
            only_layers(self.encoder, self.given, 0, self.frozen),
        ):
            states: Tensor = self._states(self.embedding(ids), length).last_hidden_state
            return states.float()

    def head(self, vectors: Tensor) -> Tensor:
        """Compute logits ``[b, classes]`` from vectors of texts ``[b, width]``."""
        logits: Tensor = self.classifier(self.dropout(vectors))
        return logits

    def body(self, embedded: Tensor, length: Tensor) -> Tensor:
        return self.head(self.pooled(embedded, length))

    def pooled(self, embedded: Tensor, length: Tensor) -> Tensor:
        """Compute a vector of each text, ``[b, width]``, from what goes into the encoder, ``[b, L, width]``."""
        output = self._states(embedded, length)
        if self.means:
            states: Tensor = output.last_hidden_state
            mask = _mask(states, length)[..., None]
            mean = (states.float() * mask).sum(1) / mask.sum(1)
            return nn.functional.normalize(mean) * sqrt(mean.shape[1])
        if self.pools:
            pooled: Tensor = output.pooler_output
            return pooled.float()
        first: Tensor = self.pre_classifier(output.last_hidden_state[:, 0])
        return first.relu().float()

    def _states(self, embedded: Tensor, length: Tensor) -> Any:
        return self.encoder(inputs_embeds=embedded, attention_mask=_mask(embedded, length).long())


def _mask(states: Tensor, length: Tensor) -> Tensor:
    """Which places ``[b, L]`` are within their texts."""
    return torch.arange(states.shape[1], device=states.device) < length.to(states.device)[:, None]


def _padded_much(length: Tensor) -> bool:
    """Whether a batch costs at least a fifth less as two, of its longer and of its shorter texts."""
    if len(length) < _SPLIT:
        return False
    longest = length.sort(descending=True).values
    halves = longest.chunk(2)
    cost = sum(len(half) * int(half[0]) for half in halves)
    return cost <= 0.8 * len(length) * int(longest[0])


class _Given(nn.Module):
    """Replaces the embeddings of an encoder and passes its ``inputs_embeds`` on."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        (embedded,) = (x for x in (*inputs, *named.values()) if isinstance(x, Tensor) and x.is_floating_point())
        assert isinstance(embedded, Tensor)
        return embedded
