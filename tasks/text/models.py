"""The models of the server and of the nodes, which differ only in private parameters."""

from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import DataError
from fedapps.tasks.profiles import PrivateParameters
from torch import Tensor, nn

from .glove import Vectors
from .initial_vectors import assigned_start, node_vectors, private_seed, shared_vectors
from .networks import BiLstm, Transformer, embeddings_of, load_config, transformer
from .options import Options
from .private_words import PrivateWords, is_private, private_words, vocabulary_source
from .split_embedding import SplitEmbedding, places_of
from .vocabulary import DIGITS, SPECIAL, Vocabulary, is_digits
from .word_vectors import drawn_vectors, with_unknown


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
    own = tuple(word for word, is_own in zip(words, private, strict=True) if is_own)
    others = tuple(word for word, is_own in zip(words, private, strict=True) if not is_own)
    return SplitEmbedding(
        _public_start(others, options, privacy, seed),
        _start(own, options, own_seed, node_vectors(options, privacy, key)),
        places_of(private),
    )


def _public_start(words: tuple[str, ...], options: Options, privacy: PrivateParameters, seed: int) -> Tensor:
    return _public_table(words, options, privacy, seed).clone()


@lru_cache(maxsize=2)  # tens of megabytes that are the same for every message and every node
def _public_table(words: tuple[str, ...], options: Options, privacy: PrivateParameters, seed: int) -> Tensor:
    if vocabulary_source(options, privacy) != "shared":
        return _start(words, options, seed, shared_vectors(options))
    # The server knows the size of a shared vocabulary but not its words, so vectors are drawn per row.
    rows = options.vocabulary_size + len(SPECIAL)
    drawn = torch.randn(rows, options.embedding_width, generator=torch.Generator().manual_seed(seed))
    return with_unknown(drawn, options.unknown)


def _start(words: tuple[str, ...], options: Options, seed: int, known: Vectors | None) -> Tensor:
    table = drawn_vectors(words, options.embedding_width, seed) if known is None else known.start(words, seed)
    return with_unknown(table, options.unknown) if words[: len(SPECIAL)] == SPECIAL else table


def transformer_model(
    options: Options, privacy: PrivateParameters, classes: int, vocabulary: Vocabulary, key: str | None
) -> Transformer:
    """Return the pretrained or random encoder as a classifier; the parameters are those of :func:`recurrent_model`.

    Raises
    ------
    DataError
        The embeddings do not suit the method: they have no table of words, another width than the encoder's, or a
        shared part although the node starts with the embeddings of another encoder.
    """
    model = transformer(options.model, classes, dropout=options.dropout, pretrained=options.weights == "pretrained")
    seed = private_seed(int(torch.randint(2**62, ())), privacy, key)
    if private_words(options, privacy) is PrivateWords.DIGITS:
        _split(model.embedding, vocabulary.words, options)
    if not privacy.own_start or key is None:
        return model
    if dealt := assigned_start(options, privacy, key):
        _exchange(model, dealt, options, privacy, seed)
    else:
        _draw(model.embedding, privacy, seed, load_config(options.model))
    return model


def _split(embedding: Any, words: tuple[str, ...], options: Options) -> None:
    table = getattr(embedding, "word_embeddings", None)
    if not isinstance(table, nn.Embedding):
        raise DataError(
            f"text.model = {options.model!r}: its embeddings have no table `word_embeddings` in which the rows of "
            "digits could stay private; use an encoder such as BERT or DistilBERT"
        )
    rows = len(table.weight)
    private = [is_digits(word) for word in words[:rows]]
    embedding.word_embeddings = SplitEmbedding.of(table.weight.detach(), private + [False] * (rows - len(private)))


def _exchange(model: Transformer, dealt: str, options: Options, privacy: PrivateParameters, seed: int) -> None:
    wanted, found = (load_config(name).hidden_size for name in (options.model, dealt))
    if found != wanted:
        raise DataError(
            f"text.own-starts: the embeddings of {dealt!r} have {found} numbers per token, but the encoder text.model "
            f"= {options.model!r} expects {wanted}; name encoders of the same width"
        )
    with torch_seed(seed):
        embedding = embeddings_of(dealt, pretrained=options.weights == "pretrained")
    names = {f"embedding.{name}" for name, _ in chain(model.embedding.named_parameters(), embedding.named_parameters())}
    if shared := sorted(name for name in names if not is_private(name, privacy)):
        raise DataError(
            f"text.own-starts = {options.own_starts!r}: nodes with embeddings of different encoders cannot share "
            f"{', '.join(shared)}; leave it empty, or use a method that keeps embedding.* private"
        )
    model.embedding = embedding.train()


@torch.no_grad()
def _draw(embedding: nn.Module, privacy: PrivateParameters, seed: int, config: Any) -> None:
    """Draw new private tables as in the encoder's configuration; normalisation keeps its initial values."""
    own = torch.Generator().manual_seed(seed)
    for name, parameter in embedding.named_parameters():
        if parameter.ndim > 1 and is_private(f"embedding.{name}", privacy):
            parameter.normal_(0, config.initializer_range, generator=own)
