"""What a folder of pictures holds: which data set it is, and which of its cities are for what."""

from dataclasses import dataclass
from pathlib import Path

from tasks.base import DataError

from . import indoor, nordland
from .msls import FEDVPR_TEST, find_cities, read_msls
from .options import Options, listed
from .places import Places
from .table import read_table


@dataclass(frozen=True, eq=False)
class Dataset:
    """The pictures of the cities to train in, to test in and to validate in; ``None`` where there are none."""

    training: Places
    test: Places | None
    validation: Places | None


def read_dataset(folder: Path, options: Options, *, own: bool = False) -> Dataset:
    """The pictures in ``folder``. With ``own`` it is that of one node, which lacks cities of the test without harm.

    Raises :class:`DataError` when the folder holds no known data set, a city that is named is not there, or none is
    left to train in.
    """
    kind = options.dataset if options.dataset != "auto" else _found(folder, options)
    places = _read(kind, folder, options)
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
    return Dataset(
        places.of_city(*training),
        places.of_city(*test) if test else None,
        places.of_city(*validation) if validation else None,
    )


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
    if kind == "msls":
        return read_msls(folder)
    if kind == "nordland":
        return nordland.read_nordland(folder, stretches=options.nordland_stretches, regions=options.nordland_regions)
    if kind == "indoor":
        return indoor.read_indoor(folder)
    return read_table(folder / options.table_file)


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
