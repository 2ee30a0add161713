"""Text classifiers: an embedding, which may stay private, and a body above it.

Both networks have the parameters ``embedding.*``, ``encoder.*`` and ``classifier.*``. Both map ``ids`` int32 ``[b, L]``
and ``length`` int64 ``[b]`` to logits ``[b, classes]``, which do not depend on ids beyond the end of a text.
"""

from copy import deepcopy
from functools import lru_cache
from typing import Any

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import DataError
from fedapps.tasks.profiles import need
from torch import Tensor, nn

from .lstm import LastStates
from .split_embedding import SplitEmbedding
from .vocabulary import TokenizerVocabulary


class TextClassifier(nn.Module):
    """An ``embedding`` followed by :meth:`body`."""

    embedding: nn.Module

    def forward(self, ids: Tensor, length: Tensor) -> Tensor:
        """Compute logits ``[b, classes]``."""
        return self.body(self.embedding(ids), length)

    def body(self, embedded: Tensor, length: Tensor) -> Tensor:
        """Compute logits ``[b, classes]`` from embedded texts ``[b, L, width]``."""
        raise NotImplementedError


class BiLstm(TextClassifier):
    """A bidirectional LSTM layer over word vectors, whose last states are classified (FedVocab, Section 4.1).

    With word vectors of 300 numbers and ``hidden`` = 300 the encoder has the paper's 1,444,800 parameters. ``dropout``
    in [0, 1) acts on the word vectors and on the last states.
    """

    embedding: nn.Embedding | SplitEmbedding

    def __init__(self, embedding: nn.Embedding | SplitEmbedding, classes: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.encoder = LastStates(embedding.embedding_dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * hidden, classes)
        self.embedding = embedding

    def body(self, embedded: Tensor, length: Tensor) -> Tensor:
        last = self.encoder(self.dropout(embedded), length)
        logits: Tensor = self.classifier(self.dropout(last))
        return logits


class Transformer(TextClassifier):
    """An encoder of the library ``transformers`` with a classifier on its first token.

    ``embedding`` is the encoder's module ``embeddings``: words, positions, normalisation. The state of the first token
    passes through the encoder's pooler, as in BERT, or, without a pooler, as in DistilBERT, through a layer
    ``pre_classifier`` with ReLU; then through ``dropout`` in [0, 1) and ``classifier``.
    """

    def __init__(self, encoder: Any, classes: int, *, dropout: float) -> None:
        super().__init__()
        width = encoder.config.hidden_size
        self.embedding = encoder.embeddings
        self.encoder = encoder
        self.encoder.embeddings = _Given()
        self.pools = getattr(encoder, "pooler", None) is not None
        if not self.pools:
            self.pre_classifier = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)
        self.train()

    def body(self, embedded: Tensor, length: Tensor) -> Tensor:
        places = torch.arange(embedded.shape[1], device=embedded.device)
        mask = places < length.to(embedded.device)[:, None]
        output = self.encoder(inputs_embeds=embedded, attention_mask=mask.long())
        logits: Tensor = self.classifier(self.dropout(self._pooled(output)))
        return logits

    def _pooled(self, output: Any) -> Tensor:
        if self.pools:
            pooled: Tensor = output.pooler_output
            return pooled
        first: Tensor = self.pre_classifier(output.last_hidden_state[:, 0])
        return first.relu()


class _Given(nn.Module):
    """Replaces the embeddings of an encoder and passes its ``inputs_embeds`` on."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        (embedded,) = (x for x in (*inputs, *named.values()) if isinstance(x, Tensor) and x.is_floating_point())
        assert isinstance(embedded, Tensor)
        return embedded


def transformer(name: str, classes: int, *, dropout: float, pretrained: bool) -> Transformer:
    """Return an encoder, from a folder or by its name on the Hugging Face hub, as a classifier.

    Parameters
    ----------
    name : str
        The folder or the name.
    classes : int
        The number of classes.
    dropout : float
        The dropout in [0, 1).
    pretrained : bool
        Whether to load the encoder's weights. Otherwise they are drawn from torch's global generator according to the
        configuration. The layers above are always drawn.

    Raises
    ------
    DataError
        The encoder is not available or has no embeddings.
    """
    encoder = deepcopy(_pretrained(name)) if pretrained else _drawn(name)
    _embeddings(encoder, name)
    return Transformer(encoder, classes, dropout=dropout)


def embeddings_of(name: str, *, pretrained: bool) -> nn.Module:
    """Return only the embeddings of an encoder; the parameters are those of :func:`transformer`."""
    return deepcopy(_embeddings(_pretrained(name) if pretrained else _drawn(name), name))


def _embeddings(encoder: Any, name: str) -> nn.Module:
    found = getattr(encoder, "embeddings", None)
    if not isinstance(found, nn.Module):
        raise DataError(f"the encoder {name!r} has no module `embeddings`; use an encoder such as BERT or DistilBERT")
    return found


@lru_cache(maxsize=16)
def load_tokenizer(name: str) -> TokenizerVocabulary:
    """Return the tokens of the encoder ``name`` (a folder, or on the hub). Raise :class:`DataError` without a
    tokenizer.
    """
    need("transformers", "text", f"the encoder {name!r}")
    from transformers import AutoTokenizer

    try:
        return TokenizerVocabulary(AutoTokenizer.from_pretrained(name).backend_tokenizer)
    except (OSError, ValueError, AttributeError) as error:
        raise _unavailable(name, "tokenizer.json", error) from error


@lru_cache(maxsize=4)
def _pretrained(name: str) -> Any:
    need("transformers", "text", f"the encoder {name!r}")
    from transformers import AutoModel

    # Weights that the file lacks, such as a pooler's, are drawn, identically in every process.
    with torch_seed(0, "text", "pretrained"):
        try:
            return AutoModel.from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise _unavailable(name, "config.json, model.safetensors", error) from error


def _drawn(name: str) -> Any:
    from transformers import AutoModel

    return AutoModel.from_config(load_config(name))


@lru_cache(maxsize=16)
def load_config(name: str) -> Any:
    """Return the configuration of the encoder ``name`` (a folder, or on the hub). Raise :class:`DataError` if none."""
    need("transformers", "text", f"the encoder {name!r}")
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise _unavailable(name, "config.json", error) from error


def _unavailable(name: str, files: str, error: Exception) -> DataError:
    return DataError(
        f"the encoder {name!r} (text.model, text.own-starts): {files} found neither in a folder of that name nor on "
        f"the Hugging Face hub. If the hub is unreachable, download the model elsewhere and name its folder. "
        f"({error})"
    )
