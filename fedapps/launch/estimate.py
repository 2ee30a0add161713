"""What a simulation needs, from a few timed steps of its first node: parameters, bytes, seconds, memory, disk."""

import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from fedapps.base.processes import usable_cores
from fedapps.base.report.numbers import format_bytes, format_duration
from fedapps.base.report.tables import text_table
from fedapps.clients.data import cached_load
from fedapps.config.parsing import Config
from fedapps.runs.checkpoints import KEPT_SNAPSHOTS

from .dry_run import DryRun
from .inputs import check_data

_SECONDS, _MOST_STEPS = 0.5, 200
_SHORT, _SLOWER = 20.0, 1.3
_HEAD = ("method", "parameters shared", "down", "up", "train", "evaluate", "run", "disk")


@dataclass(frozen=True)
class Estimate:
    """What one method of a run needs.

    Attributes
    ----------
    dry_run : DryRun
        Of the first node.
    train_seconds, run_seconds : float
        Of a training message to one node, and of all rounds with all nodes one after another.
    disk_bytes : int
        Of the server's checkpoints and the private state of all nodes.
    """

    dry_run: DryRun
    train_seconds: float
    run_seconds: float
    disk_bytes: int

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
        everyone = 1 if method.pools_data else run.num_nodes
        training = ceil(run.fraction_train * everyone)
        evaluating = ceil(run.fraction_evaluate * everyone) * ceil(run.rounds / run.evaluate_every)
        seconds = run.rounds * training * train + evaluating * dry.evaluate_seconds
        nodes = everyone * dry.bytes_to_keep(task, method, config.num_stages)
        snapshots = (KEPT_SNAPSHOTS + bool(run.track_metric)) * dry.shared_bytes
        return cls(dry, train, seconds, snapshots + nodes)

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


def _one_step(seconds: Sequence[float]) -> int:
    return 1


def inline_advice(config: Config, seconds: float) -> str:
    """That a run would take less time in one process; empty unless it is less than 1 / 1.3 of what it took in Ray.

    Parameters
    ----------
    config : Config
        Of a run that has finished.
    seconds : float
        > 0, what the run took in Ray. A run of less than 20 s is not looked at.
    """
    if seconds < _SHORT:
        return ""
    with tempfile.TemporaryDirectory(prefix="fedapps-dry-run-") as folder:
        try:
            inline = sum(Estimate.of(config, label, Path(folder)).run_seconds for label in config.methods)
        except ValueError:  # the first node does not train alone
            return ""
    if inline * _SLOWER >= seconds:
        return ""
    in_ray, in_process = format_duration(seconds), format_duration(inline)
    return (
        f"in one process, all rounds take about {in_process}; in Ray they took {in_ray}, because messages take longer "
        "than training. Add --engine inline"
    )


def estimate_text(config: Config) -> str:
    """A table with a row per method, and the memory of this process.

    Raises
    ------
    ValueError
        If data are missing or invalid, or a method cannot train.
    """
    check_data(config)
    with tempfile.TemporaryDirectory(prefix="fedapps-dry-run-") as folder:
        rows = [Estimate.of(config, label, Path(folder)).row for label in config.methods]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    cores = usable_cores()
    return "\n".join(
        [
            "one message to one node and back (down, up, train, evaluate), and all rounds in one process:",
            text_table(_HEAD, rows),
            f"memory: peak of {format_bytes(peak)} with one node; Ray needs as much for each of {cores} cores",
            "times are those of the first node; nodes with more data take longer",
        ]
    )
