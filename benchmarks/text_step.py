"""CPU time of a training step of the text task's BiLSTM, on padded and on packed texts.

Both train the same model on the same batches of one node of the recipe ``fedvocab-small``, which shares its embedding
as in FedAvg. The two ways alternate, batch by batch. A new process measures the memory of all steps.

    python -m benchmarks.text_step --data-dir /data/agnews --dataset agnews --batches 20
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fedapps.sim.seeding import torch_seed
from fedapps.tasks.base import Batch, Task
from fedapps.tasks.text.networks import LastStates
from torch import Tensor

from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe

from .sides import compare, peak_megabytes, show


class _Packed(LastStates):
    def padded(self, inputs: Tensor, length: Tensor) -> Tensor:
        return self.packed(inputs, length)


PADDED, PACKED = "padded", "packed"
_KINDS = {PADDED: LastStates, PACKED: _Packed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_step", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder of the texts")
    parser.add_argument("--dataset", default="agnews", help="text.dataset (default agnews)")
    parser.add_argument("--batches", type=int, default=20, help="number of batches (default 20)")
    parser.add_argument("--goal", default="", help="shown in the table")
    parser.add_argument("--json", default="", help="append the row to this file, as JSON lines")
    given = parser.parse_args(arguments)
    text = (given.data_dir, given.dataset, given.batches)
    peaks = {name: peak_megabytes(partial(_work, *text, (name,))) for name in _KINDS}
    seconds = _work(*text, tuple(_KINDS))()
    setup = f"fedvocab-small on {given.dataset}, Adam, CPU time; a pair is a batch"
    show(compare("training step [s]", seconds, PADDED, given.goal, setup, peaks), given.json)
    return 0


def _work(data_dir: str, dataset: str, batches: int, kinds: Sequence[str]) -> Callable[[], dict[str, list[float]]]:
    """The steps, to be taken, with the kinds of encoder in turn on each batch."""
    torch.set_num_threads(1)
    config = parse(read_recipe(Path("fedvocab-small"), {"data-dir": data_dir, "text.dataset": dataset}))
    data = config.task.load_node(Path(data_dir), 0, config.run.num_nodes)
    return partial(_steps, config.task, data, config.run.training.batch_size, batches, kinds)


def _steps(task: Task, data: Any, batch_size: int, count: int, kinds: Sequence[str]) -> dict[str, list[float]]:
    """CPU seconds of a step for each kind of encoder and each batch."""
    with torch_seed(0, "benchmark"):
        model = task.build_model_for(data)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        measured: dict[str, list[float]] = {kind: [] for kind in kinds}
        for batch in islice(task.training_batches(model, data, batch_size), count + 1):
            for kind in kinds:
                model.encoder.__class__ = _KINDS[kind]
                measured[kind].append(_step(task, model, optimizer, batch))
    return {kind: seconds[1:] for kind, seconds in measured.items()}  # torch prepares its optimizer in the first step


def _step(task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    begin = time.process_time()
    loss = task.loss(model, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
