"""What trained models say about new data: their metrics with intervals, and their answers to each example of files."""

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self, TextIO

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

from fedapps.base.atomic import whole_file
from fedapps.base.report.numbers import mean_and_interval, number, numbers, over_examples
from fedapps.base.report.tables import text_table
from fedapps.registry.tasks import task_class
from fedapps.tasks.base import DataError
from fedapps.tasks.model_folder import StoredModel
from fedapps.tasks.partitioners import added_logits
from fedapps.tasks.trained import TrainedModel

from .load import NoSharedModelError, check_same, load, load_from
from .stored_run import StoredRun, first_names

#: The formats of the output, by the ending of the file.
FORMATS = (".jsonl", ".csv")
STDIN = "-"
SHARED = "shared"
ALL_NODES = "all nodes"


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
        is_csv = path.suffix == ".csv"
        errors = "backslashreplace" if is_csv else "strict"  # rows of JSON have their own escapes
        text = TextIOWrapper(binary, encoding="utf-8", errors=errors, newline="", write_through=True)
        if is_csv:
            with TemporaryFile("w+", encoding="utf-8") as kept:
                table = _Csv(kept)
                yield table.write
                table.copy_to(text)
        else:
            yield lambda row: _json_row(text, row)
        text.flush()
        text.detach()


def _json_row(file: TextIO, row: dict[str, Any]) -> int:
    """Write a row and return 1.

    A text from JSON or the name of a file can have half of a surrogate pair, which cannot be encoded and is escaped.
    """
    try:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except UnicodeEncodeError:
        file.write(json.dumps(row) + "\n")
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


@dataclass(frozen=True)
class EvaluatedModel:
    """The metrics of one model, or the means of the models of all nodes.

    Parameters
    ----------
    task, method, node : str
        ``node`` is a key, ``"shared"`` or ``"all nodes"``.
    metrics : mapping of str to mapping
        By metric: its ``mean`` over the folders, or over the nodes; and the limits ``low`` and ``high`` of its 95 %
        interval, where there is one.
    """

    task: str
    method: str
    node: str
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


def evaluate_run(
    run: str | Path,
    folders: Sequence[str | Path],
    *,
    methods: Sequence[str] = (),
    nodes: Sequence[str] = (),
    round: int | str | None = None,
    device: str = "auto",
) -> Iterator[EvaluatedModel]:
    """Evaluate models on folders of data, in the format of a node's own data.

    A method gives the row of its shared model, if it has one. If the model of any node differs from it, the rows of all
    nodes follow, and then their mean.

    Parameters
    ----------
    run : str or Path
        A run folder, or a model folder, which gives one row.
    folders : sequence of str or Path
        At least one. With several, a metric is their mean, with Student's interval over the folders; with one, shares
        of examples have Wilson's.
    methods, nodes : sequence of str
        Labels and keys; by default all. For a model folder, only those of its model.
    round, device
        As in :func:`fedapps.load`.

    Raises
    ------
    ValueError
        As :func:`fedapps.load`, or there is no such node or no test data in a folder.
    """
    path = Path(run).expanduser()
    if StoredModel.is_in(path):
        model = load(path, round=round, device=device)
        for method in methods:
            check_same(model.origin, method, None, None)
        for key in nodes:
            check_same(model.origin, None, key, None)
        yield _evaluated(model, folders)
        return
    stored = StoredRun.open(path)
    for label in [stored.method(method) for method in methods] or stored.config.methods:
        keys = stored.nodes(label)
        if unknown := [key for key in nodes if key not in keys]:
            raise ValueError(
                f"node = {unknown[0]!r}: method {label!r} has no such node; its nodes are {first_names(keys)}"
            )
        shared = None
        with suppress(NoSharedModelError):
            shared = load_from(stored, label, None, round, device)
        if shared is not None:
            yield _evaluated(shared, folders)
            if not nodes and all(_same(load_from(stored, label, key, round, device), shared) for key in keys):
                continue
        of_nodes = []
        for key in nodes or keys:
            of_nodes.append(_evaluated(load_from(stored, label, key, round, device), folders))
            yield of_nodes[-1]
        if len(of_nodes) > 1:
            yield _mean(of_nodes)


def evaluation_text(rows: Sequence[EvaluatedModel], folders: int) -> str:
    """The rows as a table of the task's main metrics, with their intervals, and a line that says what these are."""
    known = list(dict.fromkeys(name for row in rows for name in row.metrics))
    names = [name for name in task_class(rows[0].task).headline if name in known] or known
    header = ["method", "node", *(name.removeprefix("test.") for name in names)]
    lines = [[row.method, row.node, *(_cell(row.metrics.get(name)) for name in names)] for row in rows]
    over = f"{folders} folders" if folders > 1 else "examples, for shares of examples"
    intervals = f"in parentheses: 95 % intervals over {over}; those of {ALL_NODES}: over nodes"
    return f"{text_table(header, lines)}\n{intervals}"


def _evaluated(model: TrainedModel, folders: Sequence[str | Path]) -> EvaluatedModel:
    measured = []
    for folder in folders:
        data = model.data(folder)
        metrics = model.evaluate(data)
        if not numbers(metrics):
            raise DataError(f"{folder}: has no test data for this model; its splits: {first_names(data.splits)}")
        measured.append(metrics)
    if len(measured) == 1:
        limits = over_examples(measured[0])
        estimates = {name: {"mean": value, **limits.get(name, {})} for name, value in numbers(measured[0]).items()}
    else:
        estimates = _over(list(map(numbers, measured)))
    return EvaluatedModel(model.task.name, model.origin.method, model.origin.node or SHARED, estimates)


def _mean(rows: Sequence[EvaluatedModel]) -> EvaluatedModel:
    means = [{name: value["mean"] for name, value in row.metrics.items()} for row in rows]
    return EvaluatedModel(rows[0].task, rows[0].method, ALL_NODES, _over(means))


def _over(values: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Means and intervals of the metrics that all have."""
    common = [name for name in values[0] if all(name in of_one for of_one in values)]
    intervals = {name: mean_and_interval([of_one[name] for of_one in values]) for name in common}
    return {name: {key: value for key, value in of.items() if key != "nodes"} for name, of in intervals.items()}


def _same(model: TrainedModel, other: TrainedModel) -> bool:
    one, two = _computing(model.module), _computing(other.module)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def _computing(module: nn.Module) -> dict[str, torch.Tensor]:
    """What a network computes with: its weights, and what it adds to its logits."""
    added = added_logits(module)
    return module.state_dict() | ({} if added is None else {"added logits": added})


def _cell(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    limits = f" ({number(value['low'])} to {number(value['high'])})" if "low" in value else ""
    return number(value["mean"]) + limits
