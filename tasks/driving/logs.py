"""Takes trials from the logs of a robot that tracks people or cars: one for each that it meets for long enough."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi
from typing import ClassVar

import numpy as np
from fedapps.tasks.logs.folder import ImportSettings, LogImport, Output
from fedapps.tasks.logs.mapping import MOTION, Signal
from fedapps.tasks.logs.readers import Log
from fedapps.tasks.logs.signals import Gathered, Session, checked_velocity, turned

from fedapps.base.errors import DataError
from fedapps.base.options import option

from .data import COUNTERS, STEP
from .options import Options, Road

_COLUMNS = [f"{name}{car}" for car in "rh" for name in ("x", "y", "vx", "vy", "ax", "ay")]


@dataclass(frozen=True)
class DrivingImportSettings(ImportSettings):
    """The settings of :class:`DrivingImport`."""

    step: float = option(STEP, "Seconds between two rows, as the task needs them", minimum=STEP, maximum=STEP)
    node: int = option(0, "Number of the node, the block of its trials", minimum=0)
    along: float = option(0.0, "Direction of the road in the frame, in degrees counterclockwise from its x axis")
    lane_line: float = option(
        Road.lane_line,
        "Metres to the left of the frame's origin, seen along the road, of the line between the lanes: robot and human "
        "start on different sides of it (driving.lane-line of a run)",
    )
    within: float = option(50.0, "Metres from the robot within which a trial lies", above=0)
    shortest: int = option(
        Options.min_history + Options.horizon, "Fewest steps of a trial: those that a window needs", minimum=2
    )


class DrivingImport(LogImport):
    """Trials with x along the road and y to its left, in metres and seconds, in the order of time.

    The name of a log's file has the second of its first trial, so that the trials of a node stand in this order in all
    its files: the last ones are for testing.
    """

    Settings: ClassVar[type[ImportSettings]] = DrivingImportSettings
    advice: ClassVar[str] = (
        "Trials of the task driving: the robot, and a person or car that it tracks. Runs need driving.scenario=trials."
    )
    signals: ClassVar[Mapping[str, Signal]] = {
        "robot": Signal("the odometry of the robot", MOTION),
        "human": Signal("the people or cars that the robot tracks", MOTION, many=True),
    }

    def convert(self, log: Log, gathered: Gathered, output: Output) -> str:
        (robot,) = gathered.series["robot"].values()
        first = int(output.log[-8:], 16) * 1000  # numbers of trials differ between the logs of a node
        trials: list[tuple[float, np.ndarray]] = []
        short = same_side = 0
        for name, human in gathered.series["human"].items():
            for session in self.sessions(("robot", robot), ("human", human)):
                motion = self._motion(session, f"{log.path}, signals.{{}} beside {name!r}")
                for part in _runs(np.hypot(*(motion[:, 6:8] - motion[:, :2]).T) <= self.settings.within):
                    sides = motion[part[0], [1, 7]] - self.settings.lane_line if len(part) else np.zeros(2)
                    if len(part) < self.settings.shortest:
                        short += 1
                    elif sides[0] * sides[1] >= 0:
                        same_side += 1
                    else:
                        trials.append((session.time[part[0]], motion[part]))
        left_out = (
            f"{short} shorter than {self.settings.shortest} steps, {same_side} on the robot's side of the lane line"
        )
        if not trials:
            raise DataError(f"{log.path}: no trial is left ({left_out}); correct settings.lane-line, along or gap")
        trials.sort(key=lambda trial: trial[0])
        rows = [
            [number, self.settings.node, i, i * STEP, *values]
            for number, (_, motion) in enumerate(trials, start=first)
            for i, values in enumerate(motion)
        ]
        name = f"node-{self.settings.node}-{int(trials[0][0]):010}-{output.log}.csv"
        output.table(name, [*COUNTERS, *_COLUMNS], rows)
        return f"{len(trials)} trials with {len(rows)} rows; left out {left_out}"

    def _motion(self, session: Session, where: str) -> np.ndarray:
        """Position, velocity and acceleration of the robot and of the human, ``[T, 12]``, along and across the road."""
        parts = []
        for name, values in zip(("robot", "human"), session.values, strict=True):
            velocity = checked_velocity(where.format(name), values, STEP)
            # the acceleration that led to a row, as in the recorded trials
            change = np.diff(velocity, axis=0, prepend=velocity[:1]) / STEP
            for x, y in ((values["x"], values["y"]), velocity.T, change.T):
                parts += [*turned(x, y, -self.settings.along * pi / 180)]
        return np.stack(parts, axis=1)


def _runs(inside: np.ndarray) -> list[np.ndarray]:
    """The indices of each stretch of true values."""
    rows = np.flatnonzero(inside)
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
