"""Takes images and where they were taken from the logs of a robot: those a certain distance apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from fedapps.tasks.logs.folder import IMAGE, ImportSettings, LogImport, Output
from fedapps.tasks.logs.mapping import MOTION, Field, Signal
from fedapps.tasks.logs.readers import Log
from fedapps.tasks.logs.signals import Gathered

from fedapps.base.errors import DataError
from fedapps.base.options import option

from .places import projected

_PLANE = {name: Field("length", MOTION[name].guesses, required=False) for name in ("x", "y")}


@dataclass(frozen=True)
class VprImportSettings(ImportSettings):
    """The settings of :class:`VprImport`."""

    gap: float = option(2.0, "Seconds between two positions, beyond which images between them are left out", above=0)
    role: str = option(
        "database",
        "database: the images are a map; query: images to be recognised. Each drive has the mapping of its role",
        choices=("database", "query"),
    )
    city: str = option("", "Name of the city or building; positions in metres of one city share a frame")
    spacing: float = option(5.0, "Metres from one image to the next; images in between are left out", minimum=0)


class VprImport(LogImport):
    """The rows of ``places.csv``; a sequence is a stretch without gaps of positions."""

    Settings: ClassVar[type[ImportSettings]] = VprImportSettings
    advice: ClassVar[str] = "Places of the task vpr: images, and positions in metres (x, y) or in degrees (lon, lat)."
    signals: ClassVar[Mapping[str, Signal]] = {
        "image": IMAGE,
        "position": Signal(
            "GNSS fixes (lon and lat in degrees) or odometry (x and y in metres); keep one of the two pairs",
            {
                "lon": Field("degrees", ("longitude", "lon"), required=False),
                "lat": Field("degrees", ("latitude", "lat"), required=False),
                **_PLANE,
            },
        ),
    }

    def check(self) -> None:
        if set(self.mapping.sources["position"].fields) not in ({"x", "y"}, {"lon", "lat"}):
            raise self.refuse("signals.position: name lon and lat, or x and y")

    def convert(self, log: Log, gathered: Gathered, output: Output) -> str:
        (images,), (positions,) = (gathered.series[name].values() for name in ("image", "position"))
        names = tuple(self.mapping.sources["position"].fields)
        names = ("lon", "lat") if "lon" in names else ("x", "y")
        metres = np.stack([positions.values[name] for name in names], axis=1)
        if names == ("lon", "lat"):
            metres = projected(*metres.T)
        positions = positions._replace(values={**positions.values, "east": metres[:, 0], "north": metres[:, 1]})
        images_taken, missed, stretch, last = {}, 0, -1, (-1, -np.inf, np.zeros(2))
        for number, (epoch, time) in enumerate(zip(images.epoch, images.time, strict=True)):
            position = self.at("position", positions, epoch, time)
            if position is None:
                missed += 1
                continue
            point = np.array([position["east"], position["north"]])
            new = epoch != last[0] or time - last[1] > self.settings.gap
            if new or np.linalg.norm(point - last[2]) >= self.settings.spacing:
                stretch += new
                images_taken[number] = (stretch, *(position[name] for name in names))
                last = (epoch, time, point)
            else:
                last = (epoch, time, last[2])
        if not images_taken:
            raise DataError(
                f"{log.path}: the position is known at none of {missed} images; raise settings.gap, or correct time"
            )
        rows = []
        for number, content, ending in self.images(log, images, images_taken):
            path = f"images/{output.log}-{number:06d}{ending}"
            output.file(path, content)
            stretch, *coordinates = images_taken[number]
            rows.append([path, f"{output.log}-{stretch}", self.settings.role, self.settings.city, number, *coordinates])
        output.table("places.csv", ["path", "sequence", "role", "city", "frame", *names], rows)
        return (
            f"{len(rows)} of {len(images.time)} images, {self.settings.spacing:g} m apart; {missed} without a position"
        )
