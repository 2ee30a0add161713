"""The robot's loop of the page on deployment, run as the page has it."""

import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from fedapps.tasks.lqr.task import LqrTrained

PAGE = Path(__file__).parents[1] / "deploy" / "README.md"
PERIOD = 0.01  # seconds


def loop_of_page() -> str:
    """The code of the loop, without the line that names the folder."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code, changed = re.subn(r'^folder = ".*"$', "", block, flags=re.MULTILINE)
    assert changed == 1
    return code


class PointController:
    """Controls a point mass of the task lqr as a Controller of the page's cars controls a car."""

    def __init__(self, model: LqrTrained) -> None:
        self.model = model

    def use(self, model: LqrTrained) -> None:
        self.model = model

    def step(self, state: np.ndarray, _: object) -> np.ndarray:
        return self.model.control(state)


class StoppedError(Exception):
    """Ends the loop."""


class RobotOfPage(threading.Thread):
    """Runs the loop with a folder of models of the task lqr, whose models get the face of those of cars.

    The sensor never changes, and the motor notes which models there were.

    Attributes
    ----------
    rounds : list of int
        The round of each model that was used.
    steps : list of int
        The number of control steps with each of them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._code = loop_of_page()
        self._names: dict[str, Any] = {"folder": folder, "sense": lambda: (np.ones(2), None), "act": self._act}
        self._stop_wanted = threading.Event()
        self._last: object = None
        self.rounds: list[int] = []
        self.steps: list[int] = []
        car: Any = LqrTrained
        car.controller, car.predictor = lambda model: PointController(model), lambda model: model

    def run(self) -> None:
        with suppress(StoppedError, StopIteration):
            exec(self._code, self._names)

    def stop(self) -> None:
        """End the loop after its control step, or while it waits for its first model."""
        self._stop_wanted.set()
        if watch := self._names.get("models"):
            watch.close()
        self.join()

    def _act(self, control: np.ndarray) -> None:
        model = self._names["controller"].model
        assert control == -model.gain.sum()
        if model is not self._last:
            self._last = model
            self.rounds.append(model.origin.round)
            self.steps.append(0)
        self.steps[-1] += 1
        if self._stop_wanted.wait(PERIOD):
            raise StoppedError
