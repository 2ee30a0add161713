"""Takes the rows of a robot from its logs: odometry along one axis, and the commands of its controller."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from fedapps.tasks.logs.folder import ImportSettings, LogImport, Output
from fedapps.tasks.logs.mapping import Field, Signal
from fedapps.tasks.logs.readers import Log
from fedapps.tasks.logs.signals import Gathered, Session, checked_velocity

from fedapps.base.atomic import path_name
from fedapps.base.errors import DataError
from fedapps.base.options import option

from .world import VALUES, optimal_gain

_WEIGHTS = np.geomspace(1e-2, 1e4, 241)


@dataclass(frozen=True)
class LqrImportSettings(ImportSettings):
    """The settings of :class:`LqrImport`."""

    step: float = option(0.1, "Seconds between two rows, a step of the controller", above=0)
    node: str = option("robot", "Name of the robot; the file is robot-NAME.csv")
    goal: float = option(0.0, "Position in m to which the controller drives the robot, taken as 0")
    control_weight: float = option(
        0.0,
        "R of the cost sum(y^2 + v^2 + R u^2) that the robot's controller minimises, with y in m, v in m per step and "
        "u in m per step^2; the larger R, the gentler the control. Take the R with which the controller was designed, "
        "in these units. 0: the R from 0.01 to 10000 whose optimal gain is nearest to the recorded commands",
        minimum=0,
    )
    test_share: float = option(0.2, "Share of the rows of each log, its last ones, for testing", minimum=0, maximum=1)


class LqrImport(LogImport):
    """The state of a row is position and velocity per step, its control the change of the velocity in the step.

    A commanded velocity v* is the control ``v* - v``, a commanded acceleration a is ``a * step``, both per step.
    """

    Settings: ClassVar[type[ImportSettings]] = LqrImportSettings
    advice: ClassVar[str] = "Rows of the task lqr: a robot on a line, and the commands of its controller."
    signals: ClassVar[Mapping[str, Signal]] = {
        "robot": Signal(
            "the position of the robot along its line, and its velocity (else differences of positions)",
            {
                "x": Field("length", ("pose.pose.position.x", "pose.position.x", "position", "x")),
                "vx": Field("speed", ("twist.twist.linear.x", "twist.linear.x", "velocity", "v"), required=False),
            },
        ),
        "command": Signal(
            "the commands, as a velocity or as an acceleration; a command holds until the next one",
            {
                "speed": Field("speed", ("linear.x", "twist.linear.x", "command"), required=False),
                "acceleration": Field("acceleration", ("accel.linear.x", "acceleration"), required=False),
            },
            holds=True,
        ),
    }

    def check(self) -> None:
        if len(self.mapping.sources["command"].fields) != 1:
            raise self.refuse("signals.command: name either speed or acceleration, what the controller commands")

    def convert(self, log: Log, gathered: Gathered, output: Output) -> str:
        (robot,), (command,) = (gathered.series[name].values() for name in ("robot", "command"))
        sessions = [*self.sessions(("robot", robot), ("command", command))]
        parts = [self._rows(session, str(log.path)) for session in sessions if len(session.time) > 2]
        if not parts:
            raise DataError(
                f"{log.path}: no session of 3 steps of {self.settings.step:g} s; raise settings.gap, or correct time"
            )
        rows = np.concatenate(parts)
        weight, note = self.settings.control_weight, ""
        if not weight:
            weight = nearest_weight(rows)
            if weight in (_WEIGHTS[0], _WEIGHTS[-1]):
                raise self.refuse(f"settings.control-weight = 0: no R explains the commands of {log.path}; state it")
            note = f"; control_weight {weight:.3g} by the nearest optimal gain"
        test = len(rows) - int(self.settings.test_share * len(rows))
        trajectory = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        output.table(
            f"robot-{path_name(self.settings.node)}.csv",
            ["split", "trajectory", *VALUES],
            (
                ["test" if number >= test else "train", trajectory[number], *row, weight]
                for number, row in enumerate(rows)
            ),
        )
        return f"{len(parts)} sessions with {len(rows)} rows{note}"

    def _rows(self, session: Session, where: str) -> np.ndarray:
        robot, command = session.values
        step = self.settings.step
        y = robot["x"] - self.settings.goal
        v = checked_velocity(f"{where}, signals.robot", robot, step, "x")[:, 0] * step
        u = command["speed"] * step - v if "speed" in command else command["acceleration"] * step**2
        return np.stack([y[:-1], v[:-1], u[:-1], y[1:], v[1:]], axis=1)


def nearest_weight(rows: np.ndarray) -> float:
    """The R whose optimal ``u = -K x`` has the smallest squared error on rows ``[n, 5]`` of y, v and u."""
    errors = [((rows[:, 2] + rows[:, :2] @ np.array(optimal_gain(float(weight)))) ** 2).sum() for weight in _WEIGHTS]
    return float(_WEIGHTS[int(np.argmin(errors))])
