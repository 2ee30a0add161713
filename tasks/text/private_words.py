"""The part of the word embedding that a method keeps on the nodes, and the vocabulary that follows from it."""

from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal

from fedapps.tasks.profiles import DataError, PrivateParameters

from .options import Options

#: The source of the words of an embedding: each node's texts, all nodes' texts, a file, or a transformer's tokenizer.
VocabularySource = Literal["own", "shared", "file", "tokenizer"]


class PrivateWords(Enum):
    """The words whose vectors never leave the node."""

    NONE = "none"
    DIGITS = "digits"
    ALL = "all"


def word_table(options: Options) -> str:
    """Return the name of the module with the word vectors."""
    return "embedding" if options.recurrent else "embedding.word_embeddings"


def is_private(name: str, privacy: PrivateParameters) -> bool:
    """Return whether the parameter ``name`` stays on the node."""
    return any(fnmatchcase(name, pattern) for pattern in privacy.patterns)


def private_words(options: Options, privacy: PrivateParameters) -> PrivateWords:
    """Return ``ALL`` if the table ``weight`` is private, ``DIGITS`` if only a separate table ``private`` would be."""
    table = word_table(options)
    if is_private(f"{table}.weight", privacy):
        return PrivateWords.ALL
    return PrivateWords.DIGITS if is_private(f"{table}.private", privacy) else PrivateWords.NONE


def vocabulary_source(options: Options, privacy: PrivateParameters) -> VocabularySource:
    """Return the source of the words, with "auto" resolved.

    Raises
    ------
    DataError
        Nodes would have different words in an embedding that they share, or the server lacks information to build a
        shared vocabulary (:meth:`Options.check_shared`).
    """
    if not options.recurrent:
        return "tokenizer"
    chosen = options.vocabulary
    private = private_words(options, privacy) is PrivateWords.ALL
    if chosen == "own" or (chosen == "auto" and private):
        if not private:
            raise DataError(
                "text.vocabulary = 'own': nodes with different words cannot share the parameter embedding.weight, "
                "whose rows would stand for different words; set text.vocabulary = 'auto', 'shared' or 'file', or "
                f"use a method that keeps embedding.* private (private here: {', '.join(privacy.patterns) or 'none'})"
            )
        return "own"
    if chosen == "file" or (chosen == "auto" and options.words_file):
        return "file"
    options.check_shared()
    return "shared"


def check_initial_vectors(options: Options, privacy: PrivateParameters) -> None:
    """Raise :class:`DataError` for ``own_starts`` under a method that keeps only the rows of digits private."""
    if privacy.own_start and options.own_starts and private_words(options, privacy) is PrivateWords.DIGITS:
        raise DataError(
            f"text.own-starts = {options.own_starts!r}: the method keeps only the vectors of digits private, which "
            "must match the shared ones; leave it empty, or use a method that keeps embedding.* private"
        )
