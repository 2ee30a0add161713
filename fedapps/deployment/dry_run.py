"""One round of one method with a single step and a single node, in this process."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message

from fedapps.app.client_app import app
from fedapps.app.round_config import evaluate_config, train_config
from fedapps.app.server_app import initial_arrays
from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import Config
from fedapps.methods.base import Method
from fedapps.runs.checkpoints import KEPT_SNAPSHOTS
from sim.inprocess import InProcessGrid, flower_identity
from strategies.round_records import RoundReport, TooFewRepliesError
from tasks.base import NodeData, Task

#: Versions of its private arrays that a node keeps: those that the server may go back to, the newest, and one that is
#: being written.
KEPT_VERSIONS = KEPT_SNAPSHOTS + 2
_LABEL = "check"
#: An evaluation alone, where a run would train a copy of the model first, or gather data.
_EVALUATION = {"personalise": False, "collect": False, "final": False}


@dataclass
class Trial:
    """How the round went: ``lines`` to read, ``problems``, and the bytes that one version of its state takes."""

    method: str
    data: NodeData
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kept: int = 0

    @classmethod
    def of(cls, config: Config, method: str, data: NodeData, data_dir: Path, state: Path) -> "Trial":
        """Run it on the node's ``data``, which lie in ``data_dir``, with its private state in the folder ``state``."""
        alone = replace(config, run=replace(config.run, num_nodes=1, min_replies=1, steps=1))
        run = alone.run
        seconds: dict[str, float] = {}
        reports: list[RoundReport] = []
        trial = cls(method, data)
        initial = initial_arrays(config, method)
        strategy = build_strategy(alone, method, initial.keys())
        node_config = {"data-dir": str(data_dir), "state-dir": str(state)}
        grid = InProcessGrid(_Timed(seconds), [node_config], config.flat(), errors="reply")  # type: ignore[arg-type]
        orders = evaluate_config(alone, method, _LABEL, 1)
        try:
            with flower_identity(), _quiet():
                strategy.start(
                    grid,
                    initial,
                    num_rounds=1,
                    train_config=train_config(alone, method, _LABEL, 1),
                    evaluate_config=ConfigRecord({**orders, **_EVALUATION}),
                    on_round=reports.append,
                )
        except (TooFewRepliesError, ValueError) as error:
            trial.problems.append(f"{method}: {error}")
            return trial
        (report,) = reports
        trial.problems += [f"{method}: {refusal.phase} failed: {refusal.reason}" for refusal in report.refused]
        trial.kept = sum(path.stat().st_size for path in (state / _LABEL / method).rglob("round-*") if path.is_file())
        examples = min(run.batch_size, data.count("train"))
        steps = config.run.steps or config.run.epochs * ceil(data.count("train") / run.batch_size)
        trial.lines.append(
            f"{method}: trained a step of {examples} examples in {seconds['train']:.2f} s (a round has {steps}), "
            f"evaluated in {seconds.get('evaluate', 0):.2f} s; to train, it receives "
            f"{in_words(report.train_bytes_down)} a round and sends {in_words(report.train_bytes_up)}"
        )
        return trial

    def bytes_to_keep(self, task: Task, method: Method, num_stages: int) -> int:
        """Bytes on disk at most: the versions of the private arrays, and what the local parts keep beside them.

        Data that the node collects is not counted.
        """
        versions = self.kept * KEPT_VERSIONS
        model = sum(int(t.nbytes) for t in task.build_model_for(self.data).state_dict().values())
        return versions + sum(part.bytes_on_disk(model, versions, num_stages) for part in method.local_parts())


class _Timed:
    """The ClientApp, with the seconds that each type of message took."""

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
    """Without Flower's log: what is wrong is told at the end."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def in_words(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
