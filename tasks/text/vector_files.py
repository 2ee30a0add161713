"""Files of word vectors, read as vectors and as lists of words.

Text has a word and its numbers on each line, separated by single spaces: the last ``width`` fields are the numbers, and
all before is the word, which may contain spaces (GloVe 840B), no-break spaces and other white space (GloVe Twitter
27B). A first line of two whole numbers, of words and of numbers per word, is the header of word2vec and fastText
(``.vec``). Text may be in a zip archive, or compressed by gzip or xz.

gensim reads ``.bin`` of word2vec; that of fastText is a model, beside which fastText writes ``.vec``. What gensim's
``KeyedVectors.save`` wrote (``.kv``, ``.wordvectors``) is a pickle, which could run code: only words and arrays are
taken out of it, without gensim.

J. Pennington, R. Socher, C. D. Manning, GloVe: Global Vectors for Word Representation, EMNLP 2014,
https://nlp.stanford.edu/projects/glove/. T. Mikolov et al., Distributed Representations of Words and Phrases and their
Compositionality, NeurIPS 2013. P. Bojanowski et al., Enriching Word Vectors with Subword Information, TACL 2017.
"""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.base.errors import DataError, need
from fedapps.base.text_files import UNREADABLE, open_text, shown, zipped_texts

_SAVED = (".kv", ".wordvectors")
_FASTTEXT = (793712314).to_bytes(4, "little")  # how a model of fastText begins
_LOOK = 10  # lines by which the width is found
#: The classes of word vectors in gensim's pickles, and what their attributes consist of.
_KEPT = frozenset(
    ("gensim.models.keyedvectors", name)
    for name in ("KeyedVectors", "Word2VecKeyedVectors", "EuclideanKeyedVectors", "Vocab")
) | {("gensim.models.fasttext", "FastTextKeyedVectors")}
_PARTS = frozenset(
    (f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")
) | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("collections", "OrderedDict")}
#: What a damaged pickle raises.
_UNPICKLABLE = (
    *(pickle.UnpicklingError, ValueError, TypeError, AttributeError, ImportError, IndexError, OverflowError),
    *(MemoryError, RecursionError),
    SystemError,  # raised by NumPy for a damaged dtype
)


def read_vectors(path: Path, width: int) -> tuple[dict[str, int], np.ndarray]:
    """Read all vectors of a file. The first of duplicate words counts.

    Parameters
    ----------
    path : Path
        The file.
    width : int
        The number of numbers per word.

    Returns
    -------
    dict of str to int
        The row of each word.
    float32 ndarray [V, width]
        The vectors.

    Raises
    ------
    DataError
        The file cannot be read, a line does not have ``width`` finite numbers, the header does not fit the file, or
        there is no vector.
    """
    rows, table = _of_width(path, width) if _is_binary(path) else _text(path, width)
    if not rows:
        raise DataError(f"{path}: has no word vectors; expected one per line")
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        wrong = int(np.argmin(finite))
        word = next((word for word, row in rows.items() if row == wrong), "")
        raise DataError(f"{path}, word {shown(word)}: expected finite numbers")
    return rows, table


