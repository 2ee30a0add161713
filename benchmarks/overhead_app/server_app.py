"""Run Flower's FedAvg or ``BaseStrategy``, and measure each round in the same way for both.

A round lasts from one call of ``evaluate_fn`` to the next; both strategies call it after every evaluation. Each
exchange of messages has three parts: ``nodes``, from sending the messages until the last node has created its reply;
``fetch``, from then until the server has fetched that reply; and ``server``, the rest.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fedapps.sim.flower_internals import ask_again_after
from fedapps.strategies import BaseStrategy, PackedGrid
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; write ``rounds.json`` and ``arrays.npz`` into the folder ``output``."""
    config = context.run_config
    if config["as-fedapps"]:
        ask_again_after()
        grid = PackedGrid(grid)
    nodes = int(config["nodes"])
    strategies: dict[str, Strategy] = {
        "flower": FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes),
        "fedapps": BaseStrategy(min_nodes=nodes, min_replies=nodes),
    }
    stopwatch = Stopwatch(grid)
    result = strategies[str(config["strategy"])].start(
        grid=grid,
        initial_arrays=make_arrays(float(config["megabytes"]), int(config["arrays"])),
        num_rounds=int(config["rounds"]),
        evaluate_fn=stopwatch.end_round,
    )
    if config["output"]:
        output = Path(str(config["output"]))
        measured = {"rounds": [asdict(times) for times in stopwatch.rounds], "peak_megabytes": peak_megabytes()}
        np.savez(output / "arrays.npz", *result.arrays.to_numpy_ndarrays())
        (output / "rounds.json").write_text(json.dumps(measured), encoding="utf-8")


@dataclass
class Round:
    """Duration of one round in seconds, and the parts spent waiting for nodes and fetching replies."""

    seconds: float = 0.0
    nodes: float = 0.0
    fetch: float = 0.0


@dataclass
class Stopwatch:
    """Measures the rounds on a grid by wrapping two of its methods."""

    grid: Grid
    rounds: list[Round] = field(default_factory=list)
    _now: Round = field(default_factory=Round)
    _begun: float = 0.0
    _sent: float = 0.0  # when the last messages were sent
    _made: float = 0.0  # when the last reply was created, by the clock of the node: nodes run on the same machine
    _held: float = 0.0  # when that reply was fetched

    def __post_init__(self) -> None:
        # Flower's strategies also send and fetch through these two methods of the grid.
        self._push, self._pull = self.grid.push_messages, self.grid.pull_messages
        setattr(self.grid, "push_messages", self._push_messages)  # noqa: B010 - a method, to mypy
        setattr(self.grid, "pull_messages", self._pull_messages)  # noqa: B010

    def end_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Use as ``evaluate_fn``, which is called before the first round and after each round."""
        self._end_exchange()
        now = time.time()
        if server_round:
            self._now.seconds = now - self._begun
            self.rounds.append(self._now)
        self._now, self._begun = Round(), now

    def _push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._end_exchange()
        ids = self._push(messages)
        self._sent = self._made = self._held = time.time()
        return ids

    def _pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._pull(message_ids))
        if replies:
            self._made = max(self._made, *(reply.metadata.created_at for reply in replies))
            self._held = time.time()
        return replies

    def _end_exchange(self) -> None:
        self._now.nodes += self._made - self._sent
        self._now.fetch += self._held - self._made
        self._sent = self._made = self._held = 0.0


def make_arrays(megabytes: float, count: int) -> ArrayRecord:
    """``count`` random float32 arrays of equal length, at least 1, with a total size of ``megabytes``."""
    length = max(1, round(megabytes * 1e6 / 4 / count))
    rng = np.random.default_rng(0)
    return ArrayRecord([rng.normal(size=length).astype(np.float32) for _ in range(count)])


def peak_megabytes() -> float:
    """Peak memory of this process. ``ru_maxrss`` is not used, because it is inherited from the parent process."""
    status: dict[str, Any] = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if ":" in line
    )
    return int(status["VmHWM"].split()[0]) * 1024 / 1e6
