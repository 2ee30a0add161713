"""The keys of the run config that belong to no task and no method."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from fedapps.base.options import option, option_fields, split_names
from fedapps.base.text_files import shown
from fedapps.clients.data import DataSource, find_source, world_name
from fedapps.clients.settings import LocalTraining
from fedapps.strategies import (
    Compression,
    HeldOut,
    Krum,
    Median,
    MultiKrum,
    RobustAggregation,
    SecureAggregation,
    TrimmedMean,
)
from fedapps.strategies.compression import COMPRESSION_NAMES, compression_by_name
from fedapps.strategies.optimizers import OPTIMIZER_NAMES
from fedapps.strategies.samplers import rounded_share
from fedapps.strategies.wire import LAST_ROUND
from fedapps.tasks.base import Task

from .clock import Pace, SimulatedTime

#: The keys that a method can set for itself, as in ``fedavg(run.learning-rate=0.01)``: how nodes train, what they
#: send, how much each counts, for whom the server waits and what step it takes, but not who takes part or how long.
METHOD_KEYS = (
    *("epochs", "steps", "learning-rate", "learning-rate-schedule", "batch-size", "optimizer", "momentum"),
    *(
        "weight-decay",
        "clip-norm",
        "linear-decay",
        "weighting",
        "server-optimizer",
        "server-learning-rate",
        "server-tau",
    ),
    *("compression", "compression-share"),
    *option_fields(Pace),
)
#: Values of the key ``aggregation``.
AGGREGATION_NAMES = ("mean", "median", "trimmed-mean", "krum", "multi-krum")
_LONGEST_NAME = 255  # bytes


@dataclass(frozen=True)
class RunConfig:
    """What one run does. Each field is a key of Flower's run config, written with hyphens.

    Options of a task and of a method are further keys that start with its name (``driving.scenario``, ``fedprox.mu``).
    """

    name: str = option("", "name of the run folder; empty = the task and Flower's run id")
    task: str = option("driving", "task to learn; see `fedapps list`")
    methods: str = option(
        "local,fedavg,spfl,apfl", "methods to run one after another, such as fedavg,fedprox(mu=0.1); see `fedapps list`"
    )
    seed: int = option(0, "seed of every random draw", minimum=0)
    rounds: int = option(10, "communication rounds", minimum=1, maximum=LAST_ROUND)
    num_nodes: int = option(7, "nodes that must be connected before the first round; see node-wait", minimum=1)
    output_dir: str = option("", "folder of the run folders; empty = ~/fedapps/runs")
    data_dir: str = option("", "folder with the data of all nodes; empty = a simulated world")
    cache_dir: str = option("", "folder of simulated worlds; empty = ~/fedapps/worlds")
    extra: str = option(
        "", "keys of tasks and methods of other packages as a TOML inline table, such as tabular.alpha = 0.3"
    )
    trackers: str = option("", "trackers that record the run, separated by commas; see `fedapps list`")
    timings: bool = option(
        False,
        "record the seconds of each phase of a round, on the server and on every node, and show them in the report",
    )
    resume: bool = option(False, "resume the run of this name from its last checkpoint")
    start: str = option(
        "",
        "folder of a finished run to go on from, with its models and what its nodes kept, or a model folder; a name is "
        "one in output-dir; empty = the untrained model",
    )
    start_from: str = option(
        "last", "checkpoint of the run in start; best needs its track-metric", choices=["last", "best"]
    )
    held_back: float = option(
        0.0,
        "share of each node's newest training examples, where they are in the order of recording, on which it does not "
        "train; `fedapps gate` compares models on them, without it on the test data",
        minimum=0,
        maximum=0.9,
    )
    registry: str = option("", "folder of the registry of champions on the server, for `fedapps gate`")
    gate: str = option(
        "",
        "in place of training, let nodes compare the run in start with the champion and use the better one (dry-run: "
        "only compare), use the champion (deliver), or go back to the one before; empty = train",
        choices=["", "compare", "dry-run", "deliver", "rollback"],
    )
    gate_margin: float = option(0.0, "mean loss of track-metric that a promotion allows, in its unit", minimum=0)
    gate_group_margin: float = option(
        0.0, "mean loss of track-metric in a group of nodes that a promotion allows", minimum=0
    )
    gate_method: str = option("", "label of the challenger's method; empty = the first of methods")
    gate_nodes: str = option("", "keys of the nodes that go back, separated by commas; empty = all")
    keep_runs: int = option(
        4,
        "runs with registry whose checkpoints `fedapps generation` keeps and whose private state a node keeps, beside "
        "those of the last two champions; 0 = all",
        minimum=0,
    )
    newest: str = option(
        "all",
        "training examples of each node, where they are in the order of recording: all; new, those since its last run; "
        "or the number of the newest ones, such as 1000",
    )
    device: str = option("auto", "device of the nodes; auto = a GPU if there is one", choices=["auto", "cpu", "cuda"])
    node_cpus: int = option(1, "torch threads of a node; results are bit-identical for the same number", minimum=1)
    node_batch: int = option(
        1,
        "nodes of a round that train at once, with stacked parameters; for the inline engine and for models that "
        "torch.func.vmap supports; results agree to rounding with 1, which trains one node after another",
        minimum=1,
    )
    state_backend: str = option("disk", "where nodes keep private parameters", choices=["disk", "context"])

    training: LocalTraining = LocalTraining()
    total_steps: int = option(
        0, "local steps over all rounds; sets rounds to total-steps / steps; 0 = use rounds", minimum=0
    )
    learning_rate_schedule: str = option(
        "constant",
        "local learning rate over the rounds; cosine: from learning-rate in round 1 down to almost 0 in the last round",
        choices=["constant", "cosine"],
    )
    collect_after: int = option(6, "round after which nodes collect new data with their model; 0 = never", minimum=0)

    fraction_train: float = option(1.0, "fraction of the nodes that train in a round", above=0, maximum=1)
    sampling: str = option(
        "fixed",
        "draw a fixed number of nodes to train, each node independently with probability fraction-train (poisson), "
        "nodes of equal speed (tiers: TiFL), or nodes that are fast and whose loss is high (utility: Oort)",
        choices=["fixed", "poisson", "tiers", "utility"],
    )
    fraction_evaluate: float = option(1.0, "fraction of the nodes that evaluate", above=0, maximum=1)
    held_out_nodes: str = option(
        "",
        "nodes that take no part in the rounds and then adapt the result as new nodes: a share of the nodes such as "
        "0.2, or keys of nodes separated by commas; empty = none",
    )
    held_out_epochs: int = option(
        10, "epochs in which a held-out node adapts, and trains alone to compare; 0 = only receive", minimum=0
    )
    evaluate_every: int = option(2, "rounds between two evaluations; the last round is always evaluated", minimum=1)
    min_replies: int = option(1, "fail a round with fewer usable replies than this; 0 = never", minimum=0)
    max_failed_evaluations: int = option(
        3,
        "fail after this many evaluations in a row of which nothing can be used, because all replies are refused or "
        "have no finite metric; 0 = never",
        minimum=0,
    )
    max_examples: int = option(
        0, "reject example counts, and counts that weigh a metric, above this; 0 = unlimited", minimum=0
    )
    size_bound: float = option(
        100.0,
        "refuse an update, and anything else in a reply, that is more than this number times as large as the median of "
        "recent rounds; 0 = unlimited",
        minimum=0,
    )
    allowed_groups: str = option(
        "",
        "leave out nodes whose group is not listed, such as city: berlin, tokyo; continent: europe, asia; empty = none",
    )
    bind_keys: bool = option(
        False, "bind each node key to the public key that claimed it first; for fleets with node authentication"
    )
    weighting: str = option("uniform", "weight of a node in means", choices=["num-examples", "uniform"])
    aggregation: str = option(
        "mean",
        "how the server combines the replies; all but mean tolerate Byzantine nodes, ignore weighting and size-bound, "
        "and keep all replies of a round in memory",
        choices=AGGREGATION_NAMES,
    )
    byzantine_fraction: float = option(
        0.2,
        "fraction of the replies of a round that may be Byzantine, for trimmed-mean, krum and multi-krum; at least one "
        "reply if above 0",
        minimum=0,
        maximum=0.49,
    )
    compression: str = option(
        "none",
        "how nodes compress their updates: bf16 halves them, int8 quarters them, top-k sends the largest changes alone",
        choices=("none", *COMPRESSION_NAMES),
    )
    compression_share: float = option(0.01, "share of the values of each array that top-k sends", above=0, maximum=1)
    dp: str = option(
        "none",
        "differential privacy: noise on each node, on the server after clipping by the server or by the nodes, or a "
        "part of it on every node, in the sum that secure-aggregation gives (distributed)",
        choices=["none", "local", "central-server", "central-client", "distributed"],
    )
    dp_clip: float = option(1.0, "clip a node's update to this L2 norm under dp", above=0)
    dp_noise: float = option(1.0, "noise multiplier: standard deviation of the noise divided by dp-clip", minimum=0)
    dp_delta: float = option(1e-5, "delta at which epsilon is reported", above=0, maximum=0.5)
    dp_seeded: bool = option(
        False, "draw the noise from seed to repeat an experiment; this protects from nobody who knows the seed"
    )
    secure_aggregation: bool = option(
        False, "nodes mask their updates so that the server gets their sum and no single one (SecAgg+)"
    )
    secure_aggregation_neighbours: int = option(
        0, "with how many others each node exchanges masks, at least 2; 0 = all others of the round", minimum=0
    )
    secure_aggregation_threshold: float = option(
        0.67,
        "fail a round unless more than this share of a node and its neighbours stays until its end; nodes refuse less "
        "than 2/3 unless their config says otherwise",
        minimum=0.5,
        maximum=0.99,
    )
    secure_aggregation_clip: float = option(
        10.0, "clip a node's update to this L2 norm under secure-aggregation; dp-clip with dp = distributed", above=0
    )
    secure_aggregation_buffer_clip: float = option(
        10.0, "the largest change of a value of a buffer, such as the variance of a normalisation", above=0
    )
    secure_aggregation_bits: int = option(
        22, "bits of a value; with log2 of the total weight at most 32: 22 for 1,024 nodes", minimum=2, maximum=31
    )
    secure_aggregation_metrics: str = option(
        "",
        "the metrics of training whose mean the server gets, each with the largest absolute value that counts, such as "
        "loss: 10; empty = none",
    )
    server_optimizer: str = option("sgd", "server optimizer", choices=OPTIMIZER_NAMES)
    server_learning_rate: float = option(1.0, "server learning rate; 1 with sgd is FedAvg", above=0)
    server_tau: float = option(0.001, "tau of the server optimizers adam, adagrad and yogi", above=0)
    drop_nodes: bool = option(False, "leave one random node out of each round; the same node for every method")
    track_metric: str = option("", "evaluation metric that decides the best round and early stopping; empty = none")
    track_mode: str = option("min", "whether a lower or a higher tracked metric is better", choices=["min", "max"])
    patience: int = option(0, "stop after this many evaluations without improvement; 0 = never", minimum=0)
    target: float = option(
        0.0,
        "report the first round in which the tracked metric reaches this, and the steps until then; 0 = none",
        minimum=0,
    )
    stop_beyond: str = option(
        "",
        "stop after an evaluated round whose tracked metric is worse than the value for this round, such as "
        "5: 0.31, 10: 0.27; empty = never",
    )
    withhold_test: bool = option(
        False,
        "nodes drop their test data after reading, so that settings are chosen on validation data only; for tasks "
        "with validation data",
    )
    timeout: float = option(3600.0, "seconds to wait for a node's reply, also to the profile query", above=0)
    in_flight: int = option(
        0,
        "nodes that work at the same time, also on profile queries; the next starts when one has replied; 0 = all",
        minimum=0,
    )
    node_wait: float = option(
        60.0,
        "stop waiting for num-nodes nodes and their profiles after this many seconds without a sign of life: a node "
        "that joins or answers, or, while too few are known, a connected node that has not answered yet",
        minimum=0,
    )

    pace: Pace = Pace()
    clock: SimulatedTime = SimulatedTime()

    def check_real_nodes(self) -> None:
        """Check the keys for nodes that are no simulation.

        Raises
        ------
        ValueError
            Time is simulated, an asynchronous run could wait for a node that sleeps, or a metric is tracked where
            nodes send none.
        """
        if self.hides and self.track_metric:
            raise ValueError(
                f"track-metric = {self.track_metric!r}: must be empty on a fleet with {self.hides}, whose nodes send "
                "no metrics of their data; simulated nodes do, so `fedapps run` can choose rounds and settings"
            )
        if self.pace.mode == "async" and not self.pace.deadline:
            raise ValueError(
                f"deadline = 0: must be above 0 on a fleet with mode = 'async', or an evaluation waits up to timeout = "
                f"{self.timeout:g} s for a node that sleeps; take the seconds that a usual node trains"
            )
        if self.clock.on:
            raise ValueError(
                "clock-step-seconds, clock-devices: must be empty on a fleet, whose nodes take their own time; "
                "`fedapps run` simulates time"
            )

    @property
    def hides(self) -> str:
        """The setting under which nodes with their own data send no metrics of them; empty if none is set."""
        if self.dp == "local":
            return "dp = 'local'"
        return "secure-aggregation = true" if self.secure_aggregation else ""

    def check_simulated_nodes(self) -> None:
        """Check the keys for simulated nodes. Raises ``ValueError`` if their speed decides and is not simulated."""
        if self.sampling in ("tiers", "utility") and not self.clock.on:
            raise ValueError(
                f"sampling = {self.sampling!r}: needs clock-step-seconds or clock-devices where nodes are simulated; "
                "without them, it would choose nodes by when this machine comes to them"
            )

    def check_separate_nodes(self) -> None:
        """Check the keys for nodes with a process each. Raises ``ValueError`` if nodes shall train at once."""
        if self.node_batch > 1:
            raise ValueError(
                f"node-batch = {self.node_batch}: must be 1 where each node has its own process; nodes can train at "
                "once only with --engine inline"
            )

    def folder(self, run_id: int) -> Path:
        """The folder of the run; on one machine, the server and simulated nodes get the same path."""
        return self._output / (self.name or f"{self.task}-{run_id}")

    @property
    def compares(self) -> bool:
        """Whether nodes compare a model with the champion."""
        return self.gate in ("compare", "dry-run")

    @property
    def started_from(self) -> Path | None:
        """The folder that ``start`` names, if it names one."""
        return self._output / Path(self.start).expanduser() if self.start else None

    def source(self, task: Task, node_config: Mapping[str, Any]) -> DataSource:
        """Where a node with this config finds its data; see :func:`~fedapps.clients.data.find_source`."""
        return find_source(task, node_config, data_dir=self.data_dir, cache_dir=self._cache, seed=self.seed)

    def has_data(self, task: Task) -> bool:
        """Whether :meth:`source` has nothing to simulate: there is a ``data-dir``, or the world is in ``cache-dir``."""
        return bool(self.data_dir) or (self._cache / world_name(task, self.num_nodes, self.seed)).exists()

    @property
    def _output(self) -> Path:
        return Path(self.output_dir or "~/fedapps/runs").expanduser().absolute()

    @property
    def _cache(self) -> Path:
        return Path(self.cache_dir or "~/fedapps/worlds").expanduser()

    @property
    def participants(self) -> int:
        """How many of ``num_nodes`` nodes are not held out."""
        held_out = held_out_of(self)
        return self.num_nodes - (len(held_out.keys) or rounded_share(held_out.share, self.num_nodes))

    @property
    def training_nodes(self) -> int:
        """How many nodes train in a round; under Poisson sampling, about as many."""
        if self.drop_nodes:
            return max(1, self.participants - 1)
        return max(1, rounded_share(self.fraction_train, self.participants))

    @property
    def expected_replies(self) -> float:
        """The expected number of nodes that train in a round if exactly ``num_nodes`` are connected."""
        return self.fraction_train * self.participants if self.sampling == "poisson" else self.training_nodes


def with_source(options: Any, run: RunConfig) -> Any:
    """A task's options with what ``source = "auto"`` stands for: files if the run has a data-dir."""
    if getattr(options, "source", "") != "auto":
        return options
    return replace(options, source="files" if run.data_dir else "simulated")


