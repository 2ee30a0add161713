"""CPU time of a training step of the text task's BiLSTM, on packed and on padded texts.

Both train the same model on the same batches of one node of the recipe ``fedvocab-small``, which shares its embedding
as in FedAvg. The two ways alternate, batch by batch.

    python -m benchmarks.text_step --data-dir /data/agnews --dataset agnews --batches 20
"""

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.runs.tables import number, text_table
from sim.seeding import torch_seed
from tasks.base import Batch, Task
from tasks.text.lstm import LastStates


class _Packed(LastStates):
    def padded(self, inputs: Tensor, length: Tensor) -> Tensor:
        return self.packed(inputs, length)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_step", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder of the texts")
    parser.add_argument("--dataset", default="agnews", help="text.dataset (default agnews)")
    parser.add_argument("--batches", type=int, default=20, help="number of batches (default 20)")
    given = parser.parse_args(arguments)
    overrides = {"data-dir": given.data_dir, "text.dataset": given.dataset}
    config = parse(read_recipe(Path("fedvocab-small"), overrides))
    torch.set_num_threads(1)
    seconds = _steps(config.task, Path(given.data_dir), config.run.num_nodes, config.run.batch_size, given.batches)
    packed, padded = (sorted(of_kind) for of_kind in zip(*seconds, strict=True))
    ratios = sorted(one / other for one, other in seconds)
    found = {"packed [s]": packed, "padded [s]": padded, "ratio": ratios}
    rows = [(name, *map(number, (median(values), values[0], values[-1]))) for name, values in found.items()]
    print(text_table(("training step", "median", "least", "most"), rows))
    return 0


def _steps(task: Task, folder: Path, nodes: int, batch_size: int, count: int) -> list[tuple[float, float]]:
    """CPU seconds of a step on packed and on padded texts, for each batch."""
    data = task.load_node(folder, 0, nodes)
    with torch_seed(0, "benchmark"):
        model = task.build_model_for(data)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        batches = list(islice(task.training_batches(model, data, batch_size), count + 1))
        measured = []
        for batch in batches:
            pair = []
            for kind in (_Packed, LastStates):
                model.encoder.__class__ = kind
                pair.append(_step(task, model, optimizer, batch))
            measured.append((pair[0], pair[1]))
    return measured[1:]  # torch prepares its optimizer in the first step


def _step(task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    begin = time.process_time()
    loss = task.loss(model, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
