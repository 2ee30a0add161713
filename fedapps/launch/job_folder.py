"""The names and the folders of jobs: runs, comparisons, tunings, audits."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def new_folder(
    parent: str | Path, name: str, otherwise: str = "", advice: str = "choose another name"
) -> Iterator[Path]:
    """Create the folder of a job in one step. Two jobs never get the same folder, even in the same second.

    Parameters
    ----------
    parent : str or Path
        Its folder, which is created if it is missing.
    name : str
        What the user calls it; may be empty.
    otherwise : str
        Its name if ``name`` is empty. If that is taken, a number is added: ``-2``, ``-3`` and so on.
    advice : str
        What to do if the folder ``name`` exists; ``{folder}`` stands for its path.

    Yields
    ------
    Path
        The folder. It is removed if what happens in this context fails and leaves it empty.

    Raises
    ------
    ValueError
        The folder ``name`` exists, or a folder cannot be created.
    """
    taken = 0
    while True:
        folder = Path(parent) / (name or (f"{otherwise}-{taken + 1}" if taken else otherwise))
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            if name or not folder.exists():  # what exists otherwise is a file on the way to it
                raise ValueError(f"{folder} exists: {advice.format(folder=folder)}") from None
            taken += 1
        except OSError as error:
            raise ValueError(f"output-dir: {folder} cannot be written ({error}): choose another folder") from error
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def timed_name(kind: str) -> str:
    """The name of a job that was given none: what it is, and the time in seconds."""
    return f"{kind.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
