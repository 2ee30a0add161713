"""Cost of a client in one process: ``BaseStrategy``, Flower's ``FedAvg`` and a plain loop.

All sides train the same torch model on the same batch, with one optimizer step per client, and average the results. The
two strategies run on the in-process grid with a client that follows Flower's template. The first round of each run is
not measured. Times are CPU times of the process, so that other programs disturb them less.

    python -m benchmarks.engine --clients 1000 --widths 100 --pairs 5
    python -m benchmarks.engine --clients 100 --widths 2530 --pairs 3     # 6.4 M parameters
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from sim.direct_arrays import direct_arrays
from sim.inprocess import InProcessGrid, flower_identity
from strategies.base import BaseStrategy
from strategies.samplers import UniformFraction

from .sides import alternate, compare, show

BATCH = 10
OURS, FLOWER, LOOP = "BaseStrategy", "Flower's FedAvg", "plain loop"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # the first optimizer of a process imports torch's compiler
    for width in given.widths:
        model, batch = nn.Linear(width, width), torch.randn(BATCH, width)
        sides = {
            OURS: partial(_strategy, _ours, model, batch, given.clients),
            FLOWER: partial(_strategy, _flower, model, batch, given.clients),
            LOOP: partial(_loop, model, batch, given.clients),
        }
        found = alternate(sides, given.pairs)
        setup = f"Linear {width}x{width}, batch {BATCH}, one SGD step, {given.clients} clients, CPU time"
        rows = compare(f"client, {width}x{width} [ms]", found, OURS, "", setup)
        over = {side: [t - loop for t, loop in zip(found[side], found[LOOP], strict=True)] for side in (OURS, FLOWER)}
        rows += compare(f"beyond the loop, {width}x{width} [ms]", over, OURS, "", setup)
        show(rows, given.json)
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000, help="clients per round (default 1000)")
    parser.add_argument("--widths", type=int, nargs="+", default=[100], help="widths of the model (default 100)")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side (default 5)")
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
    return BaseStrategy(evaluate_sampler=UniformFraction(0.0))


def _flower() -> Strategy:
    return FedAvg(fraction_evaluate=0.0, min_available_nodes=1, weighted_by_key="num-examples")


def _strategy(make: Callable[[], Strategy], model: nn.Linear, batch: torch.Tensor, clients: int) -> float:
    """Milliseconds per client in the second of two rounds."""
    strategy = make()
    marks: list[float] = []
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def configured(*given: Any) -> Any:
        marks.append(time.process_time())
        return configure(*given)

    def aggregated(*given: Any) -> Any:
        result = aggregate(*given)
        marks.append(time.process_time())
        return result

    strategy.configure_train, strategy.aggregate_train = configured, aggregated  # type: ignore[method-assign, assignment]
    grid = InProcessGrid(template_client(model, batch), [{}] * clients, {}, errors="reply")
    with flower_identity(), direct_arrays():
        strategy.start(grid, ArrayRecord(nn.Linear(model.in_features, model.out_features).state_dict()), num_rounds=2)
    return (marks[3] - marks[2]) * 1000 / clients


def _loop(model: nn.Linear, batch: torch.Tensor, clients: int) -> float:
    """Milliseconds per client of a loop that does the same work on tensors."""
    shared = {
        name: tensor.clone() for name, tensor in nn.Linear(model.in_features, model.out_features).state_dict().items()
    }
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
