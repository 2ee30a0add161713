"""The strategy of a method, made of the parts of the run."""

from collections.abc import Iterable
from glob import escape

from fedapps.base.options import matches
from fedapps.clients.local_part import ComposedParts
from fedapps.config.parsing import Config
from fedapps.config.run_config import (
    RunConfig,
    compression_of,
    held_out_of,
    read_allowed_groups,
    read_limits,
    robust_aggregation,
)
from fedapps.methods.base import Method, StrategyParts
from fedapps.strategies import (
    Admission,
    BaseStrategy,
    DropSchedule,
    ExampleLimits,
    PoissonSampling,
    Sampler,
    SpeedTiers,
    TrackedMetric,
    UniformFraction,
    Utility,
)
from fedapps.strategies.aggregation import MetricRule
from fedapps.strategies.optimizers import optimizer_by_name
from fedapps.strategies.wire import HELD_OUT_PREFIXES
from fedapps.tasks.profiles import PrivateParameters

from .privacy import central_privacy, sampling_seed


def build_strategy(
    config: Config, label: str, parameters: Iterable[str] = (), buffers: Iterable[str] = ()
) -> BaseStrategy:
    """The strategy of the method ``label`` with the run's sampling, weighting and server optimizer.

    Parameters
    ----------
    config : Config
    label : str
        One of ``config.methods``.
    parameters : iterable of str
        The names of the model's arrays, some of which the method may keep private.
    buffers : iterable of str
        Those of them that are not trained.

    Raises
    ------
    ValueError
        The method keeps parameters private that the model does not have.
    """
    run, method = config.run_of(label), config.methods[label]
    common = {
        "shared": shared_names(method.private(config.task), config.task.fixed, parameters),
        "sampler": _sampler(run),
        "evaluate_sampler": UniformFraction(run.fraction_evaluate, seed=run.seed),
        "weighting": run.weighting,
        "buffers": tuple(map(escape, buffers)),
        "aggregation": robust_aggregation(run),
        "example_limits": ExampleLimits(maximum=run.max_examples, may_grow=_may_grow(config, label)),
        "admission": Admission(read_allowed_groups(run.allowed_groups), run.bind_keys),
        "held_out": held_out_of(run),
        "privacy": central_privacy(run),
        "compression": compression_of(run),
        "closing": run.pace.closing,
        "server_optimizer": optimizer_by_name(run.server_optimizer, run.server_learning_rate, tau=run.server_tau),
        "min_replies": run.min_replies,
        "min_nodes": run.num_nodes,
        "node_wait": run.node_wait,
        "in_flight": run.in_flight or None,
        "metric_means": _metric_means(config, method),
    }
    return method.strategy(StrategyParts(run, common, config.task.roles))


def tracked_metric(run: RunConfig) -> TrackedMetric | None:
    """The metric that decides the best round and early stopping, if there is one."""
    if not run.track_metric:
        return None
    limits = read_limits(run.stop_beyond)
    return TrackedMetric(run.track_metric, run.track_mode, run.patience, limits=limits)  # type: ignore[arg-type]


def shared_names(private: PrivateParameters, fixed: tuple[str, ...], parameters: Iterable[str]) -> tuple[str, ...]:
    """The names, or patterns, of what travels: neither what is private nor what never changes.

    Raises
    ------
    ValueError
        A private pattern matches none of the ``parameters``.
    """
    staying = (*private.patterns, *fixed)
    if not staying:
        return ("*",)
    if private.everything:
        return ()
    names = list(parameters)
    idle = [pattern for pattern in private.patterns if not any(matches(name, [pattern]) for name in names)]
    if idle:
        raise ValueError(f"private = {', '.join(idle)}: no parameter of the model matches; it has {', '.join(names)}")
    return tuple(name for name in names if not matches(name, staying))


def _may_grow(config: Config, label: str) -> bool:
    """Whether a node may train on more examples than its profile says: that of the first method, in the first stage."""
    first, method = next(iter(config.methods.values())), config.methods[label]
    differs = method.pools_data or method.private(config.task) != first.private(config.task)
    return config.run.collect_after > 0 or config.num_stages > 1 or differs


def _metric_means(config: Config, method: Method) -> dict[str, MetricRule]:
    """The rules of the task's metrics, also with the prefixes of models that nodes evaluate beside their own."""
    held_out = HELD_OUT_PREFIXES if config.run.held_out_nodes else ()
    unprepared = ComposedParts(tuple(method.local_parts())).unprepared_prefix() or ""
    prefixes = dict.fromkeys(("", unprepared, *held_out))
    return {prefix + name: rule for prefix in prefixes for name, rule in config.task.metric_means.items()}


def _sampler(run: RunConfig) -> Sampler:
    if run.sampling == "poisson":
        return PoissonSampling(run.fraction_train, seed=sampling_seed(run))
    for learning in (SpeedTiers, Utility):
        if run.sampling == learning.name:
            return learning(run.fraction_train, run.seed)
    return DropSchedule(seed=run.seed) if run.drop_nodes else UniformFraction(run.fraction_train, seed=run.seed)
