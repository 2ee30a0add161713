"""A world that takes a while to make, importable by a fresh process at little cost (no torch model, no Flower)."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from fedapps.clients.data import world_folder


@dataclass(frozen=True)
class Options:
    """None."""


def make_small_world(cache_dir: Path, diary: Path) -> Path:
    """The folder of a world of two nodes; every making leaves the process's number in ``diary``."""

    def make_world(folder: Path, num_nodes: int, seed: int) -> None:
        (diary / str(os.getpid())).touch()
        for partition in range(num_nodes):
            time.sleep(0.2)
            (folder / f"{partition}.txt").touch()

    task = SimpleNamespace(name="small", world_version=1, world_options={}, make_world=make_world)
    return world_folder(task, 2, 0, cache_dir)  # type: ignore[arg-type]