def check_name(name: str) -> None:
    """Check the key ``name``. Raises ``ValueError`` if no folder of usual file systems can have the name."""
    if len(name.encode(errors="surrogatepass")) > _LONGEST_NAME or re.search(r"[\x00-\x1f\x7f]", name):
        raise ValueError(
            f"name = {shown(name)}: must have at most {_LONGEST_NAME} bytes and no control characters, because it "
            "names a folder"
        )


def read_allowed_groups(text: str) -> dict[str, frozenset[str]]:
    """Read the key ``allowed-groups``, such as ``"city: berlin, tokyo; continent: europe, asia"``.

    Returns
    -------
    dict of str to frozenset of str
        Labels by kind of group; empty for an empty text.

    Raises
    ------
    ValueError
        The text has another form, or a kind is given twice.
    """
    groups: dict[str, frozenset[str]] = {}
    for part in filter(str.strip, text.split(";")):
        kind, colon, names = part.partition(":")
        kind, labels = kind.strip(), frozenset(filter(None, map(str.strip, names.split(","))))
        if not (kind and colon and labels) or kind in groups:
            raise ValueError(
                f"allowed-groups = {text!r}: must be a kind of group, a colon and its labels, separated by commas; "
                "several kinds are separated by semicolons, such as city: berlin, tokyo; continent: europe, asia"
            )
        groups[kind] = labels
    return groups