def read_words(path: Path, size: int, width: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the words of a file of vectors, each once, or of a list with a word at the start of each line.

    A list is a file whose first lines do not all have numbers; its words end at the first space or tab.

    Parameters
    ----------
    path : Path
        The file.
    size : int
        As many words are read from a binary file; 0 reads all. Of a text, the caller stops.
    width : int
        The number of numbers per word, by which a member of a zip archive is chosen.

    Yields
    ------
    tuple of int and str
        The number of the line, and the word. A list may have a word twice.

    Raises
    ------
    DataError
        As :func:`read_vectors`.
    """
    if _is_binary(path):
        yield from enumerate(dict.fromkeys(_binary(path, size)[0]), start=1)
        return
    with _lines(path, width) as (layout, lines):
        if not layout.width:
            yield from ((line, text.replace("\t", " ").split(" ")[0]) for line, text in lines)
            return
        known = set()
        for line, text in lines:
            word, _ = _split(path, line, text, layout.width)
            if word not in known:
                known.add(word)
                yield line, word


@dataclass(frozen=True)
class _Layout:
    """The layout of a text.

    Attributes
    ----------
    width : int
        The number of numbers per word; 0 in a list of words.
    count : int
        The number of words by the header; -1 without one.
    first : int
        The number of numbers at the end of the first line with a word.
    """

    width: int
    count: int
    first: int


@contextmanager
def _lines(path: Path, width: int) -> Iterator[tuple[_Layout, Iterator[tuple[int, str]]]]:
    """The layout of a text, and the numbers and texts of its lines without the header and blank lines."""
    with open_text(path, newline="\n", member=_member(path, width)) as file:
        numbered = ((line, text.rstrip(" \t\r\n")) for line, text in enumerate(file, start=1))
        filled = ((line, text) for line, text in numbered if text)
        first = list(islice(filled, _LOOK + 1))
        layout = _layout([text for _, text in first])
        yield layout, chain(first[layout.count >= 0 :], filled)


def _layout(first: Sequence[str]) -> _Layout:
    counts = [_numbers(text.split(" ")[1:]) for text in first]
    head = first[0].split(" ") if first else []
    header = len(head) == 2 and all(part.isascii() and part.isdigit() for part in head) and 1 < float(head[1]) < 1e6
    if header and min(counts[1:], default=2) > 1:
        return _Layout(int(head[1]), int(head[0][:18]), int(head[1]))
    return _Layout(min(counts, default=0), -1, counts[0] if counts else 0)


def _numbers(fields: Sequence[str]) -> int:
    """How many fields at the end are numbers."""
    for count, field in enumerate(reversed(fields)):
        try:
            float(field)
        except ValueError:
            return count
    return len(fields)


def _split(path: Path, line: int, text: str, width: int) -> tuple[str, list[str]]:
    word, *values = text.rsplit(" ", width)
    if len(values) != width:
        raise DataError(f"{path}, line {line}: {len(values)} numbers; expected {width}, as in the other lines")
    return word, values


def _text(path: Path, width: int) -> tuple[dict[str, int], np.ndarray]:
    rows: dict[str, int] = {}
    numbers = bytearray()  # the numbers of all vectors, which may take half a gigabyte and more
    read = 0
    with _lines(path, width) as (layout, lines):
        own_width = width if layout.width == width else layout.first
        for line, text in lines:
            if own_width != width:
                raise DataError(
                    f"{path}, line {line}: {own_width} numbers, but text.embedding-width = {width}: set it to the "
                    "number of numbers per line"
                )
            read += 1
            word, values = _split(path, line, text, width)
            if word in rows:
                continue
            rows[word] = len(rows)
            try:
                numbers += np.array(values, dtype=np.float32).tobytes()
            except ValueError as error:
                raise DataError(
                    f"{path}, line {line}, word {shown(word)}: {error}; expected {width} numbers"
                ) from error
    if layout.count >= 0 and read != layout.count:
        raise DataError(f"{path}: {read} words, but the first line says {layout.count}; copy the file again")
    return rows, np.frombuffer(numbers, dtype=np.float32).reshape(-1, width)


def _member(path: Path, width: int) -> str:
    """The member of a zip archive with vectors of a width; empty for other files."""
    if path.suffix != ".zip":
        return ""
    members = zipped_texts(path)
    fitting = [name for name in members if name.endswith(f".{width}d.txt")] or members
    if len(fitting) != 1:
        raise DataError(f"{path}: expected one file of {width} numbers per word; found {', '.join(members) or 'none'}")
    return fitting[0]


def _is_binary(path: Path) -> bool:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix in (".bin", *_SAVED)


def _of_width(path: Path, width: int) -> tuple[dict[str, int], np.ndarray]:
    words, table = _binary(path)
    if table.ndim != 2 or len(table) < len(words):
        raise DataError(f"{path}: {len(words)} words, but vectors of the shape {list(table.shape)}; copy it again")
    if table.shape[1] != width:
        raise DataError(
            f"{path}: {table.shape[1]} numbers per word, but text.embedding-width = {width}: set it to {table.shape[1]}"
        )
    rows: dict[str, int] = {}
    for row, word in enumerate(words):
        rows.setdefault(word, row)
    return rows, table[: len(words)]


def _binary(path: Path, limit: int = 0) -> tuple[Sequence[str], np.ndarray]:
    """The words of a binary file, which may be duplicates, and their vectors; of word2vec only the first ``limit``."""
    if path.suffix in _SAVED:
        return _saved(path)
    gensim = need("gensim.models", "vectors", f"the word vectors {path}")
    if _starts_with(path, _FASTTEXT):
        raise DataError(f"{path}: a model of fastText, with vectors of parts of words; name the file .vec beside it")
    try:
        vectors = gensim.KeyedVectors.load_word2vec_format(
            str(path), binary=True, unicode_errors="replace", limit=limit or None
        )
    except (*UNREADABLE, *_UNPICKLABLE, AssertionError) as error:
        raise DataError(
            f"{path}: cannot be read as word vectors of word2vec: {error or type(error).__name__}; expected a file "
            "that word2vec or gensim's save_word2vec_format wrote"
        ) from error
    return vectors.index_to_key, np.asarray(vectors.vectors, dtype=np.float32)


def _starts_with(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(head)) == head


class _Saved:
    """Stands for gensim's ``KeyedVectors`` in a pickle, and has its attributes."""


class _Unpickler(pickle.Unpickler):
    """Loads what a pickle of word vectors consists of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KEPT:
            return _Saved
        if (module, name) not in _PARTS:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which is no part of word vectors")
        return super().find_class(module, name)


def _saved(path: Path) -> tuple[Sequence[str], np.ndarray]:
    """The words and vectors that gensim's ``KeyedVectors.save`` wrote; large arrays lie in a second file."""
    advice = "save them with gensim's save_word2vec_format(FILE.bin, binary=True)"
    try:
        with path.open("rb") as file:
            attributes = vars(_Unpickler(file).load())
        if "vectors" in attributes.get("__numpys", ()):
            attributes["vectors"] = np.load(f"{path}.vectors.npy", allow_pickle=False)
        words = attributes["index_to_key"] if "index_to_key" in attributes else attributes["index2word"]
        return list(map(str, words)), np.asarray(attributes["vectors"], dtype=np.float32)
    except KeyError as error:
        raise DataError(f"{path}: no word vectors of gensim, which have {error}; {advice}") from error
    except (*UNREADABLE, *_UNPICKLABLE) as error:
        raise DataError(f"{path}: cannot be read as word vectors of gensim: {error}; {advice}") from error
