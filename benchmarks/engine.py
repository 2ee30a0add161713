"""Cost of a client in one process: ``BaseStrategy``, Flower's ``FedAvg``, pfl-research and a plain loop.

All sides train the same torch model on the same batch, with one optimizer step per client, and average the results. The
two strategies run on the in-process grid with a client that follows Flower's template; pfl-research runs its own
backend, in a process of an environment that is built on first use. The first round of each run is not measured. Times
are CPU times of the process, so that other programs disturb them less. A separate run measures memory.

    python -m benchmarks.engine --clients 1000 --widths 100 --pairs 5
    python -m benchmarks.engine --clients 100 --widths 2530 --pairs 3     # 6.4 M parameters
    python -m benchmarks.engine --skip-pfl                                # without a network
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from fedapps.sim.flower_internals import direct_arrays, flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, Profile, RoundStep, Sampler
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from .pfl import pfl_python, pfl_side
from .sides import Row, alternate, compare, peak_megabytes, show

BATCH = 10
OURS, FLOWER, PFL, LOOP = "BaseStrategy", "Flower's FedAvg", "pfl-research", "plain loop"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if pfl-research cannot be installed or run, else 0."""
    options = parser().parse_args(arguments)
    _settle()
    try:
        python = None if options.skip_pfl else pfl_python()
        for width in options.widths:
            show(_rows(width, options.clients, options.pairs, options.goal, python), options.json)
    except RuntimeError as error:
        print(f"engine: {error}\nAdd --skip-pfl to measure the other sides.", file=sys.stderr)
        return 2
    return 0


def _rows(width: int, clients: int, pairs: int, goal: str, python: Path | None) -> list[Row]:
    """The rows of one model; ``python`` is the interpreter with pfl-research, if it is measured."""
    model, batch = nn.Linear(width, width), torch.randn(BATCH, width)
    sides: dict[str, Callable[[], float]] = {
        OURS: partial(_strategy, _ours, model, batch, clients),
        FLOWER: partial(_strategy, _flower, model, batch, clients),
        LOOP: partial(_loop, model, batch, clients),
    }
    setup = f"Linear {width}x{width}, batch {BATCH}, one SGD step, {clients} clients, CPU time"
    with ExitStack() as stack:
        if python is not None:  # before all others, because it may fail
            pfl = stack.enter_context(pfl_side(python, width, clients, BATCH))
            pfl.ask("time")  # the first round, which is not measured
        peaks = {side: peak_megabytes(partial(_work, side, width, clients)) for side in sides}
        if python is not None:
            with pfl_side(python, width, clients, BATCH) as fresh:
                peaks[PFL] = fresh.ask("memory") if peaks[LOOP] is not None else None
            sides[PFL] = partial(pfl.ask, "time")
        measured = alternate(sides, pairs)
    over = {
        side: [t - loop for t, loop in zip(measured[side], measured[LOOP], strict=True)]
        for side in sides
        if side != LOOP
    }
    return [
        *compare(f"client, {width}x{width} [ms]", measured, OURS, goal, setup, peaks),
        *compare(f"beyond the loop, {width}x{width} [ms]", over, OURS, goal, setup, peaks),
    ]


def _work(side: str, width: int, clients: int) -> Callable[[], float]:
    """The work of a side in a new process, for its peak memory."""
    _settle()
    model, batch = nn.Linear(width, width), torch.randn(BATCH, width)
    if side == LOOP:
        return partial(_loop, model, batch, clients)
    return partial(_strategy, _ours if side == OURS else _flower, model, batch, clients)


def _settle() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # a line for every client, which sends no profile
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # the first optimizer of a process imports torch's compiler


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000, help="clients per round (default 1000)")
    parser.add_argument("--widths", type=int, nargs="+", default=[100], help="widths of the model (default 100)")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--goal", default="", help="shown in the table")
    parser.add_argument("--skip-pfl", action="store_true", help="leave pfl-research out, which needs a network once")
    parser.add_argument("--json", default="", help="append the rows to this file, as JSON lines")
    return parser


def train_step(model: nn.Module, batch: torch.Tensor) -> None:
    """One SGD step on the reconstruction of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    ((model(batch) - batch) ** 2).mean().backward()
    optimizer.step()


def template_client(model: nn.Module, batch: torch.Tensor) -> ClientApp:
    """A ClientApp in the form of Flower's template for torch."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        train_step(model, batch)
        metrics = MetricRecord({"num-examples": BATCH})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def _ours() -> Strategy:
    return BaseStrategy(evaluate_sampler=_Nobody())


def _flower() -> Strategy:
    return FedAvg(fraction_evaluate=0.0, min_available_nodes=1, weighted_by_key="num-examples")


class _Nobody(Sampler):
    """Samples no node."""

    random_size: ClassVar[bool] = True

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        return []


def _strategy(make: Callable[[], Strategy], model: nn.Linear, batch: torch.Tensor, clients: int) -> float:
    """Milliseconds per client in the second of two rounds."""
    strategy: Any = make()  # whose methods are replaced
    marks: list[float] = []
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def configured(*arguments: Any) -> Any:
        marks.append(time.process_time())
        return configure(*arguments)

    def aggregated(*arguments: Any) -> Any:
        result = aggregate(*arguments)
        marks.append(time.process_time())
        return result

    strategy.configure_train, strategy.aggregate_train = configured, aggregated
    grid = InProcessGrid(template_client(model, batch), [{}] * clients, {}, errors="reply")
    with flower_identity(), direct_arrays():
        strategy.start(grid, ArrayRecord(deepcopy(model).state_dict()), num_rounds=2)
    return (marks[3] - marks[2]) * 1000 / clients


def _loop(model: nn.Linear, batch: torch.Tensor, clients: int) -> float:
    """Milliseconds per client of a loop that does the same work on tensors."""
    height, width = model.weight.shape
    shared = {name: tensor.clone() for name, tensor in nn.Linear(width, height).state_dict().items()}
    begun = time.process_time()
    mean = {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
    for _ in range(clients):
        model.load_state_dict(shared)
        train_step(model, batch)
        for name, tensor in model.state_dict().items():
            mean[name].add_(tensor, alpha=1 / clients)
    return (time.process_time() - begun) * 1000 / clients


if __name__ == "__main__":
    sys.exit(main())
