"""Navigation graphs of houses, out of Matterport3D's connectivity files (Anderson et al., CVPR 2018, Section 3).

A house has a file ``<scan>_connectivity.json``, alone in a folder or in a tar archive: an array of viewpoints, each
with its ``image_id``, its ``pose`` (4 x 4, row by row, in metres, z up), whether it is ``included``, and which others
are ``visible`` and ``unobstructed`` from it.
"""

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from lzma import LZMAError
from pathlib import Path

import numpy as np
from fedapps.tasks.profiles import DataError

SUFFIX = "_connectivity.json"


@dataclass(frozen=True, eq=False)
class Graph:
    """The included viewpoints of the house ``scan``.

    Attributes
    ----------
    viewpoints : tuple of str
        N names.
    positions : ndarray [N, 3]
        Metres, z up.
    navigable : bool ndarray [N, N]
        Between which viewpoints one can walk; symmetric, without loops.
    visible : bool ndarray [N, N]
        Which viewpoints (columns) are seen from each (rows), those that one can walk to included.
    """

    scan: str
    viewpoints: tuple[str, ...]
    positions: np.ndarray
    navigable: np.ndarray
    visible: np.ndarray

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The row of each viewpoint."""
        return {name: row for row, name in enumerate(self.viewpoints)}


def graph_files(folder: Path) -> list[Path]:
    """The files and archives of graphs in ``folder`` and the folders below it."""
    found = [*folder.rglob(f"*{SUFFIX}"), *folder.rglob("*connectivity*.tar*")]
    return sorted(path for path in found if path.is_file())


def read_graphs(folder: Path) -> Mapping[str, Graph]:
    """The graphs of all houses in ``folder`` and the folders below it, by the name of the house.

    Raises
    ------
    DataError
        There is none, a house has two, or a file is malformed.
    """
    graphs: dict[str, Graph] = {}
    for path in graph_files(folder):
        if path.name.endswith(SUFFIX):
            _add(graphs, _graph(path.name.removesuffix(SUFFIX), path.read_bytes(), str(path)), str(path))
            continue
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.name.endswith(SUFFIX) and (file := archive.extractfile(member)) is not None:
                        place = f"{path}, {member.name}"
                        scan = Path(member.name).name.removesuffix(SUFFIX)
                        _add(graphs, _graph(scan, file.read(), place), place)
        except (tarfile.TarError, OSError, EOFError, LZMAError) as error:
            raise DataError(f"{path}: cannot be read: {error}; expected a tar archive of *{SUFFIX}") from error
    if not graphs:
        raise DataError(
            f"{folder}: no graph of a house; expected files <scan>{SUFFIX}, or an archive *connectivity*.tar"
        )
    return dict(sorted(graphs.items()))


def _add(graphs: dict[str, Graph], graph: Graph, place: str) -> None:
    if graph.scan in graphs:
        raise DataError(f"{place}: house {graph.scan} has another graph beside this one; keep one of them")
    graphs[graph.scan] = graph


def _graph(scan: str, content: bytes, place: str) -> Graph:
    try:
        entries = json.loads(content)
        kept = np.array([bool(entry["included"]) for entry in entries], dtype=bool)
        poses = np.array([entry["pose"] for entry in entries], dtype=np.float64).reshape(len(entries), 16)
        unobstructed, visible = (
            np.array([entry[name] for entry in entries], dtype=bool).reshape(len(entries), len(entries))
            for name in ("unobstructed", "visible")
        )
        names = tuple(str(entry["image_id"]) for entry, used in zip(entries, kept, strict=True) if used)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{place}: {type(error).__name__}: {error}; expected an array of viewpoints with image_id, pose of 16 "
            "numbers, included, and visible and unobstructed with one value for each viewpoint"
        ) from error
    if not names or len(set(names)) < len(names) or not np.isfinite(poses).all():
        raise DataError(f"{place}: expected included viewpoints with different names and finite poses")
    inside = np.ix_(kept, kept)
    walkable = unobstructed[inside] | unobstructed[inside].T
    np.fill_diagonal(walkable, False)
    seen = visible[inside] | walkable
    np.fill_diagonal(seen, False)
    return Graph(scan, names, poses[kept][:, [3, 7, 11]], walkable, seen)
