"""The styles of the drivers in ``world.json``."""

import json
from pathlib import Path

WORLD_FILE = "world.json"


def read_styles(folder: Path) -> dict[int, float]:
    """Return the risk tolerance gamma of each block's driver; empty without the file, as for recorded trials.

    Raises
    ------
    ValueError
        The file is malformed.
    """
    path = folder / WORLD_FILE
    if not path.exists():
        return {}
    try:
        blocks = json.loads(path.read_bytes())["blocks"]
        return {int(block): float(driver["gamma"]) for block, driver in blocks.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: expected blocks of drivers, each with its gamma: {error!r}") from error
