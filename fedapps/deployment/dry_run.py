"""Dry run of a method: one round with one node and one training step, in this process."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message

from fedapps.app.client_app import app
from fedapps.app.round_config import evaluate_orders, train_orders
from fedapps.app.server_app import initial_arrays
from fedapps.app.strategies import build_strategy
from fedapps.catalogue import METHODS
from fedapps.config.parsing import Config
from fedapps.report.formats import format_bytes
from fedapps.runs.checkpoints import KEPT_SNAPSHOTS
from sim.inprocess import InProcessGrid, flower_identity
from strategies.round_records import RoundReport, TooFewRepliesError
from tasks.base import NodeData, Task

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
    """

    method: str
    data: NodeData
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    version_bytes: int = 0

    @classmethod
    def of(cls, config: Config, method: str, data: NodeData, data_dir: Path, state: Path) -> "DryRun":
        """Dry-run a method.

        Parameters
        ----------
        config : Config
            The run config.
        method : str
            Name of the method.
        data : NodeData
            The node's data, loaded from ``data_dir``.
        data_dir : Path
            Folder of the node's data.
        state : Path
            Scratch folder for the node's private state.
        """
        run = replace(config.run, num_nodes=1, min_replies=1, steps=1, adapt_epochs=min(config.run.adapt_epochs, 1))
        seconds: dict[str, float] = {}
        reports: list[RoundReport] = []
        result = cls(method, data)
        initial = initial_arrays(config, method)
        strategy = build_strategy(run, method, initial.keys(), config.num_stages)
        node_config = {"data-dir": str(data_dir), "state-dir": str(state)}
        grid = InProcessGrid(_Timed(seconds), [node_config], config.flat(), errors="reply")  # type: ignore[arg-type]
        orders = evaluate_orders(run, method, _LABEL, 1, config.num_stages)
        try:
            with flower_identity(), _quiet():
                strategy.start(
                    grid,
                    initial,
                    num_rounds=1,
                    train_config=train_orders(run, method, _LABEL, 1, config.num_stages),
                    evaluate_config=ConfigRecord({**orders, **_EVALUATION}),
                    on_round=reports.append,
                )
        except (TooFewRepliesError, ValueError) as error:
            result.problems.append(f"{method}: {error}")
            return result
        (report,) = reports
        result.problems += [f"{method}: {refusal.phase} failed: {refusal.reason}" for refusal in report.refused]
        versions = (state / _LABEL / method).rglob("round-*")
        result.version_bytes = sum(path.stat().st_size for path in versions if path.is_file())
        examples = min(run.batch_size, data.count("train"))
        steps = config.run.steps or config.run.epochs * ceil(data.count("train") / run.batch_size)
        result.lines.append(
            f"{method}: one step of {examples} examples took {seconds['train']:.2f} s (steps per round: {steps}), "
            f"the evaluation {seconds.get('evaluate', 0):.2f} s; training messages per round: "
            f"{format_bytes(report.train_bytes_down)} received, {format_bytes(report.train_bytes_up)} sent"
        )
        return result

    def bytes_to_keep(self, task: Task, num_stages: int) -> int:
        """Upper bound in bytes of what the node stores: its private arrays and, if any, its personalised model.

        Methods with memory store the same amount for each earlier stage. Collected data are not counted.
        """
        versions = self.version_bytes * KEPT_VERSIONS * (num_stages if METHODS[self.method].memory != "nothing" else 1)
        if not METHODS[self.method].personalise:
            return versions
        model = task.build_model_for(self.data).state_dict().values()
        return versions + sum(int(tensor.nbytes) for tensor in model)


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
