"""Which methods cannot be combined with which kind of privacy, each with the reason."""

from collections.abc import Iterator

from fedapps.app.privacy import CENTRAL
from fedapps.catalogue import METHODS, Method
from strategies.adaptive_rates import AdaptiveRates
from strategies.clustered import ClusteredFedAvg
from strategies.fedweit import FedWeIT
from strategies.fisher_exchange import FisherExchange

from .run_config import RunConfig

SECURE_AGGREGATION = (
    "Flower's SecAgg+ (SecAggPlusWorkflow, secaggplus_mod; Flower 1.39) drives strategies of the older API only: it "
    "calls configure_fit and aggregate_fit, and takes four exchanges with every node where these strategies have one"
)


def privacy_conflicts(run: RunConfig) -> Iterator[tuple[set[str], str]]:
    """What :func:`fedapps.config.conflicts.conflicts` yields, for ``dp`` and ``secure-aggregation``."""
    if run.secure_aggregation:
        yield {"secure_aggregation"}, f"secure-aggregation = true: must be false, because {SECURE_AGGREGATION}"
    if run.dp == "none":
        return
    known = [name for name in run.method_names() if name in METHODS]
    by_reason: dict[str, list[str]] = {}
    for name in known:
        if reason := reason_against(run.dp, METHODS[name]):
            by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield (
            {"dp", "methods"},
            f"dp = {run.dp!r}: leave out of methods {', '.join(names)}, or set dp = 'none': {reason}",
        )
    if run.dp in CENTRAL and run.weighting != "uniform":
        yield (
            {"dp", "weighting"},
            f"weighting = {run.weighting!r}: must be 'uniform' with dp = {run.dp!r}, or one node may count so much "
            "that the noise does not hide it",
        )


def reason_against(dp: str, method: Method) -> str:
    """Why a method cannot be combined with a kind of privacy; empty where it can."""
    if method.trains == "pooled":
        return "one node trains on everybody's data, so there is nothing left to keep from it"
    if method.trains == "nobody":
        return "nobody trains, so that noise would only spoil the model as it is given"
    if method.fisher is not None:
        return FisherExchange.privacy_gap
    if method.memory == "fedweit":
        return FedWeIT.privacy_gap
    if dp in CENTRAL and method.rate_power is not None:
        return AdaptiveRates.privacy_gap
    if dp in CENTRAL and method.federation == "clusters":
        return ClusteredFedAvg.privacy_gap
    return ""
