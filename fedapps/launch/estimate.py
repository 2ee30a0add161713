"""What a simulation needs, from a few timed steps of its first node: parameters, bytes, seconds, memory, disk.

All nodes are taken to be as fast as the first one. How many steps each of them takes follows from its examples.
"""

import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil, prod
from pathlib import Path
from statistics import fmean

from flwr.app import ConfigRecord, Context, Message

from fedapps.app.client_app import app
from fedapps.app.round_config import RoundConfigs
from fedapps.app.server_app import initial_model, strategy_for
from fedapps.base.options import option_values
from fedapps.base.processes import usable_cores
from fedapps.base.report.numbers import format_bytes, format_duration
from fedapps.base.report.tables import text_table
from fedapps.clients.data import DataSource, cached_load
from fedapps.clients.kept_models import CURRENT, KEPT_MODELS, KeptModels
from fedapps.clients.rules import KEEP_MODEL, PRIVACY_KEYS, SEND_ERRORS
from fedapps.clients.state import DiskState
from fedapps.config.clock import Pace
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.methods.base import Method
from fedapps.methods.baselines import OneNode
from fedapps.runs.checkpoints import KEPT_SNAPSHOTS
from fedapps.sim.flower_internals import flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.sim.ray_cluster import RAY_ADDRESS
from fedapps.strategies import Each, RoundReport, TooFewRepliesError
from fedapps.strategies.samplers import rounded_share
from fedapps.tasks.base import NodeData, Task

from .inputs import check_data

#: Versions of its private arrays that a node stores: one for each snapshot of the server, the newest, and the one that
#: is being written.
KEPT_VERSIONS = KEPT_SNAPSHOTS + 2
_LABEL = "check"


@dataclass
class DryRun:
    """The result of one dry run.

    Attributes
    ----------
    method : str
        Name of the method.
    data : NodeData
        The node's data.
    problems : list of str
        Reasons why training or evaluation failed.
    steps : int
        The steps that the node takes in a round of the run.
    train_seconds : list of float
        Of the training message of each dry round.
    evaluate_seconds : float
        Of the last evaluation message.
    bytes_down, bytes_up : int
        Of a training message and its reply.
    shared_bytes, shared_parameters : int
        Size and number of the shared parameters.
    version_bytes : int
        Size on disk of one version of the node's private arrays.
    model_bytes : int
        Size on disk of the model that the node keeps for other programs; 0 without ``keep-model``.
    """

    method: str
    data: NodeData
    problems: list[str] = field(default_factory=list)
    steps: int = 0
    train_seconds: list[float] = field(default_factory=list)
    evaluate_seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    shared_bytes: int = 0
    shared_parameters: int = 0
    version_bytes: int = 0
    model_bytes: int = 0

    @classmethod
    def of(
        cls,
        config: Config,
        method: str,
        data: NodeData,
        node_config: Mapping[str, str | int | bool],
        state: Path,
        steps_of: Sequence[Callable[[Sequence[float]], int]] = (lambda seconds: 1,),
    ) -> "DryRun":
        """Dry-run a method.

        Parameters
        ----------
        config : Config
            The run config.
        method : str
            Label of the method.
        data : NodeData
            The node's data.
        node_config : mapping
            Where the data are: ``data-dir``, or ``partition-id`` and ``num-partitions``; and other keys.
        state : Path
            Scratch folder for the node's private state.
        steps_of : sequence of functions
            The training steps of each dry round, from the seconds that the earlier ones took.
        """
        # The node of the dry run has no public key, and whether it may join is no matter of its data.
        # One node has no pace to keep, hides among no others, and is compared with none.
        flat = {**config.flat(), "secure-aggregation": False, "aggregation": "mean"}
        if config.run.dp == "distributed":
            flat |= {key: value for key, value in option_values(RunConfig()).items() if key.startswith("dp")}
        many = replace(config.run, pace=Pace(), sampling="fixed", bind_keys=False, held_out_nodes="")
        run = replace(many, num_nodes=1, min_replies=1, secure_aggregation=False, aggregation="mean", dp=flat["dp"])
        keys = {name: value for name, value in config.own_keys.get(method, {}).items() if not hasattr(run.pace, name)}
        alone = replace(config, run=run, own_keys={method: keys})
        seconds: dict[str, list[float]] = {"train": [], "evaluate": []}
        reports: list[RoundReport] = []
        result = cls(method, data)
        strategy, initial = strategy_for(alone, method, initial_model(config, method))
        rules = {key: value for key, value in node_config.items() if key not in PRIVACY_KEYS}
        node = {**rules, "state-dir": str(state), SEND_ERRORS: True, "secagg": "optional"}
        grid = InProcessGrid(_Timed(seconds), [node], flat, errors="reply")  # type: ignore[arg-type]
        configs = RoundConfigs(alone, method, _LABEL)
        planned = configs.train(1)
        evaluation = ConfigRecord({**configs.evaluate(1), "collect": False, "final": False})
        try:
            with flower_identity(), _quiet():
                strategy.start(
                    grid,
                    initial,
                    num_rounds=len(steps_of),
                    evaluate_every=len(steps_of),
                    train_config=lambda r: ConfigRecord({**planned, "steps": steps_of[r - 1](seconds["train"])}),
                    evaluate_config=evaluation,
                    callbacks=[Each(reports.append)],
                )
        except (TooFewRepliesError, ValueError) as error:
            result.problems.append(f"{method}: {error}")
            return result
        report = reports[-1]
        result.problems += [f"{method}: {refusal.phase} failed: {refusal.reason}" for refusal in report.refused]
        versions = DiskState.of(state, _LABEL, method).folder.rglob("round-*")
        result.version_bytes = sum(path.stat().st_size for path in versions if path.is_file())
        if node_config.get(KEEP_MODEL):
            result._check_kept(KeptModels.of(state, alone.run.name or _LABEL, method, data.key))
        result.steps = _steps(planned, data.count("train"))
        result.train_seconds, result.evaluate_seconds = seconds["train"], (seconds["evaluate"] or [0.0])[-1]
        result.bytes_down, result.bytes_up = report.train_bytes_down, report.train_bytes_up
        shared = strategy.share(initial).values()
        result.shared_bytes = sum(len(array.data) for array in shared)
        result.shared_parameters = sum(prod(array.shape) for array in shared)
        return result

    @property
    def line(self) -> str:
        """Measured times and message sizes, to print."""
        return (
            f"{self.method}: the first step took {self.train_seconds[0]:.2f} s (steps per round: {self.steps}), "
            f"the evaluation {self.evaluate_seconds:.2f} s; training messages per round: "
            f"{format_bytes(self.bytes_down)} received, {format_bytes(self.bytes_up)} sent"
        )

    def bytes_to_keep(self, task: Task, method: Method, num_stages: int) -> int:
        """Upper bound in bytes of what the node stores: its private arrays, and what the local parts keep beside them.

        Collected data are not counted.
        """
        versions = self.version_bytes * KEPT_VERSIONS
        model = sum(int(t.nbytes) for t in task.build_model_for(self.data).state_dict().values())
        kept = self.model_bytes * (KEPT_MODELS + 1)  # and the one that is being written
        return kept + versions + sum(part.bytes_on_disk(model, versions, num_stages) for part in method.local_parts())

    def _check_kept(self, models: KeptModels) -> None:
        """Measure the model that the node has kept of the round."""
        newest = models.folder / CURRENT
        self.model_bytes = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        if not newest.exists():
            self.problems.append(
                f"{self.method}: {KEEP_MODEL}: no model was kept: put --state-dir on a file system with symbolic links"
            )


