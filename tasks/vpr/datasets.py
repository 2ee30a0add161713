"""Recognises the data set in a folder and assigns its cities to training, test and validation.

A city needs both queries and a database.

Which images can be read is checked before training and without decoding. Whether a file exists is checked for all
images of a data set when its tables are read. Whether it is an image is checked for the images that a process is about
to use: by the first bytes (format, mode, width and height) and, for JPEG and PNG, by the last bytes, which truncated
files lack; an image without them, or with an alpha channel, is decoded. Damage in between is detected only when the
image is loaded.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedapps.tasks.vision import problem_in
from PIL import Image

from fedapps.base.errors import DataError
from fedapps.base.options import split_names
from fedapps.base.text_files import refuse_several

from . import readers
from .images import LIMIT, ImageFiles, ImageTar
from .options import Options
from .places import Places, refuse_degrees

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


@dataclass(frozen=True, eq=False)
class Dataset:
    """The images of the training, test and validation cities; ``None`` if there are none.

    All image files exist; ``inspection`` checks whether they can be read.
    """

    training: Places
    test: Places | None
    validation: Places | None
    inspection: Inspection


def read_dataset(folder: Path, options: Options, *, own: bool = False) -> Dataset:
    """Read the images in ``folder``.

    Training cities without queries or without a database are excluded.

    Parameters
    ----------
    folder : Path
        The folder.
    options : Options
        The options of the task.
    own : bool
        Whether the folder is that of one deployed node, which need not contain the named test cities.

    Raises
    ------
    DataError
        The folder holds no known data set, images are missing and ``options`` do not allow skipping them, a named city
        does not exist, a test or validation city lacks queries or a database, or no city is left for training.
    """
    kind = kind_of(folder, options)
    places = _read(kind, folder, options)
    inspection = Inspection(folder, places)
    if options.skip_unreadable:
        places = inspection.readable(places)
    else:
        inspection.require_present()
    test = split_names(options.test_cities) or (() if own else _default_test(kind, folder, places, options))
    validation = split_names(options.validation_cities)
    if own:
        test, validation = (tuple(city for city in some if city in places.cities) for some in (test, validation))
    training = [city for city in places.cities if city not in test and city not in validation]
    if not training:
        raise DataError(
            f"{folder}: no city is left for training besides {', '.join(test + validation)} (see vpr.test-cities, "
            "vpr.test-share, vpr.validation-cities)"
        )
    dataset = Dataset(
        complete_for_training(places.of_city(*training), folder),
        places.of_city(*test) if test else None,
        places.of_city(*validation) if validation else None,
        inspection,
    )
    for name, common in (("test", dataset.test), ("validation", dataset.validation)):
        if common is not None and (lacking := incomplete_cities(common)):
            raise DataError(
                f"{folder}: the common {name} set needs queries and a database in each of its cities: "
                f"{_named(lacking)}; add the images, or name other cities in vpr.{name}-cities"
            )
    return dataset


def read_images(folder: Path, options: Options) -> Places:
    """Read all images of the data set in ``folder``. Raise :class:`DataError` if it holds no known one."""
    return _read(kind_of(folder, options), folder, options)


def kind_of(folder: Path, options: Options) -> str:
    """Return the value of ``vpr.dataset``, found in the folder if it is "auto".

    Raises
    ------
    DataError
        The folder has no data set, or the marks of several.
    """
    if options.dataset != "auto":
        return options.dataset
    marks = {
        "msls": folder / "train_val",
        "nordland": folder / readers.NORDLAND_FILE,
        "indoor": folder / readers.METADATA,
        "table": folder / options.table_file,
    }
    kinds = [kind for kind, mark in marks.items() if mark.exists()]
    readings = {f"{marks[kind].name} ({kind})": True for kind in kinds}
    refuse_several(folder, readings, "set vpr.dataset to one of these kinds")
    if kinds:
        return kinds[0]
    raise DataError(
        f"{folder}: no data set found; expected one of {', '.join(mark.name for mark in marks.values())} "
        "(see vpr.dataset, vpr.table-file)"
    )


def _read(kind: str, folder: Path, options: Options) -> Places:
    if kind == "nordland":
        places = readers.read_nordland(
            folder,
            stretches=options.nordland_stretches,
            regions=options.nordland_regions,
            metres_per_frame=options.nordland_spacing,
        )
    elif kind == "indoor":
        places = readers.read_indoor(folder)
    elif kind == "msls":
        places = readers.read_msls(folder)
        columns, advice = "easting and northing in postprocessed.csv", "use UTM coordinates, as the release does"
        refuse_degrees(places, options.far, f"{folder}: {columns}", advice)
    else:
        places = readers.read_image_table(folder / options.table_file)
        columns = f"columns x and y of {options.table_file}"
        refuse_degrees(places, options.far, f"{folder}: {columns}", "name the columns lon and lat")
    places.store.limit(options.max_pixels)
    return places


def _default_test(kind: str, folder: Path, places: Places, options: Options) -> tuple[str, ...]:
    if kind == "msls":
        if cities := tuple(city for city in readers.FEDVPR_TEST if city in places.cities):
            return cities
        if cities := tuple(name for name, path in readers.find_cities(folder).items() if path.parent.name == "test"):
            return cities
    if options.test_share == 0 or len(places.cities) == 1:
        return ()
    count = max(1, round(options.test_share * len(places.cities)))
    return places.cities[-count:]


def incomplete_cities(places: Places) -> dict[str, str]:
    """Return the cities without queries or without a database, by name, with what they lack."""
    of_city = np.array([track.city for track in places.tracks])[places.track]
    asked, known = set(of_city[places.queries]), set(of_city[places.database])
    return {
        city: "no database" if city in asked else "no queries"
        for city in places.cities
        if not (city in asked and city in known)
    }


def complete_for_training(places: Places, folder: Path) -> Places:
    """Return the images of the cities that have queries and a database, and log the names of the other cities.

    Raises
    ------
    DataError
        No city has both.
    """
    lacking = incomplete_cities(places)
    if not lacking:
        return places
    if len(lacking) == len(places.cities):
        raise DataError(
            f"{folder}: no training city has both queries and a database: {_named(lacking)}; expected images of both "
            "roles in the same city"
        )
    logger.warning("%s: excluded from training: %s", folder, _named(lacking))
    return places.of_city(*(city for city in places.cities if city not in lacking))


def _named(lacking: dict[str, str]) -> str:
    return ", ".join(f"{city or 'the only city'} ({lack})" for city, lack in lacking.items())
