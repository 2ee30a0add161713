"""Takes rated scenes from the logs of a robot among tracked people: one for each rating that somebody gave."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import degrees
from typing import Any, ClassVar

import numpy as np
from fedapps.tasks.logs.folder import ImportSettings, LogImport, Output
from fedapps.tasks.logs.mapping import MOTION, Field, Signal
from fedapps.tasks.logs.readers import Log
from fedapps.tasks.logs.signals import Gathered, Series, begins, turned

from fedapps.base.atomic import path_name
from fedapps.base.errors import DataError
from fedapps.base.options import option
from fedapps.base.seeding import derive_seed

from .scenes import scene_of

#: Who is slower stands: m/s where a log has velocities, otherwise m from one position to the next.
_STANDING = 1e-3


@dataclass(frozen=True)
class SocialImportSettings(ImportSettings):
    """The settings of :class:`SocialImport`."""

    node: str = option("a", "Name of the participant who rates; the file is NAME.json")
    room: str = option("", "Corners of the room in order, x,y in m in the frame of the positions: 0,0; 6,0; 6,4; 0,4")
    test_share: float = option(0.15, "Share of the scenes for testing, drawn one by one", minimum=0, maximum=1)
    validation_share: float = option(0.15, "Share of the scenes for validation", minimum=0, maximum=1)


class SocialImport(LogImport):
    """Scenes as in SocNav1: the robot at the origin, facing +y, in centimetres and degrees."""

    Settings: ClassVar[type[ImportSettings]] = SocialImportSettings
    advice: ClassVar[str] = "Scenes of the task social: the robot and the people around it at the time of each rating."
    signals: ClassVar[Mapping[str, Signal]] = {
        "robot": Signal("the pose of the robot", {**MOTION, "heading": Field("angle", MOTION["heading"].guesses)}),
        "people": Signal(
            "the people that the robot tracks; without a heading they face where they go", MOTION, many=True
        ),
        "rating": Signal(
            "the ratings of the robot's behaviour, from 0 (worst) to 100 (nobody is disturbed)",
            {"score": Field("number", ("data", "score", "rating"))},
        ),
    }

    def check(self) -> None:
        try:
            self._corners = np.array(
                [[float(value) for value in corner.split(",")] for corner in self.settings.room.split(";")]
            )
        except ValueError:
            self._corners = np.empty(0)
        if self._corners.ndim != 2 or self._corners.shape[0] < 3 or self._corners.shape[1] != 2:
            raise self.refuse(
                f"settings.room = {self.settings.room!r}: must be 3 corners or more, such as 0,0; 6,0; 6,4; 0,4"
            )

    def convert(self, log: Log, gathered: Gathered, output: Output) -> str:
        (robot,), (ratings,) = (gathered.series[name].values() for name in ("robot", "rating"))
        tracked = [_facing(series, self.settings.gap) for series in gathered.series["people"].values()]
        scenes: list[str] = []
        missed = 0
        for epoch, time, score in zip(ratings.epoch, ratings.time, ratings.values["score"], strict=True):
            poses = self.at("robot", robot, epoch, time)
            if poses is None:
                missed += 1
                continue
            people = [self.at("people", series, epoch, time) for series in tracked]
            scene = self._scene(poses, [person for person in people if person])
            name = f"{output.log} {len(scenes):05d}"
            scene |= {"identifier": name, "score": float(score), "split": self._split(name)}
            scene_of(scene, f"{log.path}, rating at {time:.3f} s")
            scenes.append(json.dumps(scene))
        if not scenes:
            raise DataError(
                f"{log.path}: the pose of the robot is known at none of {missed} ratings; raise settings.gap"
            )
        output.lines(f"{path_name(self.settings.node)}.json", scenes)
        return f"{len(scenes)} scenes; left out {missed} ratings without a pose of the robot"

    def _split(self, name: str) -> str:
        """The split of a scene, drawn by its name, so that it is the same when other logs follow."""
        draw = derive_seed(0, "social.split", name) / 2**63
        if draw < self.settings.test_share:
            return "test"
        return "validation" if draw < self.settings.test_share + self.settings.validation_share else "train"

    def _scene(self, robot: dict[str, float], people: list[dict[str, float]]) -> dict[str, Any]:
        def placed(x: float, y: float) -> tuple[float, float]:
            ahead, left = turned(x - robot["x"], y - robot["y"], -robot["heading"])
            return round(-100 * float(left), 1), round(100 * float(ahead), 1)

        humans = []
        for number, person in enumerate(people, start=1):
            x, y = placed(person["x"], person["y"])
            # a person with the orientation o faces (sin o, -cos o), so one who faces as the robot does has 180 degrees
            orientation = (degrees(person["heading"] - robot["heading"]) + 360) % 360 - 180
            humans.append({"id": number, "xPos": x, "yPos": y, "orientation": round(orientation, 1)})
        corners = [[*placed(*corner)] for corner in self._corners]
        return {"robot": {"id": 0}, "humans": humans, "objects": [], "links": [], "room": [*corners, corners[0]]}


def _facing(series: Series, gap: float) -> Series:
    """A person's poses, with a heading along the way where the log has none. Who stands faces as before."""
    values = series.values
    if "heading" in values:
        return series
    if not {"vx", "vy"} <= values.keys():
        stretches = np.split(np.stack([values["x"], values["y"]]), begins(series, gap), axis=1)
        ways = [np.gradient(way, axis=1) if way.shape[1] > 1 else np.zeros_like(way) for way in stretches]
        values = {**values, **dict(zip(("vx", "vy"), np.concatenate(ways, axis=1), strict=True))}
    moves = np.hypot(values["vx"], values["vy"]) > _STANDING
    last = np.maximum.accumulate(np.where(moves, np.arange(len(moves)), int(np.argmax(moves))))
    heading = np.unwrap(np.arctan2(values["vy"], values["vx"])[last])
    return series._replace(values={**values, "heading": heading})
