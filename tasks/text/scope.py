"""What of the word embedding a method of federated learning leaves to the nodes, and the vocabulary that follows."""

from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal

from tasks.private_parameters import PrivateParameters
from tasks.profiles import DataError

from .options import Options

#: Whose words a model's embedding has rows for: each node's, those of all nodes' texts, a file's, a transformer's.
Source = Literal["own", "shared", "file", "tokenizer"]


class Kept(Enum):
    """Which words have rows in the embedding that never leave the node."""

    NONE = "none"
    DIGITS = "digits"
    ALL = "all"


def word_table(options: Options) -> str:
    """The name in the model of the module with the word vectors."""
    return "embedding" if options.recurrent else "embedding.word_embeddings"


def is_private(name: str, privacy: PrivateParameters) -> bool:
    """Whether a parameter of that name stays on the node."""
    return any(fnmatchcase(name, pattern) for pattern in privacy.patterns)


def kept_words(options: Options, privacy: PrivateParameters) -> Kept:
    """``ALL`` where the table ``weight`` is private, ``DIGITS`` where only a table ``private`` beside it would be."""
    table = word_table(options)
    if is_private(f"{table}.weight", privacy):
        return Kept.ALL
    return Kept.DIGITS if is_private(f"{table}.private", privacy) else Kept.NONE


def source_of_words(options: Options, privacy: PrivateParameters) -> Source:
    """Where the words come from, with what "auto" stands for filled in.

    Raises :class:`DataError` for words of their own in an embedding that all nodes share, and for a shared vocabulary
    that the server could not know enough of (:meth:`Options.check_shared`).
    """
    if not options.recurrent:
        return "tokenizer"
    chosen = options.vocabulary
    private = kept_words(options, privacy) is Kept.ALL
    if chosen == "own" or (chosen == "auto" and private):
        if not private:
            raise DataError(
                "text.vocabulary = 'own': nodes with words of their own cannot share the parameter embedding.weight, "
                "whose rows would mean something else on each; set text.vocabulary = 'auto', 'shared' or 'file', or "
                f"take a method that keeps embedding.* private (private here: {', '.join(privacy.patterns) or 'none'})"
            )
        return "own"
    if chosen == "file" or (chosen == "auto" and options.words_file):
        return "file"
    options.check_shared()
    return "shared"


def check_starts(options: Options, privacy: PrivateParameters) -> None:
    """Raise :class:`DataError` for own starts of an embedding of which only the digits' rows are a node's own."""
    if privacy.own_start and options.own_starts and kept_words(options, privacy) is Kept.DIGITS:
        raise DataError(
            f"text.own-starts = {options.own_starts!r}: the method keeps only the vectors of digits private, which "
            "must go with all others; leave it empty, or take a method that keeps embedding.* private"
        )
