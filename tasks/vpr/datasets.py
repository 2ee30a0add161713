"""What a folder of pictures holds: which data set it is, and which of its cities are for what."""

from dataclasses import dataclass
from pathlib import Path

from tasks.profiles import DataError

from . import indoor, nordland
from .cities import complete_for_training, require_complete
from .msls import FEDVPR_TEST, find_cities, read_msls
from .options import Options, listed
from .places import Places
from .positions import refuse_degrees
from .readable import Inspection
from .table import read_table


@dataclass(frozen=True, eq=False)
class Dataset:
    """The pictures of the cities to train in, to test in and to validate in; ``None`` where there are none.

    All of them are there; ``inspection`` says whether they can be read.
    """

    training: Places
    test: Places | None
    validation: Places | None
    inspection: Inspection


def read_dataset(folder: Path, options: Options, *, own: bool = False) -> Dataset:
    """The pictures in ``folder``. With ``own`` it is that of one node, which lacks cities of the test without harm.

    Of the cities to train in, those without queries or without a database are left out. Raises :class:`DataError` when
    the folder holds no known data set, pictures are missing that ``options`` do not allow to skip, a city that is
    named is not there, one to test or validate in lacks queries or a database, or none is left to train in.
    """
    kind = options.dataset if options.dataset != "auto" else _found(folder, options)
    places = _read(kind, folder, options)
    inspection = Inspection(folder, places)
    if options.skip_unreadable:
        places = inspection.readable(places)
    else:
        inspection.require_present()
    test = listed(options.test_cities) or (() if own else _default_test(kind, folder, places, options))
    validation = listed(options.validation_cities)
    if own:
        test, validation = (tuple(city for city in some if city in places.cities) for some in (test, validation))
    training = [city for city in places.cities if city not in test and city not in validation]
    if not training:
        raise DataError(
            f"{folder}: no city is left to train in beside {', '.join(test + validation)} (vpr.test-cities, "
            "vpr.test-share, vpr.validation-cities)"
        )
    found = Dataset(
        complete_for_training(places.of_city(*training), folder),
        places.of_city(*test) if test else None,
        places.of_city(*validation) if validation else None,
        inspection,
    )
    if found.test is not None:
        require_complete(found.test, folder, "the common test is", "vpr.test-cities")
    if found.validation is not None:
        require_complete(found.validation, folder, "the common validation is", "vpr.validation-cities")
    return found


def _found(folder: Path, options: Options) -> str:
    marks = {
        "msls": folder / "train_val",
        "nordland": folder / nordland.FILE,
        "indoor": folder / indoor.METADATA,
        "table": folder / options.table_file,
    }
    for kind, mark in marks.items():
        if mark.exists():
            return kind
    raise DataError(
        f"{folder}: no data set of places; expected one of {', '.join(mark.name for mark in marks.values())} "
        "(vpr.dataset, vpr.table-file)"
    )


def _read(kind: str, folder: Path, options: Options) -> Places:
    if kind == "nordland":
        return nordland.read_nordland(folder, stretches=options.nordland_stretches, regions=options.nordland_regions)
    if kind == "indoor":
        return indoor.read_indoor(folder)
    if kind == "msls":
        places = read_msls(folder)
        columns, advice = "easting and northing in postprocessed.csv", "give UTM, as the release does"
    else:
        places = read_table(folder / options.table_file)
        columns, advice = f"columns x and y of {options.table_file}", "name the columns lon and lat"
    refuse_degrees(places, options.far, f"{folder}: {columns}", advice)
    return places


def _default_test(kind: str, folder: Path, places: Places, options: Options) -> tuple[str, ...]:
    if kind == "msls":
        if found := tuple(city for city in FEDVPR_TEST if city in places.cities):
            return found
        if found := tuple(name for name, path in find_cities(folder).items() if path.parent.name == "test"):
            return found
    if options.test_share == 0 or len(places.cities) == 1:
        return ()
    count = max(1, round(options.test_share * len(places.cities)))
    return places.cities[-count:]
