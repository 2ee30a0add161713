"""Which methods are worse than a floor: a prediction without federated learning, such as the most frequent class."""

from __future__ import annotations

from collections.abc import Mapping

from fedapps.registry.tasks import task_class, task_names
from fedapps.runs.continual import measure_names

from .metrics import bare, describe

Values = Mapping[str, Mapping[str, float]]


def below_floors(task: str, methods: Values, references: Values) -> list[str]:
    """A sentence for each main metric in which methods are worse than a floor of the task.

    Parameters
    ----------
    task : str
        Its name; a task that is not installed has no floors.
    methods, references : mapping
        Values by name and metric, with or without the prefix ``test.``.
    """
    if task not in task_names():
        return []
    known = task_class(task)
    main = dict.fromkeys(bare(name) for metric in known.headline for name in (measure_names(metric)[0], metric))
    ours, theirs = _bare(methods), _bare(references)
    found = []
    for metric in main:
        for floor in known.floors:
            limit = theirs.get(floor, {}).get(metric)
            worse = [name for name, row in ours.items() if _is_worse(metric, row.get(metric), limit)]
            if worse and limit is not None:
                named = ", ".join(f"{name} ({ours[name][metric]:.4g})" for name in worse)
                found.append(f"Worse than the floor {floor!r} ({limit:.4g}) in {metric}: {named}.")
    return found


def _bare(values: Values) -> dict[str, dict[str, float]]:
    return {name: {bare(metric): value for metric, value in row.items()} for name, row in values.items()}


def _is_worse(metric: str, value: float | None, floor: float | None) -> bool:
    """Whether both are known and the value is worse; metrics without a direction have no worse values."""
    if value is None or floor is None:
        return False
    return describe(metric).better * (value - floor) < 0
