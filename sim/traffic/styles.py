"""The drivers' styles in ``world.json``, read without torch, which the whole world needs (:mod:`sim.traffic.files`)."""

import json
from pathlib import Path

WORLD_FILE = "world.json"


def read_styles(folder: Path) -> dict[int, float]:
    """The tolerance of risk, gamma, of each block's driver; none without the file, as with recorded trials.

    Raises ``ValueError`` naming the file when it is no world of this package.
    """
    path = folder / WORLD_FILE
    if not path.exists():
        return {}
    try:
        blocks = json.loads(path.read_text(encoding="utf-8"))["blocks"]
        return {int(block): float(driver["gamma"]) for block, driver in blocks.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: expected blocks of drivers, each with its gamma: {error!r}") from error
