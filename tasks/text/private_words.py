"""What of the word embedding a method of federated learning leaves to the nodes, and the vocabulary that follows."""

from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal

from tasks.base import DataError, PrivateParameters

from .options import Options

#: Whose words a model's embedding has rows for: each node's, those of all nodes' texts, a file's, a transformer's.
VocabularySource = Literal["own", "shared", "file", "tokenizer"]


class PrivateWords(Enum):
    """Which words have rows in the embedding that never leave the node."""

    NONE = "none"
    DIGITS = "digits"
    ALL = "all"


def word_table(options: Options) -> str:
    """The name in the model of the module with the word vectors."""
    return "embedding" if options.recurrent else "embedding.word_embeddings"


def is_private(name: str, privacy: PrivateParameters) -> bool:
    """Whether a parameter of that name stays on the node."""
    return any(fnmatchcase(name, pattern) for pattern in privacy.private)


def private_words(options: Options, privacy: PrivateParameters) -> PrivateWords:
    """``ALL`` where the table ``weight`` is private, ``DIGITS`` where only a table ``private`` beside it would be."""
    table = word_table(options)
    if is_private(f"{table}.weight", privacy):
        return PrivateWords.ALL
    return PrivateWords.DIGITS if is_private(f"{table}.private", privacy) else PrivateWords.NONE


def vocabulary_source(options: Options, privacy: PrivateParameters) -> VocabularySource:
    """Where the words come from, with what "auto" stands for filled in.

    Raises :class:`DataError` for words of their own in an embedding that all nodes share, and for a shared vocabulary
    that the server could not know enough of (:meth:`Options.check_shared`).
    """
    if not options.recurrent:
        return "tokenizer"
    chosen = options.vocabulary
    private = private_words(options, privacy) is PrivateWords.ALL
    if chosen == "own" or (chosen == "auto" and private):
        if not private:
            raise DataError(
                "text.vocabulary = 'own': nodes with words of their own cannot share the parameter embedding.weight, "
                "whose rows would mean something else on each; set text.vocabulary = 'auto', 'shared' or 'file', or "
                f"take a method that keeps embedding.* private (private here: {', '.join(privacy.private) or 'none'})"
            )
        return "own"
    if chosen == "file" or (chosen == "auto" and options.words_file):
        return "file"
    options.check_shared()
    return "shared"
