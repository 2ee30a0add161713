"""Vocabularies: the words that a node knows, and texts as their numbers."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from fedapps.tasks.language import split_words
from torch import Tensor

from fedapps.base.errors import DataError, need
from fedapps.base.text_files import from_json, read_text, shown

from .vector_files import read_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: The first words of every vocabulary of words: padding, and the unknown word.
SPECIAL = ("<pad>", "<unk>")
UNKNOWN = 1
_ANY = "x \u2603 1"  # a text with a token that hardly a vocabulary has
_GAPS = 10  # how often more numbers than tokens a tokenizer may have, as each number is a row of the embedding
#: The unknown digit word, in a vocabulary with the node's own digit words.
DIGITS = "<digits>"
RESERVED = frozenset((*SPECIAL, DIGITS))

#: The file of the tokenizer in a model folder.
TOKENIZER = "tokenizer.json"


def is_digits(token: str) -> bool:
    """Return whether a token consists of digits only, a private token in Zhang et al., FedVocab, 2022, Appendix A.2.

    The marks of tokenizers for pieces inside a word (``##12``) or at its start (``Ġ12``, ``▁12``) are ignored: such
    pieces also spell numbers, and sharing them would reveal the numbers.
    """
    return token.removeprefix("##").lstrip("Ġ▁").isdigit()


class Vocabulary(Hashable, Protocol):
    """Words and their numbers, which are the rows of an embedding."""

    @property
    def words(self) -> tuple[str, ...]:
        """All words in the order of their numbers."""
        ...

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return the numbers of each text's words, at least one and at most ``max_length``."""
        ...


@dataclass(frozen=True, eq=False)
class WordVocabulary:
    """Words in the order of their numbers; the first two are :data:`SPECIAL`.

    If :data:`DIGITS` is among them, it stands for unknown digit words.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int = 0, min_count: int = 1) -> "WordVocabulary":
        """Return the ``size`` most frequent words (0: all) with at least ``min_count`` occurrences; ties are sorted."""
        counts = Counter(word for text in texts for word in split_words(text))
        kept = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        return cls(SPECIAL + tuple(kept[: size or None]))

    def with_digits_of(self, texts: Iterable[str], known: Sequence[str] = ()) -> "WordVocabulary":
        """Return these words without digit words, then :data:`DIGITS`, ``known`` digit words, those of ``texts``."""
        digits = dict.fromkeys((*known, *filter(is_digits, WordVocabulary.of(texts).words)))
        return WordVocabulary((*(word for word in self.words if not is_digits(word)), DIGITS, *digits))

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of every word."""
        return {word: number for number, word in enumerate(self.words)}

    def number(self, word: str) -> int:
        """Return the number of ``word``, or of the unknown word that stands for it."""
        number = self.index.get(word)
        if number is None and is_digits(word):
            number = self.index.get(DIGITS)
        return UNKNOWN if number is None else number

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Encode texts as in :class:`Vocabulary`; a text without words becomes one unknown word."""
        encoded = ([self.number(word) for word in split_words(text)[:max_length]] for text in texts)
        return [numbers or [UNKNOWN] for numbers in encoded]

    def translation(self, other: "WordVocabulary") -> Tensor:
        """Return the numbers here of all words of ``other``, int32: ``translation[ids of other]`` are ids of this
        vocabulary.
        """
        return torch.tensor([self.number(word) for word in other.words], dtype=torch.int32)


class TokenizerVocabulary:
    """The tokens of a tokenizer of the library ``tokenizers``, which may add special tokens around a text."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        tokenizer.no_padding()
        self.tokenizer = tokenizer

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All tokens in the order of their numbers; a number without a token is an empty string."""
        index = self.tokenizer.get_vocab()
        words = [""] * (1 + max(index.values()))
        for word, number in index.items():
            words[number] = word
        return tuple(words)

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Encode texts as in :class:`Vocabulary`; a text without tokens becomes the token 0.

        Halves of characters, which JSON can have and UTF-8 cannot, are read as question marks.
        """
        whole = [text.encode(errors="replace").decode() for text in texts]
        with panics_as_errors():
            self.tokenizer.enable_truncation(max_length)
            return [encoding.ids or [0] for encoding in self.tokenizer.encode_batch(whole)]


class PieceVocabulary(TokenizerVocabulary):
    """The tokens of a tokenizer, of which a node's training texts use those with the numbers ``own``.

    It is the private vocabulary of a node with a transformer. A tokenizer can spell any text, so that a node with a
    private embedding needs no words of its own. But its texts use a small part of all pieces, and no other row of its
    embedding is ever trained. The node therefore trains and keeps these rows alone
    (:class:`~fedapps.tasks.text.networks.OwnRows`); all others stay what they are at the start. Under an optimizer
    without weight decay, it computes what it would with the whole table.
    """

    def __init__(self, base: TokenizerVocabulary, own: tuple[int, ...]) -> None:
        super().__init__(base.tokenizer)
        self.words = base.words  # splits no text, and is computed once for all nodes
        self.own = own

    @classmethod
    def of(cls, base: TokenizerVocabulary, ids: Tensor, length: Tensor, known: Sequence[str] = ()) -> "PieceVocabulary":
        """The vocabulary of a node with the texts ``ids [n, L]`` of ``length [n]``: the numbers ``known``, and others
        in ascending order.
        """
        used = ids[torch.arange(ids.shape[1]) < length[:, None]]
        return cls(base, tuple(dict.fromkeys((*map(int, known), *used.unique().tolist()))))


@contextmanager
def named_by(option: str, path: Path) -> Iterator[None]:
    """Let errors about a file name the option that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{option} = {str(path)!r}: cannot be read or is damaged: {error}") from error
    except DataError as error:
        raise DataError(f"{option} = {str(path)!r}{str(error).removeprefix(str(path))}") from error


def read_vocabulary(path: Path, size: int, option: str = "text.vocabulary-file", width: int = 0) -> Vocabulary:
    """Read a vocabulary: the JSON of a tokenizer, word vectors, or text with a word at the start of each line.

    Parameters
    ----------
    path : Path
        The file.
    size : int
        The number of words to read from vectors or text; 0 reads all.
    option : str
        The option that names the file, for messages.
    width : int
        The number of numbers per word, by which a file of a zip archive is chosen.

    Raises
    ------
    DataError
        The file cannot be read, is not a tokenizer, or is a list that contains a word twice.
    """
    with named_by(option, path):
        return _read(path, path.stat().st_mtime_ns, size, width)


@lru_cache(maxsize=8)
def _read(path: Path, mtime: int, size: int, width: int) -> Vocabulary:
    if path.suffix == ".json":
        return read_tokenizer(path)
    words: dict[str, None] = {}
    for line, word in read_words(path, size, width):
        if word in words:
            raise DataError(f"{path}, line {line}: the word {shown(word)} occurs for the second time; list it once")
        if word and word not in RESERVED:
            words[word] = None
        if size and len(words) == size:
            break
    if not words:
        raise DataError(f"{path}: has no words; expected one per line")
    return WordVocabulary(SPECIAL + tuple(words))


def read_tokenizer(path: Path) -> TokenizerVocabulary:
    """Read the JSON of a tokenizer. Raise :class:`DataError` if it is none."""
    tokenizers = need("tokenizers", "text", f"the tokenizer {path}")
    text = read_text(path)
    try:
        from_json(text)
        with panics_as_errors():
            vocabulary = TokenizerVocabulary(tokenizers.Tokenizer.from_str(text))
            (encoded,) = vocabulary.encode([_ANY], len(_ANY))  # without an unknown token, this is an error
            numbers = vocabulary.tokenizer.get_vocab().values()
        if not numbers or max(numbers) > _GAPS * (len(numbers) + 100):
            raise ValueError(f"{len(numbers)} tokens with numbers up to {max(numbers, default=0)}")
        if max(encoded) > max(numbers):
            raise ValueError(f"it adds the token {max(encoded)}, but its last one is {max(numbers)}")
        return vocabulary
    except Exception as error:  # tokenizers raises plain exceptions
        raise DataError(f"{path}: expected the JSON of a tokenizer: {error}") from error


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Let a panic of a library in Rust be a :class:`DataError`: it is no ``Exception``, and no module has its class."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise DataError(f"the tokenizer cannot be used: {error}") from error


def padded(encoded: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return ``ids`` int32 ``[n, longest]``, 0 beyond the end of a text, and ``length`` int64 ``[n]``."""
    lengths = np.array([len(numbers) for numbers in encoded], dtype=np.int64)
    ids = np.zeros((len(encoded), int(lengths.max(initial=1))), dtype=np.int32)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = [number for numbers in encoded for number in numbers]
    return {"ids": torch.from_numpy(ids), "length": torch.from_numpy(lengths)}
