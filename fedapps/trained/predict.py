"""Write the answers of a trained model to every example of files or of standard input."""

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedapps.base.atomic import whole_file
from fedapps.tasks.trained import TrainedModel

#: The formats of the output, by the ending of the file.
FORMATS = (".jsonl", ".csv")
STDIN = "-"


@dataclass(frozen=True)
class PredictionFiles:
    """What a prediction reads and writes, before a model is loaded.

    Parameters
    ----------
    inputs : tuple of Path or None
        Files, or folders of images, as the task says; ``None`` is standard input.
    output : Path, optional
        Ends in ``.jsonl`` or ``.csv``; by default JSON lines go to standard output.
    batch_size : int
        ≥ 1.
    """

    inputs: tuple[Path | None, ...] = (None,)
    output: Path | None = None
    batch_size: int = 128

    @classmethod
    def read(cls, inputs: Sequence[str], output: str, batch_size: int) -> Self:
        """Read the arguments of the command, where ``-`` and no input are standard input.

        Raises
        ------
        ValueError
            The output has another ending, an input is missing, or the batch size is not positive.
        """
        path = Path(output).expanduser() if output else None
        if path and path.suffix not in FORMATS:
            raise ValueError(f"--output {output}: must end in {' or '.join(FORMATS)}")
        if batch_size < 1:
            raise ValueError(f"--batch-size {batch_size}: must be at least 1")
        paths = [None if name == STDIN else Path(name).expanduser() for name in inputs or [STDIN]]
        if missing := [str(name) for name in paths if name and not name.exists()]:
            raise ValueError(f"{missing[0]}: no such file or folder")
        return cls(tuple(paths), path, batch_size)

    def write(self, model: TrainedModel) -> int:
        """Write one row for each example, in the order of the inputs, and return their number.

        A file is written completely or not at all.

        Raises
        ------
        ValueError
            An input is malformed, or the task answers no single examples.
        """
        try:
            rows = model.rows([sys.stdin if path is None else path for path in self.inputs], self.batch_size)
            # where rows go to the terminal, they show themselves how far they are
            shown = sys.stderr.isatty() and not (self.output is None and sys.stdout.isatty())
            with _counted(rows, shown) as counted, _writer(self.output) as write:
                return sum(map(write, counted))
        except NotImplementedError as error:
            raise ValueError(str(error)) from error


@contextmanager
def _writer(path: Path | None) -> Iterator[Callable[[dict[str, Any]], int]]:
    """A function that writes a row and returns 1."""
    if path is None:
        yield lambda row: _json_row(sys.stdout, row)
        sys.stdout.flush()
        return
    with whole_file(path) as binary:
        text = TextIOWrapper(binary, encoding="utf-8", newline="", write_through=True)
        if path.suffix == ".csv":
            with TemporaryFile("w+", encoding="utf-8") as kept:
                table = _Csv(kept)
                yield table.write
                table.copy_to(text)
        else:
            yield lambda row: _json_row(text, row)
        text.flush()
        text.detach()


def _json_row(file: TextIO, row: dict[str, Any]) -> int:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return 1


class _Csv:
    """Rows of a CSV file, kept in a file until all columns are known; lists and objects are JSON in their cell."""

    def __init__(self, kept: TextIO) -> None:
        self._kept = kept
        self._columns: dict[str, None] = {}

    def write(self, row: dict[str, Any]) -> int:
        self._columns |= dict.fromkeys(row)
        return _json_row(self._kept, row)

    def copy_to(self, file: TextIO) -> None:
        """Write all rows; a cell is empty where a row lacks the column."""
        table = csv.DictWriter(file, list(self._columns))
        if self._columns:
            table.writeheader()
        self._kept.seek(0)
        for row in map(json.loads, self._kept):
            cells = {name: json.dumps(cell) if isinstance(cell, (list, dict)) else cell for name, cell in row.items()}
            table.writerow(cells)


@contextmanager
def _counted(rows: Iterator[dict[str, Any]], shown: bool) -> Iterator[Iterator[dict[str, Any]]]:
    """The rows, whose number may be shown on standard error, a terminal."""
    if not shown:
        yield rows
        return
    console = Console(stderr=True, force_jupyter=False, force_terminal=True)
    begun = time.monotonic()
    columns = (SpinnerColumn(), TextColumn("{task.completed:.0f} rows"), TextColumn("{task.fields[rate]}"))
    display = Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with display as progress:
        task = progress.add_task("", total=None, rate="")

        def count() -> Iterator[dict[str, Any]]:
            for done, row in enumerate(rows, start=1):
                rate = done / max(time.monotonic() - begun, 1e-9)
                progress.update(task, completed=done, rate=f"{rate:.0f} rows/s")
                yield row

        yield count()
