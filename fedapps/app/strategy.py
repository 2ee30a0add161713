"""The strategy of a method, made of the parts of the run, and the grid of a run with simulated time."""

import csv
import io
from collections.abc import Iterable
from glob import escape
from math import inf
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedapps.base.atomic import write_whole
from fedapps.base.options import matches
from fedapps.clients.local_part import ComposedParts
from fedapps.config.clock import devices_of
from fedapps.config.parsing import Config
from fedapps.config.run_config import (
    RunConfig,
    compression_of,
    held_out_of,
    read_allowed_groups,
    read_limits,
    robust_aggregation,
    secure_aggregation_of,
)
from fedapps.methods.base import Method, StrategyParts
from fedapps.report.run_data import DEVICES
from fedapps.sim.clock_grid import ClockGrid, Reading
from fedapps.sim.devices import MEGABIT, Devices
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
from fedapps.strategies.wire import HELD_OUT_PREFIXES, KEY, PROFILE, PROFILE_QUERY, STEPS
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
        "size_bound": run.size_bound,
        "admission": Admission(read_allowed_groups(run.allowed_groups), run.bind_keys),
        "held_out": held_out_of(run),
        "privacy": central_privacy(run),
        "compression": compression_of(run),
        "secure_aggregation": secure_aggregation_of(run),
        "closing": run.pace.closing,
        "server_optimizer": optimizer_by_name(run.server_optimizer, run.server_learning_rate, tau=run.server_tau),
        "min_replies": run.min_replies,
        "min_nodes": run.num_nodes,
        "node_wait": run.node_wait,
        "in_flight": run.in_flight or None,
        "profiles": True,
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
    return {prefix + name: rule for prefix in prefixes for name, rule in config.task.metric_rules.items()}


def _sampler(run: RunConfig) -> Sampler:
    if run.sampling == "poisson":
        return PoissonSampling(run.fraction_train, seed=sampling_seed(run))
    for learning in (SpeedTiers, Utility):
        if run.sampling == learning.name:
            return learning(run.fraction_train, run.seed)
    return DropSchedule(seed=run.seed) if run.drop_nodes else UniformFraction(run.fraction_train, seed=run.seed)


def with_clock(grid: Grid, run: RunConfig) -> Grid:
    """The grid itself, or with simulated time that begins now, as the keys ``clock-*`` say.

    Raises
    ------
    ValueError
        As :func:`~fedapps.config.clock.devices_of`.
    """
    if not run.clock.on:
        return grid
    devices = devices_of(run.clock, run.num_nodes, run.seed)
    reading = Reading(PROFILE_QUERY, key=_key, steps=_steps, size=_size)
    return ClockGrid(grid, devices, reading, lost=run.clock.clock_interrupted == "lose")


def write_devices(folder: Path, grid: ClockGrid) -> None:
    """Write the device of each node, once its nodes have been asked for their keys."""
    numbers, devices = grid.devices_by_key(), grid.devices
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(["device", "speed", "up", "down"])
    writer.writerows([key, *_row(devices, number)] for key, number in numbers.items())
    write_whole(folder / DEVICES, rows.getvalue().encode())


def _row(devices: Devices, number: int) -> list[float | str]:
    rates = (float(rate[number]) / MEGABIT for rate in (devices.uplink, devices.downlink))
    return [float(devices.step_seconds[number]), *("" if rate == inf else rate for rate in rates)]


def _key(reply: Message) -> str:
    record = reply.content.get(PROFILE)
    return str(record.get(KEY, "")) if isinstance(record, ConfigRecord) else ""


def _size(content: RecordDict) -> int:
    """The bytes of the arrays; those of the config depend on the name of the run and on how often it was resumed."""
    return sum(record.count_bytes() for record in content.values() if isinstance(record, ArrayRecord))


def _steps(reply: Message) -> float | None:
    record = next((record for record in reply.content.values() if isinstance(record, MetricRecord)), MetricRecord())
    stated = record.get(STEPS)
    return float(stated) if isinstance(stated, int | float) and 0 <= stated < inf else None
