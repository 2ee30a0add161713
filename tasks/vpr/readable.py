"""Which pictures can be read, found out before training and without decoding them.

Whether a file is there is asked of all pictures of a data set when its tables are read. Whether it holds a picture is
asked of those that a process is about to use, by its first bytes (format, width and height) and, of a JPEG or PNG, by
its last, which a file that was cut short does not have: a picture without them is decoded. One that is damaged in
between shows only when it is trained on.
"""

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from tasks.profiles import DataError

from .images import UNDECODABLE, ImageFiles, ImageTar
from .places import Places

logger = logging.getLogger(__name__)

NAMED = 10  # pictures that a message lists
_AT_ONCE = 8  # files that are waited for, which takes longer than to look at what comes
_BLOCK = 512  # pictures that are asked for in one go
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}


class Inspection:
    """What is known of the pictures of ``places``, which the tables in ``folder`` name; each is looked at once."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder = folder
        self.source = places.store.source
        self.images = places.image
        self._sound = np.zeros(len(places.store), dtype=bool)

    def require_present(self) -> None:
        """Raise :class:`DataError` where pictures are missing, naming those too that are no pictures.

        As long as none is missing no file is opened.
        """
        if isinstance(self.source, (ImageFiles, ImageTar)) and np.isin(self.source.absent(), self.images).any():
            self._refuse(self._unreadable(self.images))

    def require_readable(self, places: Places) -> None:
        """Raise :class:`DataError` where some of ``places`` are missing or no pictures, naming all others too."""
        if self._unreadable(places.image):
            self._refuse(self._unreadable(self.images))

    def readable(self, places: Places) -> Places:
        """``places`` without those that cannot be read, which the log counts.

        Raises :class:`DataError` when none is left.
        """
        problems = self._unreadable(places.image)
        if not problems:
            return places
        kept = places.select(np.flatnonzero(~np.isin(places.image, list(problems))))
        if not len(kept):
            self._refuse(problems)
        said = ", ".join(self._named(problems))
        count = f"{len(problems)} of {len(places)} pictures"
        logger.warning("%s: vpr.skip-unreadable leaves out %s: %s", self.folder, count, said)
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
            said = "\n  ".join(self._named(problems))
            raise DataError(
                f"{self.folder}: {len(problems)} of {len(self.images)} pictures cannot be read:\n  {said}\nreplace "
                "them, take them out of the tables, or set vpr.skip-unreadable = true to leave them out"
            )

    def _named(self, problems: Mapping[int, str]) -> list[str]:
        """The first of them, and how many more there are."""
        assert isinstance(self.source, (ImageFiles, ImageTar))
        said = [f"{self.source.name(index)} ({problem})" for index, problem in list(problems.items())[:NAMED]]
        return said + ([f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else [])


def damaged(source: ImageFiles | ImageTar, indices: np.ndarray) -> dict[int, str]:
    """Which of the pictures ``indices`` cannot be read, and why, judged by their first and last bytes."""
    blocks = [indices[start : start + _BLOCK].tolist() for start in range(0, len(indices), _BLOCK)]
    Image.preinit()  # before threads ask for Pillow's formats

    def look(block: list[int]) -> dict[int, str]:
        found = {index: _problem(source, index) for index in block}
        return {index: problem for index, problem in found.items() if problem}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {index: problem for found in pool.map(look, blocks) for index, problem in found.items()}


def _problem(source: ImageFiles | ImageTar, index: int) -> str:
    """What is wrong with a picture, "" where nothing seems to be."""
    try:
        with source.open(index) as file, Image.open(file) as picture:
            if end := _ENDS.get(picture.format or ""):
                file.seek(-len(end), os.SEEK_END)
                if file.read() != end:  # cut short, or something follows it
                    picture.load()
    except FileNotFoundError:
        return "no such file"
    except UnidentifiedImageError:
        return "no picture"
    except UNDECODABLE as error:
        return str(getattr(error, "strerror", None) or error)
    return ""
