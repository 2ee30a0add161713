"""Writes made-up houses as a dataset for vision-and-language navigation, in the files of the real one.

Matterport3D's houses need a licence. These stand in for them: each has its own plan, frequencies of rooms and objects,
names for them and habits of its annotators, and every instruction describes its path.
"""

import json
import logging
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedapps.base.seeding import generator

from .description import describe
from .files import (
    LABEL_COLUMNS,
    OBJECT_COLUMNS,
    ROOM_COLUMNS,
    Annotation,
    annotations,
    connectivity,
    label_rows,
    object_rows,
    path_entry,
    room_rows,
    write_json,
    write_table,
)
from .house import House, SampledPath, draw_house, sample_paths
from .wording import DETAILS, Annotator, Habits, draw_habits

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

    def __post_init__(self) -> None:
        for name, least in (("houses", 1), ("unseen_houses", 0), ("paths", 1), ("seen_paths", 0), ("floors", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least {least}")

    def scans(self) -> dict[str, bool]:
        """The names of the houses, and whether each is in the training split."""
        seen = {f"seen{number:04d}": True for number in range(self.houses)}
        return seen | {f"unseen{number:04d}": False for number in range(self.unseen_houses)}


def write_houses(folder: Path, world: HouseWorld, seed: int) -> list[str]:
    """Write the houses of ``world`` into ``folder``, as :mod:`~.files` does; returns their names.

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
        rooms += room_rows(house, "train") if seen else []
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
    return list(scans)


def write_instructions(house: House, path: SampledPath, habits: Habits, rng: np.random.Generator) -> list[str]:
    """Three instructions for a path: one of each detail, in random order."""
    clauses = describe(house, path)
    return [Annotator(habits, detail, rng).write(clauses) for detail in rng.permutation(list(DETAILS)).tolist()]
