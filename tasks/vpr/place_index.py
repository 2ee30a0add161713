"""An index of places: descriptors of images with their positions, searched exactly, kept in one file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from fedapps.tasks.model_folder import field_of, texts_of
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedapps.base.atomic import write_whole
from fedapps.base.errors import DataError
from fedapps.base.text_files import from_json, shown

from .given_images import metres_between, positions_of
from .retrieval import nearest_rows

#: The name of an index in the folder of further files of a model.
INDEX_FILE = "index.safetensors"
_FORMAT = 1
_SPARE = 16  # candidates beside those asked for
_ROUNDING = 1e-4  # of squared distances between float32 vectors of length 1, with room to spare
_BLOCK = 2**22  # numbers of candidates' descriptors in memory


@dataclass(frozen=True, eq=False)
class Matches:
    """The ``k`` nearest images of an index for each of ``q`` queries, nearest first.

    Attributes
    ----------
    rows : int64 ndarray [q, k]
        Their rows in the index.
    names : list of list of str
        Their names.
    distance : float32 ndarray [q, k]
        The distance between the descriptors, from 0 (alike) to 2.
    position : float64 ndarray [q, k, 2]
        Where they were taken, in the coordinates of the index; NaN where unknown.
    metres : float64 ndarray [q, k]
        How far that is from the query's position: NaN where one of the two is unknown, infinite in another city. Metres
        of different cities have different origins, so that in an index of several it is also NaN where a city is
        unknown, unless positions are degrees.
    """

    rows: np.ndarray
    names: list[list[str]]
    distance: np.ndarray
    position: np.ndarray
    metres: np.ndarray

    def rows_of(self, queries: Sequence[str], *, degrees: bool) -> Iterator[dict[str, Any]]:
        """Yield ``image``, the name of a query, and its ``matches``, as JSON has them: what is unknown is ``None``."""
        x, y = ("lon", "lat") if degrees else ("x", "y")
        columns = zip(
            queries, self.names, self.distance.tolist(), self.position.tolist(), self.metres.tolist(), strict=True
        )
        for query, *values in columns:
            matches = [
                {"image": name, "distance": distance, x: _known(at[0]), y: _known(at[1]), "metres": _known(metres)}
                for name, distance, at, metres in zip(*values, strict=True)
            ]
            yield {"image": query, "matches": matches}


@dataclass(frozen=True, eq=False)
class PlaceIndex:
    """The descriptors of ``m`` images and where these were taken.

    Attributes
    ----------
    descriptors : float32 ndarray [m, d]
        Of length 1.
    names : tuple of str
    position : float64 ndarray [m, 2]
        East and north in metres, or longitude and latitude in degrees; NaN where unknown.
    degrees : bool
        Whether positions are degrees.
    cities : tuple of str
        Positions in different cities cannot be compared; all are "" if there is only one city.
    model : str
        A hash of the weights that made the descriptors: no other model's descriptors can be searched here.
    """

    descriptors: np.ndarray
    names: tuple[str, ...]
    position: np.ndarray
    degrees: bool
    cities: tuple[str, ...]
    model: str

    def __len__(self) -> int:
        return len(self.descriptors)

    def search(
        self,
        descriptors: np.ndarray,
        k: int = 5,
        *,
        position: np.ndarray | None = None,
        cities: Sequence[str] | None = None,
    ) -> Matches:
        """Find the nearest images by the Euclidean distance of descriptors.

        The search is exact: FAISS (``IndexFlatL2``) proposes candidates where it is installed, otherwise PyTorch, and
        their distances are computed in float64. The result is the same with both, and of equal distances the first row
        comes first.

        Parameters
        ----------
        descriptors : float32 ndarray [q, d]
        k : int
            Matches for each query, at most m.
        position : ndarray [q, 2], optional
            Where the queries were taken, in the coordinates of the index; NaN where unknown.
        cities : sequence of str, optional
            Their cities, if the index has several; "" where unknown.

        Raises
        ------
        DataError
            The index is empty, ``k`` is not a whole number of at least 1, a shape is wrong, or positions in degrees are
            impossible.
        """
        if not len(self):
            raise DataError("the index has no image: build it from at least one")
        if not isinstance(k, Integral) or k < 1:
            raise DataError(f"k = {k}: must be a whole number of at least 1")
        asked = np.ascontiguousarray(descriptors, dtype=np.float32)
        if asked.ndim != 2 or asked.shape[1] != self.descriptors.shape[1]:
            raise DataError(f"descriptors of shape {list(asked.shape)}; expected [q, {self.descriptors.shape[1]}]")
        places = positions_of(position, len(asked), degrees=self.degrees)
        if cities is not None and len(cities) != len(asked):
            raise DataError(f"{len(cities)} cities of {len(asked)} queries; expected one for each")
        rows, distance = self._nearest(asked, min(int(k), len(self)))
        of_matches = self.position[rows]
        metres = metres_between(places[:, None], of_matches, degrees=self.degrees)
        given = [""] * len(asked) if cities is None else list(map(str, cities))
        city_of_query = np.array(given, dtype=str)[:, None]
        city_of_match = np.array(self.cities)[rows]
        known = (city_of_query != "") & (city_of_match != "")
        metres[known & (city_of_query != city_of_match)] = np.inf
        if not self.degrees and len(set(self.cities)) > 1:
            metres[~known] = np.nan
        names = [[self.names[row] for row in some] for some in rows.tolist()]
        return Matches(rows, names, distance.astype(np.float32), of_matches, metres)

    def _nearest(self, asked: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and distances ``[q, k]`` by the exact distance, then by the row."""
        rows, distances = np.empty((len(asked), k), dtype=np.int64), np.empty((len(asked), k))
        open_queries, width = np.arange(len(asked)), k
        while len(open_queries):
            width = min(len(self), 2 * width + _SPARE)
            candidates = self._candidates(asked[open_queries], width)
            squares = self._squares(asked[open_queries], candidates)
            order = np.lexsort((candidates, squares))
            candidates, squares = (np.take_along_axis(each, order, axis=1) for each in (candidates, squares))
            rows[open_queries], distances[open_queries] = candidates[:, :k], np.sqrt(squares[:, :k])
            # Rounding may have kept out a row that is as near as the last one: look further.
            near = squares[:, k - 1] + _ROUNDING >= squares[:, -1]
            open_queries = open_queries[near] if width < len(self) else open_queries[:0]
        return rows, distances

    def _candidates(self, asked: np.ndarray, width: int) -> np.ndarray:
        if self._faiss is None:
            return nearest_rows(asked, self.descriptors, width)
        rows: np.ndarray = self._faiss.search(asked, width)[1]
        return rows

    def _squares(self, asked: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        squares = np.empty(candidates.shape)
        at_once = max(1, _BLOCK // (candidates.shape[1] * asked.shape[1]))
        for start in range(0, len(asked), at_once):
            some = slice(start, start + at_once)
            apart = self.descriptors[candidates[some]].astype(np.float64) - asked[some, None]
            squares[some] = (apart**2).sum(axis=2)
        return squares

    @cached_property
    def _faiss(self) -> Any:
        if find_spec("faiss") is None:  # it is faster, and no more: the extra of the task does not install it
            return None
        index = import_module("faiss").IndexFlatL2(self.descriptors.shape[1])
        index.add(np.ascontiguousarray(self.descriptors))
        return index

    def save(self, path: str | Path) -> Path:
        """Write the index as one safetensors file, completely or not at all.

        Parameters
        ----------
        path : str or Path
            The file, or a folder, in which it is called ``index.safetensors``.

        Raises
        ------
        UnwritableError
            It cannot be written.
        """
        file = _file(Path(path).expanduser())
        about = {"format": _FORMAT, "degrees": self.degrees, "model": self.model}
        about |= {"names": list(self.names), "cities": list(self.cities)}
        tensors = {"descriptors": np.ascontiguousarray(self.descriptors), "position": self.position}
        write_whole(file, save(tensors, {"index": json.dumps(about, ensure_ascii=False)}))
        return file

    @classmethod
    def load(cls, path: str | Path) -> "PlaceIndex":
        """Read the file that :meth:`save` wrote, by its name or that of its folder.

        Raises
        ------
        DataError
            It is missing, damaged, or of another format.
        """
        file = _file(Path(path).expanduser())
        if not file.is_file():
            raise DataError(f"{file}: no such index; build one with index() and save() it")
        try:
            with safe_open(file, framework="numpy") as stored:
                about = from_json((stored.metadata() or {}).get("index", ""))
                if set(stored.keys()) != {"descriptors", "position"}:
                    raise ValueError(f"has the tensors {shown(sorted(stored.keys()))}")
                kinds = {name: stored.get_slice(name).get_dtype() for name in ("descriptors", "position")}
                if kinds != {"descriptors": "F32", "position": "F64"}:
                    raise ValueError(f"its tensors are of the types {kinds}")
                descriptors, position = stored.get_tensor("descriptors"), stored.get_tensor("position")
            if (version := field_of(about, "format", int)) != _FORMAT:
                raise ValueError(f"format {version}; expected {_FORMAT}")
            names, cities = texts_of(about, "names"), texts_of(about, "cities")
            if descriptors.ndim != 2 or not len(names) == len(cities) == len(descriptors):
                raise ValueError(f"descriptors of shape {list(descriptors.shape)} for {len(names)} names")
            if position.shape != (len(names), 2) or not np.isfinite(descriptors).all():
                raise ValueError("its positions are not two for each image, or a descriptor is not finite")
            return cls(
                descriptors, names, position, field_of(about, "degrees", bool), cities, field_of(about, "model", str)
            )
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{file}: is no index of places, or damaged ({error}): build it again") from error


def _known(number: float) -> float | None:
    return number if isfinite(number) else None


def _file(path: Path) -> Path:
    return path / INDEX_FILE if path.is_dir() else path
