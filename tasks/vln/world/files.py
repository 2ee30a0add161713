"""Houses as files, in the formats of the real data.

* ``r2r/R2R_<split>.json``: Room-to-Room's paths: scan, path_id, path, heading, distance, instructions;
* ``mp3d_connectivity/connectivity/<scan>_connectivity.json`` and ``scans.txt``: Matterport3DSimulator's graphs:
  image_id, pose, included, visible, unobstructed, height for every viewpoint;
* ``reverie_bbox/bbox.json``: REVERIE's objects within 3 m: scan, viewpoint, object, [name, visible_pos, bbox2d];
* ``reverie_bbox/label_mpcat40.csv``: the class of every object name; ``reverie_bbox/objects3d.csv``: where objects
  that two viewpoints see are;
* ``mp3d_rooms/rooms.csv``: the room of every viewpoint.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .catalogue import OBJECTS, ROOM_LABELS
from .house import House, SampledPath
from .sight import boxes_in_views

SIGHT = 3.0  # metres from a camera within which objects are annotated

LABEL_COLUMNS = ("name", "count", "mpcat40")
OBJECT_COLUMNS = ("scan", "object_id", "name", "x", "y", "z", "n_viewpoints", "median_residual_deg")
ROOM_COLUMNS = ("scan", "viewpoint", "label_id", "label_name_inferred", "split")

Annotation = tuple[str, list[int], list[list[int]]]
"""An object as one viewpoint has it: its name, the views in which it is, and where: x, y, width, height in pixels."""


def write_json(file: Path, data: object) -> None:
    """Write ``data`` into ``file``, whose folder is made where it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data), encoding="utf-8")


def write_table(file: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table with a header, separated by commas."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def path_entry(house: House, number: int, path: SampledPath, instructions: Sequence[str]) -> dict[str, object]:
    """A path with the unique ``number`` as Room-to-Room has it: metres to 2 and radians to 3 decimals."""
    return {
        "distance": round(path.distance, 2),
        "scan": house.scan,
        "path_id": number,
        "path": [house.ids[spot] for spot in path.spots],
        "heading": round(path.heading, 3),
        "instructions": list(instructions),
    }


def connectivity(house: House) -> list[dict[str, object]]:
    """The house's viewpoints as Matterport3DSimulator has them. ``pose`` is row by row, from the camera to the world.

    A camera's x is to its right, y down and z ahead.
    """
    rows = zip(house.ids, house.cameras, house.yaws, house.heights, house.visible, house.unobstructed, strict=True)
    return [
        {
            "image_id": identifier,
            "pose": _pose(camera, float(yaw)),
            "included": True,
            "visible": visible.tolist(),
            "unobstructed": unobstructed.tolist(),
            "height": float(height),
        }
        for identifier, camera, yaw, height, visible, unobstructed in rows
    ]


def _pose(camera: np.ndarray, yaw: float) -> list[float]:
    right, ahead = (np.cos(yaw), -np.sin(yaw)), (np.sin(yaw), np.cos(yaw))
    matrix = np.eye(4)
    matrix[:3] = [(right[0], 0, ahead[0], camera[0]), (right[1], 0, ahead[1], camera[1]), (0, -1, 0, camera[2])]
    return [float(value) for value in np.round(matrix, 6).ravel()]


def annotations(house: House) -> dict[str, dict[str, Annotation]]:
    """For each viewpoint, its objects within 3 m. An object behind a wall is in no view."""
    near = np.linalg.norm(house.cameras[:, None] - house.centres, axis=-1) <= SIGHT
    of_spots: dict[str, dict[str, Annotation]] = {identifier: {} for identifier in house.ids}
    for spot, item in np.argwhere(near).tolist():
        of_spots[house.ids[spot]][str(item)] = (house.items[item].name, [], [])
    pairs = np.argwhere(near & house.in_sight)
    boxes, inside = boxes_in_views(house.corners[pairs[:, 1]] - house.cameras[pairs[:, 0], None])
    for (spot, item), rectangles, views in zip(pairs.tolist(), boxes, inside, strict=True):
        _, numbers, rows = of_spots[house.ids[spot]][str(item)]
        numbers += np.flatnonzero(views).tolist()
        rows += rectangles[views].tolist()
    return of_spots


def object_rows(house: House, annotated: Mapping[str, Mapping[str, Annotation]]) -> list[tuple[object, ...]]:
    """Objects in the views of two viewpoints or more: scan, id, name, x, y, z in metres, viewpoints, error in degrees.

    The places of made-up objects are known, so the error is 0.
    """
    viewpoints = np.zeros(len(house.items), int)
    for objects in annotated.values():
        for item, (_, views, _) in objects.items():
            viewpoints[int(item)] += bool(views)
    return [
        (house.scan, item, house.items[item].name, *np.round(house.centres[item], 3).tolist(), viewpoints[item], 0.0)
        for item in np.flatnonzero(viewpoints >= 2).tolist()
    ]


def room_rows(house: House, part: str) -> list[tuple[object, ...]]:
    """Scan, viewpoint, number and name of its room, and ``part`` of the dataset.

    A viewpoint in a door belongs to the room that is no hallway.
    """
    rows: list[tuple[object, ...]] = []
    for identifier, spot in zip(house.ids, house.spots, strict=True):
        kinds = [house.plan.rooms[number].kind for number in spot.rooms]
        kind = min(kinds, key=lambda kind: kind == "hallway")
        rows.append((house.scan, identifier, ROOM_LABELS[kind], kind, part))
    return rows


def label_rows(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Name, count and mpcat40 class of each object name in ``counts``, from the most frequent."""
    classes = {name: kind.mpcat40 for kind in OBJECTS.values() for name in kind.names}
    return [(name, counts[name], classes[name]) for name in sorted(counts, key=lambda name: (-counts[name], name))]
