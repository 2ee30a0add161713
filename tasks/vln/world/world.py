"""Writes made-up houses as a dataset for vision-and-language navigation, in the files of the real one.

Matterport3D's houses need a licence. These stand in for them: each has its own plan, frequencies of rooms and objects,
names for them and habits of its annotators, and every instruction describes its path.

* ``r2r/R2R_<split>.json``: Room-to-Room's paths: scan, path_id, path, heading, distance, instructions;
* ``mp3d_connectivity/connectivity/<scan>_connectivity.json`` and ``scans.txt``: Matterport3DSimulator's graphs:
  image_id, pose, included, visible, unobstructed, height for every viewpoint;
* ``reverie_bbox/bbox.json``: REVERIE's objects within 3 m: scan, viewpoint, object, [name, visible_pos, bbox2d];
* ``reverie_bbox/label_mpcat40.csv``: the class of every object name; ``reverie_bbox/objects3d.csv``: where objects
  that two viewpoints see are;
* ``mp3d_rooms/rooms.csv``: the room of every viewpoint.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedapps.base.seeding import generator
from fedapps.base.tables import write_table

from .catalogue import OBJECTS, ROOM_LABELS
from .house import House, SampledPath, draw_house, sample_paths
from .plan import boxes_in_views
from .wording import DETAILS, Annotator, Habits, describe, draw_habits

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


def room_rows(house: House) -> list[tuple[object, ...]]:
    """Scan, viewpoint, number and name of its room, and "train", the only part of the dataset that has rooms.

    A viewpoint in a door belongs to the room that is no hallway.
    """
    rows: list[tuple[object, ...]] = []
    for identifier, spot in zip(house.ids, house.spots, strict=True):
        kinds = [house.plan.rooms[number].kind for number in spot.rooms]
        kind = min(kinds, key=lambda kind: kind == "hallway")
        rows.append((house.scan, identifier, ROOM_LABELS[kind], kind, "train"))
    return rows


def label_rows(counts: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Name, count and mpcat40 class of each object name in ``counts``, from the most frequent."""
    classes = {name: kind.mpcat40 for kind in OBJECTS.values() for name in kind.names}
    return [(name, counts[name], classes[name]) for name in sorted(counts, key=lambda name: (-counts[name], name))]


logger = logging.getLogger(__name__)
WORLD_FILE = "world.json"
SPLITS = ("train", "val_seen", "val_unseen")


@dataclass(frozen=True)
class HouseWorld:
    """How much there is to learn.

    ``houses`` are in the training split with at most ``paths`` paths each and in ``val_seen`` with at most
    ``seen_paths`` others; ``unseen_houses`` are in ``val_unseen`` alone with at most ``paths`` each. A house has 1 to
    ``floors`` floors with about 35 viewpoints each, and every path three instructions. A house with fewer paths of
    Room-to-Room's length gives all it has, to training first.
    """

    houses: int = 16
    unseen_houses: int = 4
    paths: int = 60
    seen_paths: int = 6
    floors: int = 2

    def scans(self) -> dict[str, bool]:
        """The names of the houses, and whether each is in the training split."""
        seen = {f"seen{number:04d}": True for number in range(self.houses)}
        return seen | {f"unseen{number:04d}": False for number in range(self.unseen_houses)}


def write_houses(folder: Path, world: HouseWorld, seed: int) -> None:
    """Write the houses of ``world`` into ``folder``.

    ``<folder>/world.json``, written last, says that all is simulated, by which ``seed`` and parameters. The same seed
    gives the same bytes on the same machine; a house and its paths depend on the seed, its name and ``floors``.
    As in the real files, only houses of the training split have room labels. Progress is logged every ten seconds.
    """
    begun = logged = time.monotonic()
    entries: dict[str, list[dict[str, object]]] = {split: [] for split in SPLITS}
    boxes: dict[str, dict[str, dict[str, Annotation]]] = {}
    rooms: list[tuple[object, ...]] = []
    objects: list[tuple[object, ...]] = []
    names: Counter[str] = Counter()
    graphs = folder / "mp3d_connectivity" / "connectivity"
    scans = world.scans()
    for number, (scan, seen) in enumerate(scans.items()):
        house = draw_house(scan, int(generator(seed, "houses.floors", scan).integers(1, world.floors + 1)), seed)
        paths = sample_paths(house, world.paths + world.seen_paths * seen, generator(seed, "houses.paths", scan))
        habits = draw_habits(generator(seed, "houses.habits", scan))
        for index, path in enumerate(paths):
            split = SPLITS[index >= world.paths] if seen else SPLITS[2]
            instructions = write_instructions(house, path, habits, generator(seed, "houses.instructions", scan, index))
            entries[split].append(path_entry(house, sum(map(len, entries.values())), path, instructions))
        write_json(graphs / f"{scan}_connectivity.json", connectivity(house))
        boxes[scan] = annotations(house)
        objects += object_rows(house, boxes[scan])
        rooms += room_rows(house) if seen else []
        names.update(name for annotated in boxes[scan].values() for name, _, _ in annotated.values())
        if time.monotonic() - logged > 10:
            logged = time.monotonic()
            logger.info("built %d of %d houses in %.0f s", number + 1, len(scans), logged - begun)
    (graphs / "scans.txt").write_text("".join(f"{scan}\n" for scan in scans), encoding="utf-8")
    for split in SPLITS:
        write_json(folder / "r2r" / f"R2R_{split}.json", entries[split])
    write_json(folder / "reverie_bbox" / "bbox.json", boxes)
    write_table(folder / "reverie_bbox" / "label_mpcat40.csv", LABEL_COLUMNS, label_rows(names))
    write_table(folder / "reverie_bbox" / "objects3d.csv", OBJECT_COLUMNS, objects)
    write_table(folder / "mp3d_rooms" / "rooms.csv", ROOM_COLUMNS, rooms)
    facts = {"simulated": True, "seed": seed, "parameters": asdict(world), "scans": scans}
    (folder / WORLD_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_instructions(house: House, path: SampledPath, habits: Habits, rng: np.random.Generator) -> list[str]:
    """Three instructions for a path: one of each detail, in random order."""
    clauses = describe(house, path)
    return [Annotator(habits, detail, rng).write(clauses) for detail in rng.permutation(list(DETAILS)).tolist()]
