"""Sentences beside tables: what p-values and verdicts mean, and which methods are worse than a floor.

A floor is a prediction without federated learning, such as the most frequent class.
"""

from collections.abc import Mapping
from math import ceil, log2

from fedapps.base.report.formats import counted
from fedapps.base.report.metrics import bare, describe
from fedapps.registry.tasks import task_class, task_names
from fedapps.runs.continual import measure_names

Values = Mapping[str, Mapping[str, float]]

#: A difference is called significant if its p-value is below this number.
SIGNIFICANT = 0.05
_ADVISED = 10


def smallest_p(seeds: int) -> float:
    """The smallest p-value that the sign-flip test can give for this number of seeds, at least 1."""
    return 2.0 ** (1 - seeds)


def needed_seeds(tests: int) -> int:
    """The number of seeds that a comparison with this number of tests needs, at least 10.

    With it, the smallest possible p-value is below ``SIGNIFICANT`` after Holm's correction.
    """
    return max(_ADVISED, ceil(1 + log2(tests / SIGNIFICANT)))


def about_tests(seeds: int, tests: int) -> str:
    """The caveat beside a table of p-values.

    Parameters
    ----------
    seeds : int
        Number of seeds.
    tests : int
        Number of tests of a metric, which Holm's correction covers.
    """
    least = smallest_p(seeds)
    corrected = min(1.0, least * tests)
    after = f" ({corrected:.3g} after Holm's correction over {tests} tests)" if tests > 1 else ""
    advice = f"; use {needed_seeds(tests)} seeds where a claim depends on it" if corrected >= SIGNIFICANT else ""
    return (
        f"Tests and intervals are paired over {counted(seeds, 'seed')}, not over nodes or sessions. "
        f"The smallest possible p is {least:.3g}{after}{advice}."
    )


def about_claims(seeds: int) -> str:
    """The note beside a table of claims."""
    if seeds < 2:
        return f"One seed gives no verdict. Use {_ADVISED} seeds where a claim depends on it."
    return (
        f"Intervals of the paired difference over {counted(seeds, 'seed')} have 95 % confidence, jointly over the "
        "methods that a claim names. A claim holds if its interval is above the claimed difference, fails if it is "
        "below, and is within noise otherwise."
    )


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
    sentences = []
    for metric in main:
        for floor in known.floors:
            limit = theirs.get(floor, {}).get(metric)
            worse = [name for name, row in ours.items() if _is_worse(metric, row.get(metric), limit)]
            if worse and limit is not None:
                named = ", ".join(f"{name} ({ours[name][metric]:.4g})" for name in worse)
                sentences.append(f"Worse than the floor {floor!r} ({limit:.4g}) in {metric}: {named}.")
    return sentences


def _bare(values: Values) -> dict[str, dict[str, float]]:
    return {name: {bare(metric): value for metric, value in row.items()} for name, row in values.items()}


def _is_worse(metric: str, value: float | None, floor: float | None) -> bool:
    """Whether both are known and the value is worse; metrics without a direction have no worse values."""
    if value is None or floor is None:
        return False
    return describe(metric).better * (value - floor) < 0
