"""Finding files of data, which may be compressed with gzip or xz, and a folder that keeps what was computed from them.

Computed data have a key of everything that they were computed from.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from fedapps.base.errors import DataError
from fedapps.base.text_files import COMPRESSIONS, found_in

DEFAULT_FOLDER = "~/fedapps/features"


def find_file(folder: Path, name: str) -> Path | None:
    """The file ``name``, perhaps with ``.gz`` or ``.xz`` after it, in ``folder`` or any folder below it.

    Raises
    ------
    DataError
        There is more than one.
    """
    wanted = {name + suffix for suffix in COMPRESSIONS}
    paths = [path for path in found_in(folder, f"**/{name}*") if path.name in wanted and path.is_file()]
    if len(paths) > 1:
        raise DataError(
            f"{folder}: {len(paths)} files are called {name}: {', '.join(map(str, paths))}; keep one of them"
        )
    return paths[0] if paths else None


def in_folder(name: str, folder: Path | None = None) -> Path:
    """The file or folder ``name`` in a node's folder if it is there, otherwise wherever its path leads."""
    if folder is not None and (folder / name).exists():
        return folder / name
    return Path(name).expanduser()


def key_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """The key of named inputs: 32 hexadecimal digits, others for another name, content or order."""
    digest = hashlib.blake2b(digest_size=16)
    for name, content in parts:
        digest.update(f"\x1f{name}\x1f{len(content)}\x1f".encode())
        digest.update(content)
    return digest.hexdigest()


def cached(cache: Path, name: str, compute: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache. If it is missing, ``compute`` fills an empty folder, which is then renamed.

    An interrupted computation leaves nothing under the name, and processes that compute the same at the same time do no
    harm.
    """
    target = cache / name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache))
    try:
        compute(unfinished)
        os.replace(unfinished, target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target
