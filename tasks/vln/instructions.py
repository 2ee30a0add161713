"""Paths with instructions, out of the files of Room-to-Room and Room-across-Room, and the numbers of their words.

R2R (Anderson et al., CVPR 2018) has one JSON array per split, ``R2R_<split>.json``, with several instructions to a
path. RxR (Ku et al., EMNLP 2020) has JSON lines, ``rxr_<split>_guide.jsonl``, with one instruction to a line, in
several languages. Either may be compressed with gzip or xz. The tokenizer is that of the Room-to-Room agents (Anderson
et al., 2018; Tan et al., 2019).

What is computed from the files of a folder is kept under a key of everything that it was computed from
(:func:`cached`).
"""

import hashlib
import os
import re
import shutil
import string
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import pi
from pathlib import Path
from typing import Any, Literal, TextIO, cast, get_args

from fedapps.tasks.language import word

from fedapps.base.atomic import write_whole
from fedapps.base.errors import DataError
from fedapps.base.rows import json_lines, name_of
from fedapps.base.text_files import COMPRESSIONS, found_in, open_text, read_json, shown

DEFAULT_FOLDER = "~/fedapps/features"


def find_file(folder: Path, name: str) -> Path | None:
    """The file ``name``, perhaps with ``.gz`` or ``.xz`` after it, in ``folder`` or any folder below it.

    Raises
    ------
    DataError
        There is more than one.
    """
    wanted = {name + suffix for suffix in COMPRESSIONS}
    paths = [path for path in found_in(folder, f"**/{name}*") if path.name in wanted and path.is_file()]
    if len(paths) > 1:
        raise DataError(
            f"{folder}: {len(paths)} files are called {name}: {', '.join(map(str, paths))}; keep one of them"
        )
    return paths[0] if paths else None


def in_folder(name: str, folder: Path | None = None) -> Path:
    """The file or folder ``name`` in a node's folder if it is there, otherwise wherever its path leads."""
    if folder is not None and (folder / name).exists():
        return folder / name
    return Path(name).expanduser()


def key_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """The key of named inputs: 32 hexadecimal digits, others for another name, content or order."""
    digest = hashlib.blake2b(digest_size=16)
    for name, content in parts:
        digest.update(f"\x1f{name}\x1f{len(content)}\x1f".encode())
        digest.update(content)
    return digest.hexdigest()


