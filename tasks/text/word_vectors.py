"""Initial word vectors: drawn for each word, or read from a file (:mod:`fedapps.tasks.text.vector_files`).

A drawn vector depends on the word, so that it has the same vector in every vocabulary. The vectors of a node's private
words may differ between nodes (FedVocab, Appendix B.2).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.profiles import PrivateParameters
from torch import Tensor

from fedapps.base.seeding import derive_seed, generator

from .options import Options, PrivateWords, private_words
from .vector_files import read_vectors
from .vocabulary import SPECIAL, UNKNOWN, named_by

# G. L. Steele, D. Lea, C. H. Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014: SplitMix64, whose
# n-th number can be computed without the earlier ones.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def drawn_vectors(words: Sequence[str], width: int, seed: int) -> Tensor:
    """Draw a vector of independent N(0, 1) numbers for each word, float32 ``[len(words), width]``.

    A word's vector depends only on the word and ``seed``, not on its place or on the other words.
    """
    keys = _mixed(_keys(tuple(words)) ^ np.uint64(derive_seed(seed, "text.words")))
    bits = _mixed(keys[:, None] + _STEP * np.arange((width + 1) // 2, dtype=np.uint64))
    # Of the 64 bits of each number, 32 give the radius and 32 the angle (Box and Muller, 1958).
    unit = np.float32(2.0**-32)
    length = np.sqrt(-2 * np.log(((bits >> np.uint64(32)).astype(np.float32) + np.float32(0.5)) * unit))
    angle = bits.astype(np.uint32).astype(np.float32) * (np.float32(2 * np.pi) * unit)
    table = np.concatenate((length * np.cos(angle), length * np.sin(angle)), axis=1)
    return torch.from_numpy(np.ascontiguousarray(table[:, :width]))


def with_unknown(table: Tensor, unknown: str) -> Tensor:
    """Set the vector of the unknown word.

    Parameters
    ----------
    table : Tensor float32 [words, width]
        The vectors of a vocabulary whose first words are :data:`~fedapps.tasks.text.vocabulary.SPECIAL`. Changed in
        place.
    unknown : "drawn", "mean" or "zeros"
        Leave the vector as it is, or set it to the mean of those of all words that are not special (zeros if there are
        none), or to zeros.
    """
    if unknown != "drawn":
        others = table[len(SPECIAL) :]
        table[UNKNOWN] = others.mean(dim=0) if unknown == "mean" and len(others) else 0.0
    return table


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Map each uint64 to another one in which every bit depends on all of its bits."""
    for shift, factor in _MIXERS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers


@lru_cache(maxsize=256)
def _keys(words: tuple[str, ...]) -> np.ndarray:
    """A uint64 for each word. Cached, because every message needs the words of a node."""
    digests = b"".join(hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, eq=False)
class Vectors:
    """Word vectors: ``table`` float32 ``[V, width]``, and the row of each word."""

    rows: dict[str, int]
    table: np.ndarray

    def share_of(self, words: Sequence[str]) -> float:
        """Return the share of ``words`` that have a vector, in [0, 1]."""
        return sum(word in self.rows for word in words) / max(len(words), 1)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of all numbers."""
        return float(self.table.std())

    def start(self, words: Sequence[str], seed: int) -> Tensor:
        """Return the initial vectors of ``words``, float32 ``[len(words), width]``.

        Vectors of unknown words are drawn (:func:`~fedapps.tasks.text.word_vectors.drawn_vectors`) with the standard
        deviation of the known ones.
        """
        table = drawn_vectors(words, self.table.shape[1], seed) * self.deviation
        known = [number for number, word in enumerate(words) if word in self.rows]
        table[known] = torch.from_numpy(self.table[[self.rows[words[number]] for number in known]])
        return table


def vectors_in(path: Path, width: int, option: str = "text.glove") -> Vectors:
    """Read all vectors of a file (:func:`~fedapps.tasks.text.vector_files.read_vectors`), once per process.

    Parameters
    ----------
    path : Path
        The file.
    width : int
        The number of numbers per word.
    option : str
        The option that names the file, for messages.

    Raises
    ------
    DataError
        The file cannot be read, is no file of vectors, or has vectors of another width.
    """
    with named_by(option, path):
        return _read(path, path.stat().st_mtime_ns, width)


@lru_cache(maxsize=8)
def _read(path: Path, mtime: int, width: int) -> Vectors:
    return Vectors(*read_vectors(path, width))


def assigned_start(options: Options, privacy: PrivateParameters, key: str) -> str:
    """Return the entry of ``text.own-starts`` that is assigned to a node, the same in every run; '' for none."""
    names = options.own_start_names
    if not names or not privacy.own_start or private_words(options, privacy) is not PrivateWords.ALL:
        return ""
    return names[int(generator(options.partition_seed, "text.own-start", key).integers(len(names)))]


def private_seed(seed: int, privacy: PrivateParameters, key: str | None) -> int:
    """Return the seed of the vectors of a node's private words; ``key`` is ``None`` for the server."""
    return derive_seed(seed, "text.own-start", key) if privacy.own_start and key is not None else seed


def shared_vectors(options: Options) -> Vectors | None:
    """Return the initial vectors of words on all nodes, ``None`` if they are drawn."""
    return _vectors_of(options.glove, options, "text.glove")


def node_vectors(options: Options, privacy: PrivateParameters, key: str | None) -> Vectors | None:
    """Return the initial vectors of a node's private words, ``None`` if they are drawn."""
    dealt = assigned_start(options, privacy, key) if key is not None else ""
    if dealt:
        return _vectors_of(dealt, options, "text.own-starts")
    return None if privacy.own_start else shared_vectors(options)


def vectors_are_here(options: Options, privacy: PrivateParameters, key: str) -> bool:
    """Whether :func:`node_vectors` has a file, and it exists: a trained model is also used where it does not."""
    path = assigned_start(options, privacy, key) or ("" if privacy.own_start else options.glove)
    return bool(path) and Path(path).expanduser().exists()


def _vectors_of(path: str, options: Options, option: str) -> Vectors | None:
    return vectors_in(Path(path).expanduser(), options.embedding_width, option) if path else None
