"""Find data files, which may be compressed with gzip or xz, and read JSON."""

import json
from pathlib import Path
from typing import Any

from fedapps.tasks.profiles import DataError
from fedapps.tasks.tables import COMPRESSIONS, UNREADABLE, open_text


def find_file(folder: Path, name: str) -> Path | None:
    """The file ``name``, perhaps with ``.gz`` or ``.xz`` after it, in ``folder`` or any folder below it.

    Raises
    ------
    DataError
        There is more than one.
    """
    wanted = {name + suffix for suffix in COMPRESSIONS}
    found = sorted(path for path in folder.rglob(f"{name}*") if path.name in wanted and path.is_file())
    if len(found) > 1:
        raise DataError(
            f"{folder}: {len(found)} files are called {name}: {', '.join(map(str, found))}; keep one of them"
        )
    return found[0] if found else None


def in_folder(name: str, folder: Path | None = None) -> Path:
    """The file ``name`` in a node's folder if it is there, otherwise wherever its path leads."""
    if folder is not None and (folder / name).is_file():
        return folder / name
    return Path(name).expanduser()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raise :class:`DataError` if it cannot be read or is not JSON."""
    try:
        with open_text(path) as file:
            return json.load(file)
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read or is damaged: {error}") from error
    except ValueError as error:
        raise DataError(f"{path}: no JSON: {error}") from error
