"""From a method's name to its strategy."""

from collections.abc import Collection, Iterable
from functools import partial
from math import floor
from typing import Any

from clients.named_arrays import matches
from fedapps.catalogue import EVERYTHING, METHODS, Method, privacy_of, task_class
from fedapps.config.run_config import RunConfig
from strategies.adaptive_rates import AdaptiveRates
from strategies.base import BaseStrategy
from strategies.clustered import ClusteredFedAvg
from strategies.example_limits import ExampleLimits
from strategies.fedweit import FedWeIT
from strategies.fisher_exchange import FisherExchange
from strategies.hierarchical import CLUSTER, HierarchicalFedAvg
from strategies.optimizers import SGD, AdaGrad, Adam, Momentum, Yogi
from strategies.partial_aggregation import PartialAggregation
from strategies.profiles import Profile, in_key_order
from strategies.round_records import RoundStep, TrackedMetric
from strategies.samplers import DropSchedule, FixedPerCluster, ProportionalToSize, Sampler, UniformFraction
from strategies.server_optimizer import ServerOptimizer
from strategies.virtual_clients import VirtualClients

from .privacy import central_privacy


class FirstNode(Sampler):
    """The first node in key order: it trains on the pooled data of Cloud, or stands for all where nobody trains."""

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        return in_key_order(profiles)[:1]


def build_strategy(
    run: RunConfig, method_name: str, parameters: Iterable[str] = (), num_stages: int = 1
) -> BaseStrategy:
    """The strategy of a method with the run's sampling, weighting and server optimizer.

    ``parameters`` are the names of the model's, of which a method can keep some private; ``num_stages`` are those of
    the task's data. Raises ``ValueError`` when it would keep some private that the model does not have.
    """
    method = METHODS[method_name]
    optimizer, rate = method.server or (run.server_optimizer, "server_learning_rate")
    parts: dict[str, Any] = {
        "shared": _shared(method, task_class(run.task).fixed, parameters),
        "sampler": _sampler(run) if method.trains == "nodes" else FirstNode(),
        "evaluate_sampler": UniformFraction(run.fraction_evaluate, seed=run.seed),
        "weighting": run.weighting,
        "sizes": ExampleLimits(most=run.max_examples, growing=_growing(run, method_name, num_stages)),
        "privacy": central_privacy(run),
        "server_optimizer": _optimizer(optimizer, getattr(run, rate), run),
        "min_replies": run.min_replies if method.trains == "nodes" else 1,
        "min_nodes": run.num_nodes,
        "node_wait": run.node_wait,
        "in_flight": run.in_flight or None,
        "metric_means": task_class(run.task).metric_means,
    }
    if method.federation != "plain":
        return _federations(run, parts, method.federation)
    if method.rate_power is not None:
        return AdaptiveRates(granularity=run.rate_granularity, power=method.rate_power, **parts)  # type: ignore[arg-type]
    if method.fisher is not None:
        own_past, others_past, others_now = (getattr(run, w) if isinstance(w, str) else w for w in method.fisher)
        return FisherExchange(
            own_past=own_past,
            others_past=others_past,
            others_now=others_now,
            anchors=run.elastic_anchors,  # type: ignore[arg-type]
            estimator=run.fisher_estimator,  # type: ignore[arg-type]
            **parts,
        )
    if method.memory == "fedweit":
        return FedWeIT(**parts)
    return BaseStrategy(**parts) if method.private in ((), EVERYTHING) else PartialAggregation(**parts)


def training_nodes(run: RunConfig) -> int:
    """How many nodes train in a round."""
    return max(1, floor(run.fraction_train * run.num_nodes + 0.5))


def tiers_of(run: RunConfig) -> tuple[list[str], list[int]]:
    """The groups that are clusters and their intervals, the finest first. Raises ``ValueError`` naming the key."""
    groups = [name.strip() for name in run.cluster_groups.split(",") if name.strip()]
    try:
        intervals = [int(number) for number in run.cluster_intervals.split(",")]
    except ValueError:
        raise ValueError(
            f"cluster-intervals = {run.cluster_intervals!r}: must be whole numbers separated by commas, one for each "
            "of cluster-groups"
        ) from None
    try:
        HierarchicalFedAvg(groups=groups, intervals=intervals)
    except ValueError as error:
        given = f"cluster-groups = {run.cluster_groups!r}, cluster-intervals = {run.cluster_intervals!r}"
        raise ValueError(f"{given}: {error}") from None
    return groups, intervals


def tracked_metric(run: RunConfig) -> TrackedMetric | None:
    """What decides the best round and early stopping, if anything does."""
    if not run.track_metric:
        return None
    return TrackedMetric(run.track_metric, run.track_mode, run.patience)  # type: ignore[arg-type]


def _federations(run: RunConfig, parts: dict[str, Any], federation: str) -> BaseStrategy:
    """Strategies that bring nodes together otherwise than as one."""
    if federation == "virtual":
        work = {"steps": run.steps} if run.steps else {"examples": run.virtual_examples}
        alike = parts | {"sampler": ProportionalToSize(training_nodes(run), run.seed)}
        del alike["weighting"]
        return VirtualClients(**(alike | work))
    factory = partial(_optimizer, run.cluster_optimizer, run.cluster_learning_rate, run)
    if federation == "clusters":
        return ClusteredFedAvg(
            num_clusters=run.num_clusters,
            first=run.cluster_first,
            every=run.cluster_every,
            cluster_optimizer=factory,
            evaluate_shared=True,
            **parts,
        )
    groups, intervals = tiers_of(run)
    if run.cluster_cohort:
        parts = parts | {"sampler": FixedPerCluster(CLUSTER, run.cluster_cohort, run.seed)}
    return HierarchicalFedAvg(
        groups=groups,
        intervals=intervals,
        cluster_optimizers=[factory] * len(groups),
        evaluate_shared=True,
        **parts,
    )


def _optimizer(name: str, rate: float, run: RunConfig) -> ServerOptimizer:
    if name in ("sgd", "momentum"):
        return SGD(rate) if name == "sgd" else Momentum(rate)
    if name == "adagrad":
        return AdaGrad(rate, tau=run.server_tau)
    return (Adam if name == "adam" else Yogi)(rate, tau=run.server_tau)


def _shared(method: Method, fixed: tuple[str, ...], parameters: Iterable[str]) -> tuple[str, ...]:
    """The names, or patterns, of what travels: neither what is private nor what never changes."""
    staying = (*method.private, *fixed)
    if not staying:
        return EVERYTHING
    if method.private == EVERYTHING:
        return ()
    names = list(parameters)
    idle = [pattern for pattern in method.private if not any(matches(name, [pattern]) for name in names)]
    if idle:
        raise ValueError(f"private = {', '.join(idle)}: no parameter of the model matches; it has {', '.join(names)}")
    return tuple(name for name in names if not matches(name, staying))


def _growing(run: RunConfig, method_name: str, num_stages: int) -> bool:
    """Whether a node may train on more examples than its profile says: that of the first method, before any stage."""
    first, *_ = run.method_names()
    differs = METHODS[method_name].trains == "pooled" or privacy_of(method_name) != privacy_of(first)
    return run.collect_after > 0 or num_stages > 1 or differs


def _sampler(run: RunConfig) -> Sampler:
    return DropSchedule(seed=run.seed) if run.drop_nodes else UniformFraction(run.fraction_train, seed=run.seed)
