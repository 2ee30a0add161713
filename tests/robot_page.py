"""The robot's loop of the page on deployment, run as the page has it."""

import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[1] / "deploy" / "README.md"
PERIOD = 0.01  # seconds


class _StoppedError(Exception):
    """Ends the loop."""


class RobotOfPage(threading.Thread):
    """Runs the loop with a folder, a sensor that never changes, and a motor that notes which models there were.

    Attributes
    ----------
    rounds : list of int
        The round of each model that was used.
    steps : list of int
        The number of control steps with each of them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self._code, changed = re.subn(r'^folder = ".*"$', "", block, flags=re.MULTILINE)
        assert changed == 1
        self._names: dict[str, Any] = {"folder": folder, "sense": lambda: np.ones(2), "act": self._act}
        self._stop_wanted = threading.Event()
        self._last: object = None
        self.rounds: list[int] = []
        self.steps: list[int] = []

    def run(self) -> None:
        with suppress(_StoppedError, StopIteration):
            exec(self._code, self._names)

    def stop(self) -> None:
        """End the loop after its control step, or while it waits for its first model."""
        self._stop_wanted.set()
        if watch := self._names.get("models"):
            watch.close()
        self.join()

    def _act(self, control: np.ndarray) -> None:
        model = self._names["model"]
        assert control == -model.gain.sum()
        if model is not self._last:
            self._last = model
            self.rounds.append(model.origin.round)
            self.steps.append(0)
        self.steps[-1] += 1
        if self._stop_wanted.wait(PERIOD):
            raise _StoppedError
