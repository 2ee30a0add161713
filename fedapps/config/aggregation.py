"""The key ``aggregation``: which robust aggregation it names, and what cannot be combined with one."""

from collections.abc import Iterator, Mapping

from fedapps.methods.base import Conflict, Method
from fedapps.strategies import Krum, Median, MultiKrum, RobustAggregation, TrimmedMean

from .run_config import RunConfig


def robust_aggregation(run: RunConfig) -> RobustAggregation | None:
    """The strategy's part, ``None`` for the mean."""
    fraction = run.byzantine_fraction
    aggregations = {
        "median": Median(),
        "trimmed-mean": TrimmedMean(fraction),
        "krum": Krum(fraction),
        "multi-krum": MultiKrum(fraction),
    }
    return aggregations.get(run.aggregation)


def aggregation_conflicts(run: RunConfig, methods: Mapping[str, Method]) -> Iterator[Conflict]:
    """What :func:`fedapps.config.conflicts.conflicts` yields for ``aggregation`` and ``byzantine-fraction``."""
    aggregation = robust_aggregation(run)
    if aggregation is None:
        return
    by_reason: dict[str, list[str]] = {}
    for label, method in methods.items():
        if reason := method.robustness_conflict():
            by_reason.setdefault(reason, []).append(label)
    for reason, names in by_reason.items():
        yield (
            {"aggregation", "methods"},
            f"aggregation = {run.aggregation!r}: leave out of methods {', '.join(names)}, or set aggregation = 'mean': "
            f"{reason}",
        )
    if run.dp.startswith("central"):
        yield (
            {"aggregation", "dp"},
            f"aggregation = {run.aggregation!r}: must be 'mean' with dp = {run.dp!r}, whose noise is that of a mean",
        )
    if (needed := aggregation.required(run.training_nodes)) > run.training_nodes:
        yield (
            {"aggregation", "byzantine_fraction", "num_nodes", "fraction_train"},
            f"aggregation = {run.aggregation!r}: needs at least {needed} replies with byzantine-fraction = "
            f"{run.byzantine_fraction:g}, but {run.training_nodes} nodes train in a round (fraction-train = "
            f"{run.fraction_train:g} of num-nodes = {run.num_nodes})",
        )