def _steps(planned: ConfigRecord, examples: int) -> int:
    """The optimizer steps of a node with this number of examples, by the config of its message."""
    steps, epochs, batch = (int(planned[key]) for key in ("steps", "epochs", "batch-size"))  # type: ignore[arg-type]
    return steps or epochs * ceil(examples / batch)


class _Timed:
    """The ClientApp; measures how many seconds each message takes, by its type."""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.seconds = seconds

    def __call__(self, message: Message, context: Context) -> Message:
        begun = time.monotonic()
        try:
            return app(message, context)
        finally:
            self.seconds.setdefault(message.metadata.message_type, []).append(time.monotonic() - begun)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Flower's log: the check prints the problems at the end."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


_SECONDS, _MOST_STEPS = 0.5, 200
#: Seconds that Ray takes to start, and that a message in Ray takes longer than one in this process, on a desktop.
_RAY_START, _RAY_MESSAGE = 20.0, 0.1
#: Estimates are rough: Ray must be this many times as fast to be worth its memory.
_SLOWER = 1.3
_HEAD = ("method", "parameters shared", "down", "up", "train", "evaluate", "run", "disk")


@dataclass(frozen=True)
class Estimate:
    """What one method of a run needs.

    Attributes
    ----------
    dry_run : DryRun
        Of the first node.
    train_seconds, run_seconds : float
        Of a training message to the first node, and of all rounds with all nodes one after another.
    disk_bytes : int
        Of the server's checkpoints and the private state of all nodes.
    messages : int
        All training and evaluation messages of the run.
    """

    dry_run: DryRun
    train_seconds: float
    run_seconds: float
    disk_bytes: int
    messages: int

    @classmethod
    def of(cls, config: Config, label: str, state: Path) -> "Estimate":
        """Dry-run a method. Raises ``ValueError`` with the reason if it cannot train or evaluate."""
        run, method = config.run_of(label), config.methods[label]
        task = config.task_of(method)
        node = {"partition-id": 0, "num-partitions": run.num_nodes}
        data = cached_load(run.source(task, node), task, method.pools_data)
        # The first message is slower than all others. The second and the third tell the time of a message from that of
        # a step; the third takes about half a second.
        many = [2]

        def third(seconds: Sequence[float]) -> int:
            many[0] = max(2, min(int(_SECONDS / max(seconds[-1], 1e-6)), _MOST_STEPS))
            return many[0]

        dry = DryRun.of(config, label, data, node, state, (_one_step, _one_step, third))
        if dry.problems:
            raise ValueError("\n".join(dry.problems))
        _, one, several = dry.train_seconds
        step = max(several - one, 0.0) / (many[0] - 1)
        train = one + step * max(dry.steps - 1, 0)
        alone = isinstance(method, OneNode)
        training = run.rounds * (1 if alone else _trained(run))
        evaluating = rounded_share(run.fraction_evaluate, run.participants) * ceil(run.rounds / run.evaluate_every)
        mean = one + step * max((dry.steps if alone else _mean_steps(config, label)) - 1, 0)
        seconds = training * mean + evaluating * dry.evaluate_seconds
        nodes = (1 if alone else run.num_nodes) * dry.bytes_to_keep(task, method, config.num_stages)
        snapshots = (KEPT_SNAPSHOTS + bool(run.track_metric)) * dry.shared_bytes
        return cls(dry, train, seconds, snapshots + nodes, training + evaluating)

    @property
    def row(self) -> list[str]:
        """The cells under ``_HEAD``."""
        dry = self.dry_run
        return [
            dry.method,
            f"{dry.shared_parameters:,}",
            format_bytes(dry.bytes_down),
            format_bytes(dry.bytes_up),
            f"{format_duration(self.train_seconds)} ({dry.steps} steps)",
            format_duration(dry.evaluate_seconds),
            format_duration(self.run_seconds),
            format_bytes(self.disk_bytes),
        ]


