"""Measures of continual learning: the train-test matrix, means over stages, backward and forward transfer.

L. Guerdan and H. Gunes, "Decentralized Robot Learning for Personalization and Privacy", appendix A.2. The data of the
tasks arrive one after another, in S stages with the same number of rounds; after each stage the model is tested on all
stages. Round r of R, counted from 1, belongs to stage ceil(r / (R / S)).

Every measure has the direction of its metric. Of an error, lower is better, and forgetting is a BWT above 0. Of an
accuracy, higher is better, and forgetting is a BWT below 0 (D. Lopez-Paz and M. Ranzato, Gradient Episodic Memory,
2017, https://arxiv.org/abs/1706.08840, whose BWT has only the last row of the matrix).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.base.report.metrics import ON_STAGE, measures

Matrix = NDArray[np.float64]
Row = Mapping[str, Any]


def on_stage(stage: int, metric: str) -> str:
    """The name of a metric measured on one stage, counted from 1, such as ``stage-2.test.mse``."""
    return f"stage-{stage}.{metric}"


def stage_metrics(rows: Iterable[Row]) -> dict[str, int]:
    """The :func:`measures` on single stages, without the stage prefix, and the highest stage of each."""
    highest: dict[str, int] = {}
    for row in rows:
        matches = filter(None, map(ON_STAGE.fullmatch, row["evaluate"]))
        for match in (one for one in matches if measures([one[2]])):
            highest[match[2]] = max(highest.get(match[2], 0), int(match[1]))
    return highest


def last_rounds(num_stages: int, rounds: int) -> list[int]:
    """The last round of each stage.

    Raises
    ------
    ValueError
        If ``rounds`` is not a multiple of ``num_stages``.
    """
    if num_stages < 1 or rounds % num_stages:
        raise ValueError(f"rounds = {rounds}: must be a multiple of the number of stages, {num_stages}")
    return [rounds // num_stages * stage for stage in range(1, num_stages + 1)]


def train_test_matrix(
    rows: Sequence[Row],
    metric: str = "test.mse",
    *,
    num_stages: int | None = None,
    rounds: int | None = None,
    begun: int = 0,
) -> Matrix:
    """The train-test matrix P (Fig. 5): ``P[i, j]`` is the metric on stage j after training on stage i.

    Parameters
    ----------
    rows : sequence of mappings
        The rounds of one method, with ``round`` and ``evaluate`` as in ``metrics.jsonl``. Only evaluations at the end
        of a stage are used.
    metric : str
        Name of the metric, without the stage.
    num_stages : int, optional
        Number of stages S; by default the highest stage in ``rows``.
    rounds : int, optional
        Number of rounds of the whole run; by default those up to the last round in ``rows``. Required if the run may be
        unfinished.
    begun : int
        Number of rounds before the run, with which the numbers of the rounds go on.

    Returns
    -------
    ndarray of shape [S, S]
        NaN where the metric was not evaluated.
    """
    count = num_stages if num_stages is not None else stage_metrics(rows).get(metric, 0)
    matrix = np.full((count, count), np.nan)
    if not count or not rows:
        return matrix
    evaluated = {row["round"]: row["evaluate"] for row in rows if row["evaluate"]}
    for i, last in enumerate(last_rounds(count, rounds or max(row["round"] for row in rows) - begun)):
        for j in range(count):
            value = evaluated.get(begun + last, {}).get(on_stage(j + 1, metric))
            matrix[i, j] = np.nan if value is None else value
    return matrix


def average(matrix: Matrix) -> float:
    """AMSE: the mean over stages of the error, or another metric, on a stage directly after training on it."""
    return float(np.mean(np.diag(matrix)))


def backward_transfer(matrix: Matrix) -> float:
    """BWT (Eq. 5), the increase of the metric on earlier stages: the mean of P[i, j] - P[j, j] over j < i.

    It is negative if later stages lower an error, or an accuracy, of earlier ones, and NaN for a single stage.
    """
    differences = (matrix - np.diag(matrix))[np.tril_indices(len(matrix), -1)]
    return float(np.mean(differences)) if differences.size else np.nan


def forward_transfer(matrix: Matrix) -> float:
    """FWT (Eq. 6), the metric on later stages: the mean of P[i, j] over i < j. NaN for a single stage."""
    ahead = matrix[np.triu_indices(len(matrix), 1)]
    return float(np.mean(ahead)) if ahead.size else np.nan


def so_far(matrix: Matrix) -> Matrix:
    """The mean after each stage i over the stages so far, of P[i, j] over j <= i: ``[S]``.

    The last one is the final mean, ACC of Lopez-Paz and Ranzato; the mean of all is the average incremental accuracy
    (S.-A. Rebuffi et al., iCaRL, 2017, Section 4, https://arxiv.org/abs/1611.07725).
    """
    return np.array([row[: i + 1].mean() for i, row in enumerate(matrix)])


def continual_metrics(
    rows: Sequence[Row], num_stages: int, *, rounds: int | None = None, begun: int = 0
) -> dict[str, float]:
    """The means and both transfers of every metric that is measured on single stages.

    For ``test.mse`` they are named ``test.amse``, ``test.bwt`` and ``test.fwt``; for any other metric, such as
    ``test.mae``, they are named ``test.average_mae``, ``test.bwt_mae`` and ``test.fwt_mae``. Then ``test.final_mae`` is
    the last of :func:`so_far`, and ``test.incremental_mae`` the mean of them.

    Parameters
    ----------
    rows : sequence of mappings
        See :func:`train_test_matrix`.
    num_stages : int
        Number of stages.
    rounds, begun : int
        Numbers of rounds of the whole run and before it; see :func:`train_test_matrix`.

    Returns
    -------
    dict
        Measures by name. A measure that cannot be computed is omitted: both transfers of a single stage, and all but
        the forward transfer before the last stage has ended.
    """
    found: dict[str, float] = {}
    for metric in stage_metrics(rows):
        matrix = train_test_matrix(rows, metric, num_stages=num_stages, rounds=rounds, begun=begun)
        means = so_far(matrix)
        values = (
            *(average(matrix), backward_transfer(matrix), forward_transfer(matrix)),
            *(float(means[-1]), float(means.mean())),
        )
        found |= {name: value for name, value in zip(measure_names(metric), values, strict=True) if np.isfinite(value)}
    return found


def measure_names(metric: str) -> tuple[str, ...]:
    """The names of the measures of a metric, first that of the average; see :func:`continual_metrics`."""
    split, dot, bare = metric.rpartition(".")
    names = ("amse", "bwt", "fwt") if bare == "mse" else (f"average_{bare}", f"bwt_{bare}", f"fwt_{bare}")
    return tuple(f"{split}{dot}{name}" for name in (*names, f"final_{bare}", f"incremental_{bare}"))
