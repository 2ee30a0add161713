"""How far the runs of a comparison or of a tuning are."""

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from rich.console import Console

from fedapps.config.run_config import RunConfig
from fedapps.launch.progress import Bar, RunProgress, bar_of, live, standard_output, to_go
from fedapps.report.formats import format_duration
from fedapps.sim.matrix import Cell, Watch

_SECONDS_PER_LINE = 60.0


class MatrixProgress(Watch):
    """Shows how far runs are, by their rounds.

    In a terminal there is a bar for each run that is going on and one for all of them; elsewhere a line after each run,
    and one a minute between them. Use it as a context manager.

    Parameters
    ----------
    total : int
        The number of runs, or an upper bound.
    console : rich.console.Console, optional
        Where it is shown; standard output if missing.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._total, self._console = total, console or standard_output()
        self._ended, self._worked = 0, 0.0
        self._running: dict[Path, RunProgress] = {}
        self._begun = self._told = time.monotonic()
        self._display = ExitStack()

    def __enter__(self) -> "MatrixProgress":
        if self._console.is_terminal:
            self._display.enter_context(live(self._console, self.bars))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._display.close()

    def begin(self, cell: Cell) -> None:
        path = folder_of(cell)
        self._running[path] = RunProgress(label_of(cell), path, int(cell["config"].get("rounds", RunConfig.rounds)))

    def end(self, cell: Cell) -> None:
        self._worked += self._running.pop(folder_of(cell)).worked()
        self._ended += 1
        self._print(f"{label_of(cell)}: finished")

    def tick(self) -> None:
        if not self._console.is_terminal and time.monotonic() - self._told >= _SECONDS_PER_LINE:
            self._print("; ".join(f"{run.label}: {run.position()}" for run in self._running.values()))

    def bars(self) -> list[Bar]:
        """What a terminal shows."""
        runs = list(self._running.values())
        done = self._ended + sum(run.fraction() for run in runs)
        position = f"{self._ended} of {self._total} runs"
        return [*map(bar_of, runs), Bar("all", done / max(self._total, 1), position, self._to_go())]

    def _print(self, what: str) -> None:
        spent = format_duration(round(time.monotonic() - self._begun))
        left = self._to_go()
        line = f"[{self._ended}/{self._total}] {what}; {spent} spent{left and f', {left}'}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._told = time.monotonic()

    def _to_go(self) -> str:
        runs = list(self._running.values())
        worked = self._worked + sum(run.worked() for run in runs)
        left = self._total - self._ended - sum(run.fraction() for run in runs)
        return to_go(time.monotonic() - self._begun, worked, left)


def folder_of(cell: Cell) -> Path:
    """The run folder of a cell."""
    return Path(cell["config"]["output-dir"], cell["config"]["name"])


def log_of(cell: Cell) -> Path:
    """The file for what the run of a cell prints."""
    folder = folder_of(cell)
    return folder.parent / "logs" / f"{folder.name}.log"


def label_of(cell: Cell) -> str:
    """Such as ``fedavg, seed 3``."""
    trial = f"trial {cell['trial']}" if "trial" in cell else ""
    return ", ".join(part for part in (cell["method"], cell.get("at", ""), f"seed {cell['seed']}", trial) if part)
