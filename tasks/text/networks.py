"""The networks of text classifiers, and the LSTM with its word vectors.

A network is an embedding, which may stay private, and a body above it, with the parameters ``embedding.*``,
``encoder.*`` and ``classifier.*``. It maps ``ids`` int32 ``[b, L]`` and ``length`` int64 ``[b]`` to logits
``[b, classes]``, which do not depend on ids beyond the end of a text. The networks of the server and of the nodes
differ only in private parameters. Those with an encoder of the library ``transformers`` are in :mod:`.transformer`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from fedapps.tasks.profiles import PrivateParameters
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pack_padded_sequence

from fedapps.base.errors import DataError

from .options import Options, PrivateWords, private_words, vocabulary_source
from .vocabulary import DIGITS, SPECIAL, Vocabulary, is_digits
from .word_vectors import Vectors, drawn_vectors, node_vectors, private_seed, shared_vectors, with_unknown

#: The rows that are never trained. They are built like the rest of the model, and neither sent nor stored.
PUBLIC = "embedding.word_embeddings.public"


class TextClassifier(nn.Module):
    """An ``embedding`` followed by :meth:`body`."""

    embedding: nn.Module

    def forward(self, ids: Tensor, length: Tensor) -> Tensor:
        """Compute logits ``[b, classes]``."""
        return self.body(self.embedding(ids), length)

    def body(self, embedded: Tensor, length: Tensor) -> Tensor:
        """Compute logits ``[b, classes]`` from embedded texts ``[b, L, width]``."""
        raise NotImplementedError


class SplitEmbedding(nn.Module):
    """An embedding with the values of :class:`torch.nn.Embedding`, whose table consists of a public and a private part.

    The parameters are ``weight`` [public rows, d] and ``private`` [private rows, d]. A part without rows gets one
    unused row of zeros, because an empty parameter cannot be sent.

    Parameters
    ----------
    public, private : Tensor [rows, d]
        The initial vectors. Unused rows are allowed.
    places : Tensor int64 [numbers]
        The place of each number's vector: row ``row`` of the public part, or row ``-1 - row`` of the private part.
    """

    places: Tensor

    def __init__(self, public: Tensor, private: Tensor, places: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(_any_rows(public))
        self.private = nn.Parameter(_any_rows(private))
        self.register_buffer("places", places, persistent=False)  # determined by the words, which are never sent

    @classmethod
    def of(cls, table: Tensor, private: Sequence[bool]) -> "SplitEmbedding":
        """Split the rows of ``table`` [numbers, d]; ``private`` tells for each row whether it is private."""
        parts = [[row for row, is_private in enumerate(private) if is_private is part] for part in (False, True)]
        public, kept = (table[torch.tensor(rows, dtype=torch.int64)] for rows in parts)
        return cls(public, kept, places_of(private))

    @property
    def embedding_dim(self) -> int:
        """Numbers per vector."""
        return self.weight.shape[1]

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors ``[*ids.shape, d]`` of ``ids`` of any shape."""
        row = self.places[ids.long()]
        public = embedding(row.clamp(min=0), self.weight)
        private = embedding((-1 - row).clamp(min=0), self.private)
        return torch.where((row >= 0)[..., None], public, private)


def places_of(private: Sequence[bool]) -> Tensor:
    """Return the places of vectors (:class:`SplitEmbedding`) if each part keeps the order of the numbers."""
    mask = torch.tensor(private, dtype=torch.bool)
    return torch.where(mask, -mask.cumsum(0), (~mask).cumsum(0) - 1)


def _any_rows(table: Tensor) -> Tensor:
    return table if len(table) else table.new_zeros(1, table.shape[1])


