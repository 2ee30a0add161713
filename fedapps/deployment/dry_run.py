"""Dry run of a method: one round with one node and one training step, in this process."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message

from fedapps.app.client_app import app
from fedapps.app.errors import SEND_ERRORS
from fedapps.app.round_config import evaluate_config, train_config
from fedapps.app.server_app import initial_model, strategy_for
from fedapps.clients.kept_models import CURRENT, KEEP_MODEL, KEPT_MODELS, KeptModels
from fedapps.clients.state import DiskState
from fedapps.config.parsing import Config
from fedapps.methods.base import Method
from fedapps.report.formats import format_bytes
from fedapps.runs.checkpoints import KEPT_SNAPSHOTS
from fedapps.sim.flower_internals import flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import RoundReport, TooFewRepliesError
from fedapps.tasks.base import NodeData, Task

#: Versions of its private arrays that a node stores: one for each snapshot of the server, the newest, and the one that
#: is being written.
KEPT_VERSIONS = KEPT_SNAPSHOTS + 2
_LABEL = "check"
#: Only evaluate: do not personalise the model or collect data before the evaluation.
_EVALUATION = {"personalise": False, "collect": False, "final": False}


@dataclass
class DryRun:
    """The result of one dry run.

    Attributes
    ----------
    method : str
        Name of the method.
    data : NodeData
        The node's data.
    lines : list of str
        Measured times and message sizes, to print.
    problems : list of str
        Reasons why training or evaluation failed.
    version_bytes : int
        Size on disk of one version of the node's private arrays.
    model_bytes : int
        Size on disk of the model that the node keeps for other programs; 0 without ``keep-model``.
    """

    method: str
    data: NodeData
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    version_bytes: int = 0
    model_bytes: int = 0

    @classmethod
    def of(
        cls, config: Config, method: str, data: NodeData, data_dir: Path, state: Path, keys: Mapping[str, str | bool]
    ) -> "DryRun":
        """Dry-run a method.

        Parameters
        ----------
        config : Config
            The run config.
        method : str
            Label of the method.
        data : NodeData
            The node's data, loaded from ``data_dir``.
        data_dir : Path
            Folder of the node's data.
        state : Path
            Scratch folder for the node's private state.
        keys : mapping
            The other keys of the node config.
        """
        one_step = replace(config.run.training, steps=1)
        run = replace(config.run, num_nodes=1, min_replies=1, training=one_step, sampling="fixed", held_out_nodes="")
        alone = replace(config, run=run)
        seconds: dict[str, float] = {}
        reports: list[RoundReport] = []
        result = cls(method, data)
        strategy, initial = strategy_for(alone, method, initial_model(config, method))
        node_config = {"data-dir": str(data_dir), "state-dir": str(state), SEND_ERRORS: True, **keys}
        grid = InProcessGrid(_Timed(seconds), [node_config], config.flat(), errors="reply")  # type: ignore[arg-type]
        evaluation = ConfigRecord({**evaluate_config(alone, method, _LABEL, 1), **_EVALUATION})
        try:
            with flower_identity(), _quiet():
                strategy.start(
                    grid,
                    initial,
                    num_rounds=1,
                    train_config=train_config(alone, method, _LABEL, 1),
                    evaluate_config=evaluation,
                    on_round=reports.append,
                )
        except (TooFewRepliesError, ValueError) as error:
            result.problems.append(f"{method}: {error}")
            return result
        (report,) = reports
        result.problems += [f"{method}: {refusal.phase} failed: {refusal.reason}" for refusal in report.refused]
        versions = DiskState.of(state, _LABEL, method).folder.rglob("round-*")
        result.version_bytes = sum(path.stat().st_size for path in versions if path.is_file())
        if keys.get(KEEP_MODEL):
            result._check_kept(KeptModels.of(state, alone.run.name or _LABEL, method, data.key))
        training, count = config.run.training, data.count("train")
        examples = min(training.batch_size, count)
        steps = training.steps or training.epochs * ceil(count / training.batch_size)
        result.lines.append(
            f"{method}: one step of {examples} examples took {seconds['train']:.2f} s (steps per round: {steps}), "
            f"the evaluation {seconds.get('evaluate', 0):.2f} s; training messages per round: "
            f"{format_bytes(report.train_bytes_down)} received, {format_bytes(report.train_bytes_up)} sent"
        )
        return result

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


class _Timed:
    """The ClientApp; measures how many seconds each message type takes."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def __call__(self, message: Message, context: Context) -> Message:
        begun = time.monotonic()
        try:
            return app(message, context)
        finally:
            self.seconds[message.metadata.message_type] = time.monotonic() - begun


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
