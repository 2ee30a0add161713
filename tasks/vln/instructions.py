"""Paths with instructions, out of the files of Room-to-Room and Room-across-Room.

R2R (Anderson et al., CVPR 2018) has one JSON array per split, ``R2R_<split>.json``, with several instructions to a
path. RxR (Ku et al., EMNLP 2020) has JSON lines, ``rxr_<split>_guide.jsonl``, with one instruction to a line, in
several languages. Either may be compressed (:mod:`fedapps.tasks.vln.files`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import pi
from pathlib import Path
from typing import Any, Literal, cast, get_args

from fedapps.base.errors import DataError
from fedapps.base.tables import json_lines
from fedapps.base.text_files import found_in, read_json, shown

from .files import find_file

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
        return _distinct(path, [_r2r_path(path, location, entry) for location, entry in _array(path)])
    grouped: dict[tuple[str, str], InstructedPath] = {}
    for number, entry in json_lines(path):
        location = f"line {number}"
        language = _field(path, location, entry, "language", str)
        if languages and not any(language == wanted or language.startswith(f"{wanted}-") for wanted in languages):
            continue
        read_path = _rxr_path(path, location, entry)
        key = read_path.scan, read_path.path_id
        known = grouped.setdefault(key, read_path)
        if replace(read_path, instructions=known.instructions) != known:
            raise DataError(
                f"{path}, {location}: path_id {read_path.path_id} of scan {read_path.scan} has another path or "
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


def _array(path: Path) -> Iterator[tuple[str, object]]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected a JSON array of paths, found {type(entries).__name__}")
    return ((f"entry {number}", entry) for number, entry in enumerate(entries, 1))


def _r2r_path(path: Path, location: str, entry: object) -> InstructedPath:
    texts = _field(path, location, entry, "instructions", list)
    return _checked(path, location, entry, texts)


def _rxr_path(path: Path, location: str, entry: object) -> InstructedPath:
    return _checked(path, location, entry, [_field(path, location, entry, "instruction", str)])


def _checked(path: Path, location: str, entry: object, texts: Sequence[object]) -> InstructedPath:
    stops = _field(path, location, entry, "path", list)
    heading = _field(path, location, entry, "heading", (int, float))
    name = str(_field(path, location, entry, "path_id", (int, str)))
    if not all(isinstance(stop, str) for stop in stops) or not stops:
        raise DataError(f"{path}, {location}: path = {shown(stops)}; expected names of viewpoints")
    if len(stops) == 1:
        raise DataError(
            f"{path}, {location}: path {name} has a start and no further viewpoint, as in the test split, whose paths "
            "are not published; give a split that has paths"
        )
    if not -2 * pi <= heading <= 2 * pi + 0.01:
        raise DataError(f"{path}, {location}: heading = {shown(heading)}; expected radians, from -2 pi to 2 pi")
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(
            f"{path}, {location}: path {name} has an instruction without text; add the text or remove the entry"
        )
    return InstructedPath(
        _field(path, location, entry, "scan", str),
        name,
        tuple(cast(list[str], stops)),
        float(heading),
        tuple(cast(list[str], texts)),
    )


def _field(path: Path, location: str, entry: object, name: str, kind: type | tuple[type, ...]) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        value_text = "nothing" if value is None else shown(value)
        raise DataError(f"{path}, {location}: {name} is {value_text}; expected {_words(kind)}")
    return value


def _words(kind: type | tuple[type, ...]) -> str:
    names = {str: "a string", list: "an array", int: "a number", float: "a number"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(dict.fromkeys(names[each] for each in kinds))
