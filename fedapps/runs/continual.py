"""Measures of continual learning from the rounds of a run: the train-test matrix, its mean, transfer to and fro.

L. Guerdan and H. Gunes, "Decentralized Robot Learning for Personalization and Privacy", appendix A.2: tasks come one
after another in stages of equally many rounds, and after each stage the model is tested on every stage. Round r of R,
counted from 1, belongs to stage ceil(r / (R / S)). The measures are means of an error, so less of each is better.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Row = Mapping[str, Any]

#: What an evaluation on one stage of several is called: ``stage-<j>.<split>.<metric>``, stages counted from 1.
_ON_STAGE = re.compile(r"stage-([1-9]\d*)\.(.+)")


def on_stage(stage: int, metric: str) -> str:
    """The name of a metric such as ``test.mse`` on one stage, counted from 1: ``stage-2.test.mse``."""
    return f"stage-{stage}.{metric}"


def is_on_stage(name: str) -> bool:
    """Whether a metric belongs to one stage of several, which tables and curves leave out."""
    return _ON_STAGE.fullmatch(name) is not None


def stage_metrics(rows: Iterable[Row]) -> dict[str, int]:
    """The metrics that rows hold on single stages, without the stage, and the highest stage of each."""
    found: dict[str, int] = {}
    for row in rows:
        for match in filter(None, map(_ON_STAGE.fullmatch, row["evaluate"])):
            found[match[2]] = max(found.get(match[2], 0), int(match[1]))
    return found


def last_rounds(num_stages: int, rounds: int) -> list[int]:
    """The last round of each stage. Raises ``ValueError`` when ``rounds`` cannot be shared out equally."""
    if num_stages < 1 or rounds % num_stages:
        raise ValueError(f"rounds = {rounds}: must be a multiple of the {num_stages} stages that share them")
    return [rounds // num_stages * stage for stage in range(1, num_stages + 1)]


def train_test_matrix(
    rows: Sequence[Row], metric: str = "test.mse", *, num_stages: int | None = None, rounds: int | None = None
) -> Matrix:
    """P of Fig. 5, [S, S]: ``P[i, j]`` is the metric on stage j after stage i.

    ``rows`` are those of one method, with ``round`` and ``evaluate`` as in ``metrics.jsonl``; what was evaluated in
    the middle of a stage does not count. ``num_stages`` defaults to the stages that ``rows`` name, ``rounds``, those
    of the whole run, to the last round in ``rows``: give it for a run that may be unfinished. What was not evaluated
    (yet) is NaN.
    """
    count = num_stages if num_stages is not None else stage_metrics(rows).get(metric, 0)
    matrix = np.full((count, count), np.nan)
    if not count or not rows:
        return matrix
    evaluated = {row["round"]: row["evaluate"] for row in rows if row["evaluate"]}
    for i, last in enumerate(last_rounds(count, rounds or max(row["round"] for row in rows))):
        for j in range(count):
            value = evaluated.get(last, {}).get(on_stage(j + 1, metric))
            matrix[i, j] = np.nan if value is None else value
    return matrix


def average(matrix: Matrix) -> float:
    """AMSE: the mean over stages of the error on a stage right after it."""
    return float(np.mean(np.diag(matrix)))


def backward_transfer(matrix: Matrix) -> float:
    """BWT, Eq. 5: how much the error on earlier stages grew, the mean of P[i, j] - P[j, j] over j < i.

    Negative where later stages helped earlier ones. NaN for a single stage.
    """
    differences = (matrix - np.diag(matrix))[np.tril_indices(len(matrix), -1)]
    return float(np.mean(differences)) if differences.size else np.nan


def forward_transfer(matrix: Matrix) -> float:
    """FWT, Eq. 6: the error on stages still to come, the mean of P[i, j] over i < j. NaN for a single stage."""
    ahead = matrix[np.triu_indices(len(matrix), 1)]
    return float(np.mean(ahead)) if ahead.size else np.nan


def continual_metrics(rows: Sequence[Row], num_stages: int, *, rounds: int | None = None) -> dict[str, float]:
    """The three measures of every metric that ``rows`` hold on single stages.

    Those of ``test.mse`` are called ``test.amse``, ``test.bwt`` and ``test.fwt``, those of another metric such as
    ``test.mae`` ``test.average_mae``, ``test.bwt_mae`` and ``test.fwt_mae``; so for each split. A measure is left out
    where a number that it needs is missing: transfer for a single stage, AMSE and BWT before the last one has ended.
    """
    found: dict[str, float] = {}
    for metric in stage_metrics(rows):
        matrix = train_test_matrix(rows, metric, num_stages=num_stages, rounds=rounds)
        values = (average(matrix), backward_transfer(matrix), forward_transfer(matrix))
        found |= {name: value for name, value in zip(measure_names(metric), values, strict=True) if np.isfinite(value)}
    return found


def measure_names(metric: str) -> tuple[str, str, str]:
    """What the mean, the backward and the forward transfer of a metric are called; see :func:`continual_metrics`."""
    split, dot, bare = metric.rpartition(".")
    names = ("amse", "bwt", "fwt") if bare == "mse" else (f"average_{bare}", f"bwt_{bare}", f"fwt_{bare}")
    return (split + dot + names[0], split + dot + names[1], split + dot + names[2])
