"""Evaluate the models of a run on data that no node had: a row for each method and node, with intervals."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedapps.base.report.estimates import mean_and_interval, numbers, over_examples
from fedapps.base.report.formats import number
from fedapps.base.report.tables import text_table
from fedapps.registry.tasks import task_class
from fedapps.tasks.base import DataError
from fedapps.tasks.model_folder import StoredModel
from fedapps.tasks.trained import TrainedModel

from .load import NoSharedModelError, load_from, load_model
from .stored_run import StoredRun, first_names

SHARED = "shared"
ALL_NODES = "all nodes"


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

    A method gives the row of its shared model, if it has one, and the rows of its nodes, if their models differ from
    it; then their mean.

    Parameters
    ----------
    run : str or Path
        A run folder, or a model folder, which gives one row.
    folders : sequence of str or Path
        At least one. With several, a metric is their mean, with Student's interval over the folders; with one, shares
        of examples have Wilson's.
    methods, nodes : sequence of str
        Labels and keys; by default all.
    round, device
        As in :func:`fedapps.api.load`.

    Raises
    ------
    ValueError
        As :func:`fedapps.api.load`, or there is no such node or no test data in a folder.
    """
    path = Path(run).expanduser()
    if StoredModel.is_in(path):
        yield _evaluated(load_model(path, device=device), folders)
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
        of_nodes = []
        for key in nodes or keys:
            model = load_from(stored, label, key, round, device)
            if shared is not None and not nodes and _same(model, shared):
                break  # all nodes have the shared model
            of_nodes.append(_evaluated(model, folders))
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


def as_json(rows: Sequence[EvaluatedModel]) -> list[dict[str, Any]]:
    """The rows with all their metrics."""
    return [asdict(row) for row in rows]


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
    one, two = model.module.state_dict(), other.module.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def _cell(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    limits = f" ({number(value['low'])} to {number(value['high'])})" if "low" in value else ""
    return number(value["mean"]) + limits
