"""Checks, before training and without decoding, which images can be read.

Whether a file exists is checked for all images of a data set when its tables are read. Whether it is an image is
checked for the images that a process is about to use: by the first bytes (format, mode, width and height) and, for JPEG
and PNG, by the last bytes, which truncated files lack; an image without them, or with an alpha channel, is decoded.
Damage in between is detected only when the image is loaded.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from fedapps.tasks.vision import problem_in
from PIL import Image

from fedapps.base.errors import DataError

from .images import LIMIT, ImageFiles, ImageTar
from .places import Places

logger = logging.getLogger(__name__)

NAMED = 10  # images that a message lists
_AT_ONCE = 8  # threads; most of the time is spent waiting for files
_BLOCK = 512  # images per task of a thread


class Inspection:
    """Checks the images of ``places``, which the tables in ``folder`` list. Each image is checked once."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder = folder
        self.source = places.store.source
        self.images = places.image
        self._sound = np.zeros(len(places.store), dtype=bool)

    def require_present(self) -> None:
        """Raise :class:`DataError` if images are missing; the message also lists files that are not images.

        No file is opened unless one is missing.
        """
        if isinstance(self.source, (ImageFiles, ImageTar)) and np.isin(self.source.absent(), self.images).any():
            self._refuse(self._unreadable(self.images))

    def require_readable(self, places: Places) -> None:
        """Raise :class:`DataError` if some of ``places`` are missing or not images; the message lists all of them."""
        if self._unreadable(places.image):
            self._refuse(self._unreadable(self.images))

    def readable(self, places: Places) -> Places:
        """Return ``places`` without unreadable images, and log their number.

        Raises
        ------
        DataError
            No image is left.
        """
        problems = self._unreadable(places.image)
        if not problems:
            return places
        kept = places.select(np.flatnonzero(~np.isin(places.image, list(problems))))
        if not len(kept):
            self._refuse(problems)
        names = ", ".join(self._named(problems))
        count = f"{len(problems)} of {len(places)} images"
        logger.warning("%s: vpr.skip-unreadable excludes %s: %s", self.folder, count, names)
        return kept

    def _unreadable(self, images: np.ndarray) -> dict[int, str]:
        if not isinstance(self.source, (ImageFiles, ImageTar)):
            return {}  # in memory
        asked = np.unique(images)
        asked = asked[~self._sound[asked]]
        problems = damaged(self.source, asked)
        self._sound[np.setdiff1d(asked, list(problems))] = True
        return problems

    def _refuse(self, problems: Mapping[int, str]) -> None:
        if problems:
            names = "\n  ".join(self._named(problems))
            raise DataError(
                f"{self.folder}: {len(problems)} of {len(self.images)} images cannot be read:\n  {names}\nreplace "
                "them, remove them from the tables, or set vpr.skip-unreadable = true to exclude them"
            )

    def _named(self, problems: Mapping[int, str]) -> list[str]:
        """The first problems, and the number of the others."""
        assert isinstance(self.source, (ImageFiles, ImageTar))
        lines = [f"{self.source.name(index)} ({problem})" for index, problem in list(problems.items())[:NAMED]]
        return lines + ([f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else [])


def damaged(source: ImageFiles | ImageTar, indices: np.ndarray) -> dict[int, str]:
    """Return which of the images ``indices`` cannot be read and why, judged by their first and last bytes."""
    blocks = [indices[start : start + _BLOCK].tolist() for start in range(0, len(indices), _BLOCK)]
    Image.preinit()  # load Pillow's formats before threads need them

    def look(block: list[int]) -> dict[int, str]:
        problems = {index: _problem(source, index) for index in block}
        return {index: problem for index, problem in problems.items() if problem}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {index: problem for problems in pool.map(look, blocks) for index, problem in problems.items()}


def _problem(source: ImageFiles | ImageTar, index: int) -> str:
    """What is wrong with an image, "" if nothing is found."""
    try:
        with source.open(index) as file:
            return problem_in(file, source.max_pixels, LIMIT)
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return str(error.strerror or error)
