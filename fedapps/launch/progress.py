"""How far runs are, from the rounds in their folders, and how long the rest takes."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedapps.base.report.numbers import format_duration
from fedapps.config.parsing import read
from fedapps.sim.matrix import Cell, Watch

_BAR_WIDTH = 20
_SECONDS_PER_LINE = 60.0


@dataclass
class RunProgress:
    """How far a run is. Rounds that were finished before this object was made do not change its estimate.

    Parameters
    ----------
    label : str
        What it is called on the screen.
    path : Path
        Its folder, which may not exist yet.
    rounds : int
        The number of rounds of all its methods together, at least 1.

    Attributes
    ----------
    before : float
        The part that was finished when this object was made, in [0, 1].
    """

    label: str
    path: Path
    rounds: int
    _begun: float = field(init=False)
    before: float = field(init=False)
    _read: int = 0
    _lines: int = 0

    def __post_init__(self) -> None:
        self._begun, self.before = time.monotonic(), self.fraction()

    def done(self) -> int:
        """The number of finished rounds: the complete lines of ``metrics.jsonl``."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as lines:
                if lines.seek(0, 2) < self._read:  # a run that resumed has dropped rounds
                    self._read = self._lines = 0
                lines.seek(self._read)
                new = lines.read()
        except FileNotFoundError:
            return 0
        self._read += len(new)
        self._lines += new.count(b"\n")
        return min(self._lines, self.rounds)

    def fraction(self) -> float:
        """The finished part, in [0, 1]."""
        return self.done() / self.rounds

    def worked(self) -> float:
        """The part that was finished since this object was made, in [0, 1]."""
        return max(self.fraction() - self.before, 0.0)

    def position(self) -> str:
        """Such as ``round 12 of 100``: the round that is going on."""
        return f"round {min(self.done() + 1, self.rounds)} of {self.rounds}"

    def to_go(self) -> str:
        """As :func:`to_go`."""
        return to_go(time.monotonic() - self._begun, self.worked(), 1 - self.fraction())


def to_go(seconds: float, worked: float, left: float) -> str:
    """An estimate such as ``about 12 min 05 s to go``; empty before anything is done.

    Parameters
    ----------
    seconds : float
        The time so far.
    worked, left : float
        What was done in this time, and what is left to do, in the same unit.
    """
    return f"about {format_duration(round(seconds / worked * left))} to go" if worked > 0 else ""


@dataclass(frozen=True)
class Bar:
    """A line of the display: a label, the finished part in [0, 1], where it is, and how long the rest takes."""

    label: str
    fraction: float
    position: str
    to_go: str


def bar_of(run: RunProgress) -> Bar:
    """The line of a run."""
    return Bar(run.label, run.fraction(), run.position(), run.to_go())


def drawn(bars: Sequence[Bar]) -> RenderableType:
    """Lines as a table of the terminal's width. Labels are cut where it is too narrow."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for _ in range(3):
        table.add_column(no_wrap=True)
    for bar in bars:
        filled = ProgressBar(total=1.0, completed=bar.fraction, width=_BAR_WIDTH)
        table.add_row(Text(bar.label), filled, Text(bar.position), Text(bar.to_go))
    return table


def standard_output() -> Console:
    """Standard output, which is a terminal only if it says so itself: notebooks set variables that ask for colours."""
    return Console(force_jupyter=False, force_terminal=sys.stdout.isatty())


@contextmanager
def one_bar(run: RunProgress) -> Iterator[None]:
    """Show a bar of one run below what is printed meanwhile, if standard output is a terminal."""
    console = standard_output()
    if not console.is_terminal:
        yield
        return
    # Handlers keep the stream of their creation, and lines that are written to it directly would cut through the bar.
    handlers = [handler for handler in logging.getLogger("flwr").handlers if isinstance(handler, logging.StreamHandler)]
    streams = [handler.stream for handler in handlers]
    with live(console, lambda: [bar_of(run)]):
        for handler in handlers:
            handler.setStream(sys.stderr)
        try:
            yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                handler.setStream(stream)


def live(console: Console, bars: Callable[[], Sequence[Bar]]) -> Live:
    """A display at the bottom of a terminal, drawn again every second, that vanishes at the end."""
    return Live(get_renderable=lambda: drawn(bars()), console=console, refresh_per_second=1, transient=True)


class MatrixProgress(Watch):
    """Shows how far runs are, by their rounds.

    In a terminal there is a bar for each run that is going on and one for all of them; elsewhere a line after each run,
    and one a minute between them. Use it as a context manager.

    Parameters
    ----------
    total : int
        The number of runs, or an upper bound.
    """

    def __init__(self, total: int) -> None:
        self._total, self._console = total, standard_output()
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
        self._running[path] = RunProgress(label_of(cell), path, read(cell["config"]).run.rounds)

    def end(self, cell: Cell) -> None:
        run, finished = self._running.pop(folder_of(cell)), (folder_of(cell) / "summary.json").exists()
        self._worked += 1 - run.before if finished else run.worked()  # one that stopped early is whole
        self._ended += 1
        self._print(f"{label_of(cell)}: {'finished' if finished else 'failed'}")

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