def read_limits(text: str) -> dict[int, float]:
    """Read the key ``stop-beyond``: limits of the tracked metric, such as ``5: 0.31, 10: 0.27``.

    Returns
    -------
    dict of int to float
        Limits by round, counted from 1; empty for an empty text.

    Raises
    ------
    ValueError
        The text has another form, or names a round twice.
    """
    limits: dict[int, float] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        number, _, value = pair.partition(":")
        try:
            server_round, limit = int(number), float(value)
            if server_round < 1 or server_round in limits or not isfinite(limit):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"stop-beyond = {text!r}: {pair!r} is no round with its limit; write ROUND: VALUE, ROUND: VALUE with "
                "rounds from 1 on, each of them once, such as 5: 0.31, 10: 0.27"
            ) from None
        limits[server_round] = limit
    return limits


def written_limits(limits: Mapping[int, float]) -> str:
    """The text that :func:`read_limits` reads as these limits."""
    return ", ".join(f"{server_round}: {limit!r}" for server_round, limit in limits.items())


def held_out_of(run: RunConfig) -> HeldOut:
    """The nodes that the key ``held-out-nodes`` names.

    Raises
    ------
    ValueError
        A number is no share above 0 and below 1, or all of ``num-nodes`` are held out.
    """
    text = run.held_out_nodes.strip()
    try:
        share = float(text or 0)
    except ValueError:
        held_out = HeldOut(keys=tuple(dict.fromkeys(split_names(text))), seed=run.seed)
        count = len(held_out.keys)
    else:
        if text and not 0 < share < 1:
            raise ValueError(
                f"held-out-nodes = {text!r}: a number must be a share above 0 and below 1, such as 0.2; a single key "
                f"that is a number needs a comma ({text},)"
            )
        held_out, count = HeldOut(share, seed=run.seed), rounded_share(share, run.num_nodes)
    if count >= run.num_nodes:
        raise ValueError(
            f"held-out-nodes = {text!r}: holds out {count} of num-nodes = {run.num_nodes}; leave at least one to train"
        )
    return held_out