class OwnRows(nn.Module):
    """An embedding with the values of :class:`torch.nn.Embedding`, of which some rows can be trained.

    The parameter ``weight`` [own rows, d] has the vectors of a node's pieces, the buffer ``public`` [numbers, d] the
    initial vectors of all.

    Parameters
    ----------
    table : Tensor [numbers, d]
        The initial vectors.
    own : sequence of int
        The rows to train.
    """

    public: Tensor
    places: Tensor

    def __init__(self, table: Tensor, own: tuple[int, ...]) -> None:
        super().__init__()
        rows = torch.tensor(own, dtype=torch.int64)
        self.weight = nn.Parameter(table[rows].clone())
        places = torch.full((len(table),), -1)
        places[rows] = torch.arange(len(rows))
        self.register_buffer("public", table)
        self.register_buffer("places", places, persistent=False)  # determined by the pieces, which are never sent

    @property
    def embedding_dim(self) -> int:
        """Numbers per vector."""
        return self.public.shape[1]

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors ``[*ids.shape, d]`` of ``ids`` of any shape."""
        row = self.places[ids.long()]
        trained = embedding(row.clamp(min=0), self.weight)
        return torch.where((row >= 0)[..., None], trained, embedding(ids.long(), self.public))

    def whole(self) -> Tensor:
        """Return all vectors ``[numbers, d]`` as one new table."""
        rows = (self.places >= 0).nonzero().flatten()
        return self.public.index_copy(0, rows, self.weight.detach()[self.places[rows]])


def keep_own_rows(module: Any, own: tuple[int, ...]) -> None:
    """Let the embeddings of an encoder train the rows ``own`` of their words alone, if they have such a table."""
    table = getattr(module, "word_embeddings", None)
    if isinstance(table, nn.Embedding):
        module.word_embeddings = OwnRows(table.weight.detach(), tuple(row for row in own if row < len(table.weight)))


class LastStates(nn.LSTM):
    """A bidirectional ``nn.LSTM`` layer that returns its state at the last token of each text (the first, backwards).

    Parameters and their names are those of ``nn.LSTM``. On the CPU, torch trains on padded texts about twice as fast as
    on packed ones. Padding changes no result: every text is read from the left, by the backward direction in reverse,
    and its state is taken at its last token, before the padding. On a GPU the texts are packed, as cuDNN supports it.
    Both ways agree up to rounding. ``torch.export`` and ``torch.compile`` capture a third way, without packing, sorting
    or trimming, as these depend on the lengths.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, inputs: Tensor, length: Tensor) -> Tensor:  # type: ignore[override]
        """Return the last states of both directions, ``[b, 2 hidden]``.

        Parameters
        ----------
        inputs : Tensor [b, L, width]
            Texts, padded with any finite values.
        length : Tensor int64 [b]
            Their lengths, from 1 to L.
        """
        if torch.compiler.is_compiling():
            return self.untrimmed(inputs, length)
        return self.packed(inputs, length) if inputs.is_cuda else self.padded(inputs, length)

    def packed(self, inputs: Tensor, length: Tensor) -> Tensor:
        """As :meth:`forward`, on packed texts."""
        texts = pack_padded_sequence(inputs, length.cpu(), batch_first=True, enforce_sorted=False)
        _, (last, _) = super().forward(texts)
        return last.transpose(0, 1).flatten(1)

    def padded(self, inputs: Tensor, length: Tensor) -> Tensor:
        """As :meth:`forward`, on padded texts: the longer half of the batch, and the shorter half with less padding."""
        length = length.to(inputs.device)
        order = length.argsort(descending=True, stable=True)
        halves = [
            self.untrimmed(inputs.index_select(0, rows)[:, : int(length[rows[0]])], length[rows])
            for rows in order.chunk(2)
        ]
        return torch.cat(halves).index_select(0, order.argsort())

    def untrimmed(self, inputs: Tensor, length: Tensor) -> Tensor:
        """As :meth:`forward`, on padded texts in their order and with all their padding."""
        last = (length - 1)[:, None, None]
        position = torch.arange(inputs.shape[1], device=inputs.device)[None, :, None]
        mirrored = inputs.gather(1, (last - position).clamp(min=0).expand_as(inputs))
        outputs = self._direction(inputs, ""), self._direction(mirrored, "_reverse")
        at_last = last.expand(-1, -1, self.hidden_size)
        return torch.cat([output.gather(1, at_last).squeeze(1) for output in outputs], dim=1)

    def _direction(self, inputs: Tensor, suffix: str) -> Tensor:
        """The outputs ``[b, L, hidden]`` of one direction, which reads ``inputs`` from the left."""
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [getattr(self, name + suffix) for name in names]
        zeros = inputs.new_zeros(1, inputs.shape[0], self.hidden_size)
        outputs: Tensor = torch.lstm(inputs, (zeros, zeros), weights, True, 1, 0.0, self.training, False, True)[0]
        return outputs


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


