"""The models of the server and of nodes, which are alike but for what is private."""

from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tasks.base import DataError
from tasks.private_parameters import PrivateParameters
from tasks.seeding import torch_seed

from .glove import Vectors
from .networks import BiLstm, Transformer, embeddings_of, load_config, transformer
from .options import Options
from .scope import Kept, is_private, kept_words, source_of_words
from .split_embedding import SplitEmbedding, places_of
from .starts import dealt_start, node_vectors, private_seed, shared_vectors
from .vocabulary import DIGITS, SPECIAL, Vocabulary, is_digits
from .word_vectors import drawn_vectors


def recurrent_model(
    options: Options, privacy: PrivateParameters, classes: int, vocabulary: Vocabulary, key: str | None
) -> BiLstm:
    """The LSTM with an embedding for the words of ``vocabulary``, initialised from torch's global generator.

    ``key`` is the node's, ``None`` for the server. What is drawn from the generator depends on neither, so that
    encoder and classifier begin alike everywhere; the vectors of words are drawn by the word from one number of it.
    """
    seed = int(torch.randint(2**62, ()))
    embedding = _word_embedding(options, privacy, vocabulary.words, seed, key)
    return BiLstm(embedding, classes, hidden=options.hidden, dropout=options.dropout)


def _word_embedding(
    options: Options, privacy: PrivateParameters, words: tuple[str, ...], seed: int, key: str | None
) -> nn.Embedding | SplitEmbedding:
    kept, own_seed = kept_words(options, privacy), private_seed(seed, privacy, key)
    if kept is not Kept.DIGITS:
        if kept is Kept.ALL:
            table = _start(words, options, own_seed, node_vectors(options, privacy, key))
        else:
            table = _public_start(words, options, privacy, seed)
        return nn.Embedding(len(table), table.shape[1], _weight=table)
    private = [word == DIGITS or is_digits(word) for word in words]
    own = tuple(word for word, is_own in zip(words, private, strict=True) if is_own)
    others = tuple(word for word, is_own in zip(words, private, strict=True) if not is_own)
    return SplitEmbedding(
        _public_start(others, options, privacy, seed),
        _start(own, options, own_seed, node_vectors(options, privacy, key)),
        places_of(private),
    )


def _public_start(words: tuple[str, ...], options: Options, privacy: PrivateParameters, seed: int) -> Tensor:
    return _public_table(words, options, privacy, seed).clone()


@lru_cache(maxsize=2)  # tens of megabytes that begin alike with every message and on every node
def _public_table(words: tuple[str, ...], options: Options, privacy: PrivateParameters, seed: int) -> Tensor:
    if source_of_words(options, privacy) != "shared":
        return _start(words, options, seed, shared_vectors(options))
    # The server, which does not know a shared vocabulary's words, knows its size: row by row, not word by word.
    rows = options.vocabulary_size + len(SPECIAL)
    return torch.randn(rows, options.embedding_width, generator=torch.Generator().manual_seed(seed))


def _start(words: tuple[str, ...], options: Options, seed: int, known: Vectors | None) -> Tensor:
    if known is None:
        return drawn_vectors(words, options.embedding_width, seed)
    return known.start(words, seed)


def transformer_model(
    options: Options, privacy: PrivateParameters, classes: int, vocabulary: Vocabulary, key: str | None
) -> Transformer:
    """The pretrained or drawn encoder as a classifier; arguments as of :func:`recurrent_model`.

    Raises :class:`DataError` for embeddings that a method cannot keep as it would: without a table of words, of
    another width than the encoder's, or with a part that is shared where the node begins with another encoder's.
    """
    model = transformer(options.model, classes, dropout=options.dropout, pretrained=options.weights == "pretrained")
    seed = private_seed(int(torch.randint(2**62, ())), privacy, key)
    if kept_words(options, privacy) is Kept.DIGITS:
        _split(model.embedding, vocabulary.words, options)
    if not privacy.own_start or key is None:
        return model
    if dealt := dealt_start(options, privacy, key):
        _exchange(model, dealt, options, privacy, seed)
    else:
        _draw(model.embedding, privacy, seed, load_config(options.model))
    return model


def _split(embedding: Any, words: tuple[str, ...], options: Options) -> None:
    table = getattr(embedding, "word_embeddings", None)
    if not isinstance(table, nn.Embedding):
        raise DataError(
            f"text.model = {options.model!r}: its embeddings have no table `word_embeddings` whose rows of digits "
            "could stay private; take an encoder such as BERT or DistilBERT"
        )
    rows = len(table.weight)
    private = [is_digits(word) for word in words[:rows]]
    embedding.word_embeddings = SplitEmbedding.of(table.weight.detach(), private + [False] * (rows - len(private)))


def _exchange(model: Transformer, dealt: str, options: Options, privacy: PrivateParameters, seed: int) -> None:
    wanted, found = (load_config(name).hidden_size for name in (options.model, dealt))
    if found != wanted:
        raise DataError(
            f"text.own-starts: the embeddings of {dealt!r} have {found} numbers per token, but the encoder text.model "
            f"= {options.model!r} reads {wanted}; name encoders of the same width"
        )
    with torch_seed(seed):
        embedding = embeddings_of(dealt, pretrained=options.weights == "pretrained")
    names = {f"embedding.{name}" for name, _ in chain(model.embedding.named_parameters(), embedding.named_parameters())}
    if shared := sorted(name for name in names if not is_private(name, privacy)):
        raise DataError(
            f"text.own-starts = {options.own_starts!r}: nodes with embeddings of different encoders cannot share "
            f"{', '.join(shared)}; leave it empty, or take a method that keeps embedding.* private"
        )
    model.embedding = embedding.train()


@torch.no_grad()
def _draw(embedding: nn.Module, privacy: PrivateParameters, seed: int, config: Any) -> None:
    """Draw the private tables anew, as the encoder's configuration has it; normalisation begins as it is."""
    own = torch.Generator().manual_seed(seed)
    for name, parameter in embedding.named_parameters():
        if parameter.ndim > 1 and is_private(f"embedding.{name}", privacy):
            parameter.normal_(0, config.initializer_range, generator=own)