def _mean_steps(config: Config, label: str) -> float:
    """The mean number of optimizer steps that a node takes in the first round of a method."""
    run, task = config.run_of(label), config.task_of(config.methods[label])
    planned = RoundConfigs(config, label, _LABEL).train(1)
    nodes = ({"partition-id": index, "num-partitions": run.num_nodes} for index in range(run.num_nodes))
    return fmean(_steps(planned, run.source(task, node).profile(task).num_examples) for node in nodes)


def _trained(run: RunConfig) -> int:
    """The nodes that train in a round; with ``mode = async``, the updates in a step of the server."""
    if run.pace.mode == "async":
        return int(run.pace.asynchronous(run.training_nodes)["buffer"])
    return run.pace.closing.asked(run.training_nodes)


def _one_step(seconds: Sequence[float]) -> int:
    return 1


def inline_seconds(config: Config) -> float:
    """Seconds of all rounds of all methods with all nodes, one after another.

    Raises
    ------
    ValueError
        If the first node does not train alone.
    """
    with tempfile.TemporaryDirectory(prefix="fedapps-dry-run-") as folder:
        return sum(Estimate.of(config, label, Path(folder)).run_seconds for label in config.methods)


def faster_engine(config: Config) -> tuple[str, str]:
    """The engine that takes less time for a simulation, and why.

    Ray is it where the nodes of a round can work at once and there is so much to train that its start and its slower
    messages do not count. A step takes as long as on the first node with the first method, for all nodes and methods.

    Parameters
    ----------
    config : Config
        Of a run whose data can be read.

    Returns
    -------
    tuple of str and str
        "inline" or "ray", and the reason.
    """
    run = config.run
    if address := os.environ.get(RAY_ADDRESS):
        return "ray", f"{RAY_ADDRESS} names the cluster {address}"
    if run.node_batch > 1:
        return "inline", f"node-batch = {run.node_batch} trains nodes at once in one process"
    workers = usable_cores() // run.node_cpus  # as many share the GPUs
    at_work = run.pace.concurrency or run.pace.closing.asked(run.training_nodes)
    at_once = min(workers, at_work, run.in_flight or run.num_nodes)
    if at_once < 2:
        return "inline", "nodes cannot work at once on this machine" if workers < 2 else "nodes work one after another"
    first = next(iter(config.methods))
    with tempfile.TemporaryDirectory(prefix="fedapps-dry-run-") as folder:
        try:
            estimate = Estimate.of(config, first, Path(folder))
        except ValueError:  # the run itself says why, and to which node it happens
            return "inline", "the first node does not train alone"
    inline = len(config.methods) * estimate.run_seconds
    messages = len(config.methods) * estimate.messages
    in_ray = _RAY_START + (inline + messages * _RAY_MESSAGE) / at_once
    times = f"about {format_duration(inline)} in this process, {format_duration(in_ray)} in Ray with {at_once} at once"
    return "ray" if in_ray * _SLOWER < inline else "inline", times


def estimate_text(config: Config) -> str:
    """A table with a row per method, and the memory of this process.

    Raises
    ------
    ValueError
        If data are missing or invalid, or a method cannot train.
    """
    check_data(config, DataSource.outline)
    with tempfile.TemporaryDirectory(prefix="fedapps-dry-run-") as folder:
        rows = [Estimate.of(config, label, Path(folder)).row for label in config.methods]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    cores = usable_cores()
    return "\n".join(
        [
            "one message to one node and back (down, up, train, evaluate), and all rounds in one process:",
            text_table(_HEAD, rows),
            f"memory: peak of {format_bytes(peak)} with one node; Ray needs as much for each of {cores} cores",
            "the message is to the first node; the time of all rounds counts the examples of every node",
        ]
    )
