"""Which methods suit a task, what each keeps on a node and sends, what it costs beside FedAvg, and when it helps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from flwr.app import ArrayRecord

from fedapps.app.server_app import initial_model, strategy_for
from fedapps.base.options import key_of
from fedapps.base.report.numbers import format_bytes
from fedapps.config.parsing import Config, read
from fedapps.registry.methods import METHODS
from fedapps.registry.tasks import task_class
from fedapps.sim.flower_internals import direct_arrays

#: The columns of the table of a task.
HEAD = ("method", "stays on the node", "travels", "down", "up", "local work", "good for")
#: A plain run of FedAvg beside the defaults; a method whose algorithm needs one of these keys is shown with it.
_PLAIN = {"optimizer": "sgd", "weighting": "uniform"}


@dataclass(frozen=True)
class Choice:
    """A method on a task.

    Attributes
    ----------
    method : str
    refused : str
        Why the method does not apply to the task; the other fields are then empty.
    keys : tuple of str
        Keys of the run that the method needs, such as ``optimizer = sgd``.
    keeps, sends, work, good_for : str
        The texts of the method's class; ``keeps`` with the share of the model that stays.
    bytes_down, bytes_up : int
        Of a training message to one node and of its reply, without names and settings.
    """

    method: str
    refused: str = ""
    keys: tuple[str, ...] = ()
    keeps: str = ""
    sends: str = ""
    work: str = ""
    good_for: str = ""
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells under :data:`HEAD`."""
        records_alone = not self.bytes_down and self.sends != "nothing"
        down, up = ("small",) * 2 if records_alone else map(format_bytes, (self.bytes_down, self.bytes_up))
        return self.method, self.keeps, self.sends, down, up, self.work, self.good_for


def choices(task: str) -> Iterator[Choice]:
    """The methods on a task with its default options, those of other packages last.

    Raises
    ------
    ValueError
        There is no such task.
    """
    task_class(task)
    default = read({"task": task})
    largest = max(_bytes(ArrayRecord(initial_model(default, name).state_dict())) for name in default.methods)
    for name in METHODS.usable():
        yield _choice(task, name, largest)


def choice_text(task: str) -> str:
    """The methods that apply to a task as a table, and below it those that do not, by reason."""
    with direct_arrays():
        all_choices = list(choices(task))
    rows = [choice.cells for choice in all_choices if not choice.refused]
    title = f"methods for the task {task}; bytes are those of a node in a round, with the default model"
    return "\n".join([title, _aligned([HEAD, *rows]), *remarks(all_choices)])


def remarks(all_choices: Sequence[Choice]) -> list[str]:
    """Which methods need keys of the run, and which do not apply, each by reason."""
    reasons: dict[str, list[str]] = {}
    for choice in all_choices:
        for key in choice.keys:
            reasons.setdefault(f"with {key}", []).append(choice.method)
    for choice in all_choices:
        if choice.refused:
            reasons.setdefault(f"not here, {choice.refused}", []).append(choice.method)
    return [f"{reason}: {', '.join(names)}" for reason, names in reasons.items()]


def _choice(task: str, name: str, largest: int) -> Choice:
    """A method on a task whose default methods have models of at most ``largest`` bytes."""
    config = _config(task, name)
    method = config.methods[name]
    if method.task not in ("", task):
        return Choice(name, f"for the task {method.task}")
    if method.needs_stages and config.num_stages == 1:
        return Choice(name, "its data have no stages")
    keys: dict[str, None] = {}
    for fields, message in config.conflicts(files_exist=True):
        fixed = {key for field in fields if (key := key_of(field)) in _PLAIN}
        if not fixed:
            return Choice(name, _short(message, name))
        keys |= dict.fromkeys(f"{key} = {_PLAIN[key]}" for key in sorted(fixed))
    model = initial_model(config, name)
    strategy, initial = strategy_for(config, name, model)
    shared = _bytes(strategy.share(initial))
    whole = max(largest, _bytes(ArrayRecord(model.state_dict())))  # rows of private words are on the nodes alone
    share = f"{_percent(1 - shared / whole)} of the model" if method.private(config.task).patterns else ""
    down, up = method.message_sizes
    return Choice(
        name,
        keys=tuple(keys),
        keeps=" + ".join(filter(None, (share, method.keeps))) or "nothing",
        sends=method.sends or ("parameters" if shared else "nothing"),
        work=method.work,
        good_for=method.good_for,
        bytes_down=round(down * shared),
        bytes_up=round(up * shared),
    )


def _config(task: str, name: str) -> Config:
    stages = read({"task": task}).num_stages
    return read({"task": task, "methods": name, "collect-after": 0, "rounds": 2 * stages})


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def _bytes(arrays: ArrayRecord) -> int:
    return sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays.values())


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _short(message: str, name: str) -> str:
    """The reason of a conflict, without the advice for a run config."""
    return (
        message.removeprefix(f"methods: {name!r} has no meaning for task ")
        .partition("because ")[2]
        .removesuffix(": leave it out")
        or message
    )