def recurrent_model(
    options: Options, privacy: PrivateParameters, classes: int, vocabulary: Vocabulary, key: str | None
) -> BiLstm:
    """Return the LSTM with an embedding for the words of ``vocabulary``.

    Draws come from torch's global generator and do not depend on the vocabulary or the node, so encoder and classifier
    have the same initial values everywhere. The vectors of words are drawn per word from one number of that generator.

    Parameters
    ----------
    options : Options
        The options of the task.
    privacy : PrivateParameters
        The private parameters of the method.
    classes : int
        The number of classes.
    vocabulary : Vocabulary
        The vocabulary.
    key : str or None
        The node's key; None for the server.
    """
    seed = int(torch.randint(2**62, ()))
    embedding = _word_embedding(options, privacy, vocabulary.words, seed, key)
    return BiLstm(embedding, classes, hidden=options.hidden, dropout=options.dropout)


def shaped_lstm(options: Options, privacy: PrivateParameters, classes: int, words: tuple[str, ...]) -> BiLstm:
    """Return the LSTM of :func:`recurrent_model` with word vectors that are not initialised; no file is read."""
    kept, width = private_words(options, privacy), options.embedding_width
    private = [word == DIGITS or is_digits(word) for word in words] if kept is PrivateWords.DIGITS else []
    rows = len(words) - sum(private)
    if kept is not PrivateWords.ALL and vocabulary_source(options, privacy) == "shared":
        rows = options.vocabulary_size + len(SPECIAL)
        if len(words) - sum(private) > rows:
            raise DataError(f"words: at most text.vocabulary-size = {options.vocabulary_size} are possible")
    shared = torch.empty(rows, width)
    if kept is PrivateWords.DIGITS:
        split = SplitEmbedding(shared, torch.empty(sum(private), width), places_of(private))
        return BiLstm(split, classes, hidden=options.hidden, dropout=options.dropout)
    return BiLstm(nn.Embedding(rows, width, _weight=shared), classes, hidden=options.hidden, dropout=options.dropout)


def _word_embedding(
    options: Options, privacy: PrivateParameters, words: tuple[str, ...], seed: int, key: str | None
) -> nn.Embedding | SplitEmbedding:
    kept, own_seed = private_words(options, privacy), private_seed(seed, privacy, key)
    if kept is not PrivateWords.DIGITS:
        if kept is PrivateWords.ALL:
            table = _start(words, options, own_seed, node_vectors(options, privacy, key))
        else:
            table = _public_start(words, options, privacy, seed)
        return nn.Embedding(len(table), table.shape[1], _weight=table)
    private = [word == DIGITS or is_digits(word) for word in words]
    private_ones = tuple(word for word, is_private in zip(words, private, strict=True) if is_private)
    public_ones = tuple(word for word, is_private in zip(words, private, strict=True) if not is_private)
    return SplitEmbedding(
        _public_start(public_ones, options, privacy, seed),
        _start(private_ones, options, own_seed, node_vectors(options, privacy, key)),
        places_of(private),
    )


def _public_start(words: tuple[str, ...], options: Options, privacy: PrivateParameters, seed: int) -> Tensor:
    return _public_table(words, options, privacy, seed, shared_vectors(options)).clone()


@lru_cache(maxsize=2)  # tens of megabytes that are the same for every message and every node
def _public_table(
    words: tuple[str, ...], options: Options, privacy: PrivateParameters, seed: int, known: Vectors | None
) -> Tensor:
    if vocabulary_source(options, privacy) != "shared":
        return _start(words, options, seed, known)
    # The server knows the size of a shared vocabulary but not its words, so vectors are drawn per row.
    rows = options.vocabulary_size + len(SPECIAL)
    drawn = torch.randn(rows, options.embedding_width, generator=torch.Generator().manual_seed(seed))
    return with_unknown(drawn, options.unknown)


def _start(words: tuple[str, ...], options: Options, seed: int, known: Vectors | None) -> Tensor:
    table = drawn_vectors(words, options.embedding_width, seed) if known is None else known.start(words, seed)
    return with_unknown(table, options.unknown) if words[: len(SPECIAL)] == SPECIAL else table