def robust_aggregation(run: RunConfig) -> RobustAggregation | None:
    """The strategy's part that the key ``aggregation`` names, ``None`` for the mean."""
    fraction = run.byzantine_fraction
    aggregations = {
        "median": Median(),
        "trimmed-mean": TrimmedMean(fraction),
        "krum": Krum(fraction),
        "multi-krum": MultiKrum(fraction),
    }
    return aggregations.get(run.aggregation)


def secure_aggregation_of(run: RunConfig) -> SecureAggregation | None:
    """The strategy's part that the keys ``secure-aggregation...`` describe, ``None`` without it.

    Raises
    ------
    ValueError
        A parameter is out of range, or the sum over the nodes that train does not fit.
    """
    if not run.secure_aggregation:
        return None
    noised = run.dp == "distributed"
    part = SecureAggregation(
        run.secure_aggregation_neighbours,
        run.secure_aggregation_threshold,
        run.dp_clip if noised else run.secure_aggregation_clip,
        run.secure_aggregation_bits,
        max(run.max_examples, 1) if run.weighting == "num-examples" else 1,
        run.secure_aggregation_buffer_clip,
        run.dp_noise if noised else 0.0,
        read_largest(run.secure_aggregation_metrics),
        evaluate=True,  # nodes with their own data withhold what they measure (fedapps.app.disclosure)
    )
    part.plan(max(3, run.pace.closing.asked(run.training_nodes)))
    return part


def read_largest(text: str) -> dict[str, float]:
    """Read the key ``secure-aggregation-metrics``, such as ``loss: 10, accuracy: 1``.

    Raises
    ------
    ValueError
        The text has another form, or a value is no number above 0.
    """
    largest: dict[str, float] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = map(str.strip, pair.rpartition(":"))
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not name or name in largest or not (isfinite(number) and number > 0):
            raise ValueError(
                f"secure-aggregation-metrics = {text!r}: {pair!r} must be a metric, a colon and a number above 0, each "
                "metric once, such as loss: 10, accuracy: 1"
            )
        largest[name] = number
    return largest


def compression_of(run: RunConfig) -> Compression | None:
    """The strategy's part that the key ``compression`` names, ``None`` without compression."""
    return None if run.compression == "none" else compression_by_name(run.compression, run.compression_share)
