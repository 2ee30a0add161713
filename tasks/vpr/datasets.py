"""Recognises the data set in a folder and assigns its cities to training, test and validation.

A city needs both queries and a database.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.options import split_names
from fedapps.base.text_files import refuse_several

from . import indoor, nordland
from .image_checks import Inspection
from .image_table import read_image_table
from .msls import FEDVPR_TEST, find_cities, read_msls
from .options import Options
from .places import Places
from .positions import refuse_degrees


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
    if dataset.test is not None:
        require_complete(dataset.test, folder, "common test", "vpr.test-cities")
    if dataset.validation is not None:
        require_complete(dataset.validation, folder, "common validation", "vpr.validation-cities")
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
    return options.dataset if options.dataset != "auto" else _found(folder, options)


def _found(folder: Path, options: Options) -> str:
    marks = {
        "msls": folder / "train_val",
        "nordland": folder / nordland.FILE,
        "indoor": folder / indoor.METADATA,
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
        return nordland.read_nordland(
            folder,
            stretches=options.nordland_stretches,
            regions=options.nordland_regions,
            metres_per_frame=options.nordland_spacing,
        )
    if kind == "indoor":
        places = indoor.read_indoor(folder)
        places.store.limit(options.max_pixels)
        return places
    if kind == "msls":
        places = read_msls(folder)
        columns, advice = "easting and northing in postprocessed.csv", "use UTM coordinates, as the release does"
    else:
        places = read_image_table(folder / options.table_file)
        columns, advice = f"columns x and y of {options.table_file}", "name the columns lon and lat"
    refuse_degrees(places, options.far, f"{folder}: {columns}", advice)
    places.store.limit(options.max_pixels)
    return places


def _default_test(kind: str, folder: Path, places: Places, options: Options) -> tuple[str, ...]:
    if kind == "msls":
        if cities := tuple(city for city in FEDVPR_TEST if city in places.cities):
            return cities
        if cities := tuple(name for name, path in find_cities(folder).items() if path.parent.name == "test"):
            return cities
    if options.test_share == 0 or len(places.cities) == 1:
        return ()
    count = max(1, round(options.test_share * len(places.cities)))
    return places.cities[-count:]


logger = logging.getLogger(__name__)


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


def require_complete(places: Places, folder: Path, purpose: str, key: str) -> None:
    """Raise :class:`DataError` if a city lacks queries or a database.

    Parameters
    ----------
    places : Places
        The images.
    folder : Path
        The folder of the images, for the message.
    purpose : str
        What the images are for, for the message.
    key : str
        The option that selects the cities.
    """
    if lacking := incomplete_cities(places):
        raise DataError(
            f"{folder}: the {purpose} set needs queries and a database in each of its cities: {_named(lacking)}; add "
            f"the images, or name other cities in {key}"
        )


def _named(lacking: dict[str, str]) -> str:
    return ", ".join(f"{city or 'the only city'} ({lack})" for city, lack in lacking.items())
