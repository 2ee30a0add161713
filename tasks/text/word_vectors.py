"""Random initial word vectors that depend on the word, so that it has the same vector in every vocabulary."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from fedapps.sim.seeding import derive_seed
from torch import Tensor

from .vocabulary import SPECIAL, UNKNOWN

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
