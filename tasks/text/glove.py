"""Word vectors in the format of GloVe: one word and its numbers per line, most frequent words first.

J. Pennington, R. Socher, C. D. Manning, GloVe: Global Vectors for Word Representation, EMNLP 2014,
https://nlp.stanford.edu/projects/glove/
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.tables import UNREADABLE, open_text
from torch import Tensor

from .word_vectors import drawn_vectors


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


def read_glove(path: Path, width: int, option: str = "text.glove") -> Vectors:
    """Read all vectors of a file (plain, .gz or .xz). They are cached for the life of the process.

    A word may contain spaces, as in GloVe 840B. The first of duplicate words counts.

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
        The file cannot be read, a line does not have ``width`` finite numbers, or there is no vector.
    """
    try:
        return _read(path, path.stat().st_mtime_ns, width)
    except UNREADABLE as error:
        raise DataError(f"{option} = {str(path)!r}: cannot be read or is damaged: {error}") from error


@lru_cache(maxsize=8)
def _read(path: Path, mtime: int, width: int) -> Vectors:
    rows: dict[str, int] = {}
    numbers = bytearray()  # the numbers of all vectors, which may take half a gigabyte and more
    with open_text(path) as file:
        for line, text in enumerate(file, start=1):
            word, *values = text.rstrip().rsplit(" ", width)
            # Surplus numbers would look like a word with spaces; the first line contains no such word.
            found = len(text.split()) - 1 if line == 1 else len(values)
            if found != width:
                raise DataError(
                    f"{path}, line {line}: {found} numbers, but text.embedding-width = {width}: set it to the number "
                    "of numbers per line"
                )
            if word in rows:
                continue
            rows[word] = len(rows)
            try:
                numbers += np.array(values, dtype=np.float32).tobytes()
            except ValueError as error:
                raise DataError(f"{path}, line {line}, word {word!r}: {error}; expected {width} numbers") from error
    if not rows:
        raise DataError(f"{path}: has no word vectors; expected one per line")
    table = np.frombuffer(numbers, dtype=np.float32).reshape(-1, width)
    if not np.isfinite(table).all():
        line = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        raise DataError(f"{path}, word {list(rows)[line]!r}: expected finite numbers")
    return Vectors(rows, table)