def cached(cache: Path, name: str, compute: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache. If it is missing, ``compute`` fills an empty folder, which is then renamed.

    An interrupted computation leaves nothing under the name, and processes that compute the same at the same time do no
    harm.
    """
    target = cache / name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache))
    try:
        compute(unfinished)
        os.replace(unfinished, target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


PAD, UNKNOWN, END, BEGIN = range(4)
RESERVED = ("<PAD>", "<UNK>", "<EOS>", "<BOS>")
_MARKS = frozenset(string.punctuation)
MIN_COUNT = 5  # how often a word occurs in training instructions to have a number


@cache
def _word_pattern() -> re.Pattern[str]:
    return re.compile(f"({word()})")


def words_of(text: str) -> list[str]:
    """The lower-case words of a text (:mod:`fedapps.tasks.language`) and its punctuation marks.

    Punctuation that stands together is split into its marks, unless it is full stops alone: ``"...!"`` gives four
    marks, ``"..."`` one.
    """
    words: list[str] = []
    for part in (part.strip().lower() for part in _word_pattern().split(text.strip())):
        if part and _MARKS.issuperset(part) and set(part) != {"."}:
            words += list(part)
        elif part:
            words.append(part)
    return words


@dataclass(frozen=True)
class Vocabulary:
    """``words`` have the numbers from 4 on, in their order; 0 to 3 are :data:`RESERVED`."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """The most frequent words that occur ``MIN_COUNT`` times, so that no more than ``size`` numbers are used."""
        counts = Counter(word for text in texts for word in words_of(text))
        kept = sorted((word for word in counts if counts[word] >= MIN_COUNT), key=lambda word: (-counts[word], word))
        return cls(tuple(kept[: max(0, size - len(RESERVED))]))

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """The words of a file, one to a line. Reserved words are skipped, as published lists have them."""
        if not path.is_file():
            raise DataError(f"vln.vocabulary-file = {str(path)!r}: no such file; name a file with one word to a line")
        with open_text(path) as file:
            words = [line.strip() for line in file]
        kept = tuple(word for word in words if word and word not in RESERVED)
        if not kept or len(set(kept)) < len(kept):
            raise DataError(f"{path}: expected one word to a line, each of them once")
        return cls(kept)

    def write(self, path: Path) -> None:
        """Write the words as :meth:`read` reads them."""
        write_whole(path, "".join(f"{word}\n" for word in self.words).encode())

    def __len__(self) -> int:
        return len(RESERVED) + len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, len(RESERVED))}

    def encode(self, text: str, max_length: int) -> list[int]:
        """The numbers of a text: ``<BOS>``, its words and ``<EOS>``, at most ``max_length``."""
        numbers = [self._numbers.get(word, UNKNOWN) for word in words_of(text)[: max_length - 2]]
        return [BEGIN, *numbers, END]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """The words up to the first ``<EOS>``, without reserved ones."""
        words = []
        for number in numbers:
            if number == END:
                break
            if number >= len(RESERVED):
                words.append(self.words[number - len(RESERVED)])
        return words


DatasetName = Literal["r2r", "rxr"]
FILES: Mapping[DatasetName, str] = {"r2r": "R2R_{split}.json", "rxr": "rxr_{split}_guide.jsonl"}


@dataclass(frozen=True)
class InstructedPath:
    """A path through the house ``scan``, a name of a viewpoint for each stop, and what was said about it.

    ``heading`` is the direction in radians that the agent faces at the start, clockwise from +y.
    """

    scan: str
    path_id: str
    path: tuple[str, ...]
    heading: float
    instructions: tuple[str, ...]


def find_dataset(folder: Path, name: str = "auto") -> DatasetName | None:
    """Which data set lies in ``folder`` by its file names, or ``name`` unless that is "auto"; ``None`` for neither.

    Raises :class:`DataError` where "auto" finds both.
    """
    if name != "auto":
        return cast(DatasetName, name)
    names = [
        dataset for dataset in get_args(DatasetName) if found_in(folder, f"**/{FILES[dataset].format(split='*')}*")
    ]
    if len(names) > 1:
        raise DataError(f"{folder}: has files of R2R and of RxR; set vln.dataset = 'r2r' or 'rxr'")
    return names[0] if names else None


def read_split(
    folder: Path, dataset: DatasetName, split: str, languages: Sequence[str] = ("en",)
) -> tuple[InstructedPath, ...] | None:
    """The paths of one split, in the order of the file; ``None`` where there is no such file.

    Parameters
    ----------
    folder : Path
        Searched with all folders below it.
    dataset : DatasetName
        Which files to look for.
    split : str
        ``train``, ``val_seen``, ``val_unseen`` ...
    languages : sequence of str
        Of RxR, which languages are read: "en" takes en-US and en-IN; no language takes all.

    Raises
    ------
    DataError
        An entry lacks what is needed, has no text, or has a start but no path, as those of test splits do.
    """
    path = find_file(folder, FILES[dataset].format(split=split))
    if path is None:
        return None
    if dataset == "r2r":
        return _distinct(
            path,
            [
                _path_of(location, entry, entry_field(location, entry, "instructions", list))
                for location, entry in entries_of(path)
            ],
        )
    grouped: dict[tuple[str, str], InstructedPath] = {}
    for location, entry in entries_of(path):
        language = entry_field(location, entry, "language", str)
        if languages and not any(language == wanted or language.startswith(f"{wanted}-") for wanted in languages):
            continue
        read_path = _path_of(location, entry, [entry_field(location, entry, "instruction", str)])
        key = read_path.scan, read_path.path_id
        known = grouped.setdefault(key, read_path)
        if replace(read_path, instructions=known.instructions) != known:
            raise DataError(
                f"{location}: path_id {read_path.path_id} of scan {read_path.scan} has another path or "
                "heading than in an earlier line; correct one of the two"
            )
        if known is not read_path:
            grouped[key] = replace(known, instructions=known.instructions + read_path.instructions)
    if not grouped:
        raise DataError(f"{path}: no instruction in vln.languages = {','.join(languages)!r}; name those that are there")
    return tuple(grouped.values())


def _distinct(path: Path, paths: Sequence[InstructedPath]) -> tuple[InstructedPath, ...]:
    known: dict[tuple[str, str], int] = {}
    for number, each in enumerate(paths, 1):
        if (first := known.setdefault((each.scan, each.path_id), number)) != number:
            raise DataError(
                f"{path}, entry {number}: path_id {each.path_id} of scan {each.scan} occurs for the second time (first "
                f"in entry {first}); keep one of the two"
            )
    return tuple(paths)


def _path_of(location: str, entry: Mapping[str, Any], texts: Sequence[object]) -> InstructedPath:
    stops = stops_of(location, entry)
    name = str(entry_field(location, entry, "path_id", (int, str)))
    if len(stops) == 1:
        raise DataError(
            f"{location}: path {name} has a start and no further viewpoint, as in the test split, whose paths "
            "are not published; give a split that has paths"
        )
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{location}: path {name} has an instruction without text; add the text or remove the entry")
    return InstructedPath(
        entry_field(location, entry, "scan", str),
        name,
        stops,
        heading_of(location, entry),
        tuple(cast(list[str], texts)),
    )


def entries_of(source: Path | TextIO) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of JSON lines, or of a JSON array in a file ``.json``, each with its file and line for messages."""
    if isinstance(source, Path) and ".json" in source.suffixes:
        entries = read_json(source)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{source}: expected a JSON array of objects, or JSON lines in a file .jsonl")
        yield from ((f"{source}, entry {number}", entry) for number, entry in enumerate(entries, 1))
    else:
        name = source if isinstance(source, Path) else name_of(source)
        yield from ((f"{name}, line {number}", entry) for number, entry in json_lines(source))


def stops_of(location: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The viewpoints of an object's ``path``. Raise :class:`DataError` if it has none."""
    stops = entry.get("path")
    if not isinstance(stops, list) or not stops or not all(isinstance(stop, str) for stop in stops):
        raise DataError(f"{location}: path = {shown(stops)}; expected names of viewpoints")
    return tuple(stops)


def heading_of(location: str, entry: Mapping[str, Any]) -> float:
    """The ``heading`` of an object, radians. Raise :class:`DataError` if it has none, or one beyond a full turn."""
    heading = entry.get("heading")
    if not isinstance(heading, (int, float)) or isinstance(heading, bool) or not -2 * pi <= heading <= 2 * pi + 0.01:
        raise DataError(f"{location}: heading = {shown(heading)}; expected radians, from -2 pi to 2 pi")
    return float(heading)


def entry_field(location: str, entry: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """The value of an object under a name. Raise :class:`DataError` unless it is of a ``kind``."""
    value = entry.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        value_text = "nothing" if value is None else shown(value)
        raise DataError(f"{location}: {name} is {value_text}; expected {_words(kind)}")
    return value


def _words(kind: type | tuple[type, ...]) -> str:
    names = {str: "a string", list: "an array", int: "a number"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(dict.fromkeys(names[each] for each in kinds))
