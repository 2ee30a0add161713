"""CPU time of a training step of the text task's BiLSTM, on padded and on packed texts.

Both train the same model on the same batches of one node of the recipe ``fedvocab-small``, which shares its embedding
as in FedAvg. The two ways alternate, batch by batch. A new process measures the memory of all steps.

With the recipe of a pretrained encoder, it measures the time of a step, and the memory of the steps above data and
model, for each part of the encoder that a node can train.

    python -m benchmarks.text_step --data-dir /data/agnews --batches 20
    python -m benchmarks.text_step --data-dir /data/agnews --recipe fedvocab-minilm-agnews --set text.model=/data/minilm
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from fedapps.tasks.base import Batch, Task
from fedapps.tasks.text.networks import LastStates
from torch import Tensor

from fedapps.base.seeding import torch_seed
from fedapps.comparison.matrix import assignments
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import Value, read_recipe

from .commands import new_parser, run, show_methods
from .sides import compare, peak_megabytes, show


class _Packed(LastStates):
    def padded(self, inputs: Tensor, length: Tensor) -> Tensor:
        return self.packed(inputs, length)


PADDED, PACKED = "padded", "packed"
_KINDS = {PADDED: LastStates, PACKED: _Packed}
_UPPER: Mapping[str, Value] = {"text.frozen-layers": 4, "text.frozen-embedding": True, "text.cached-states": True}
#: What a node trains of a pretrained encoder of six layers: settings by name.
_PARTS: Mapping[str, Mapping[str, Value]] = {
    "whole": {}, "LoRA": {"text.adapter": "lora"}, "upper two layers": _UPPER,
    "LoRA of the upper two": {**_UPPER, "text.adapter": "lora"},
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = new_parser("text_step", __doc__)
    parser.add_argument("--data-dir", required=True, help="folder of AG News")
    parser.add_argument("--recipe", default="fedvocab-small", help="recipe of the model (default fedvocab-small)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the recipe")
    parser.add_argument("--batches", type=int, default=20, help="number of batches (default 20)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    recipe = read_recipe(
        Path(options.recipe),
        {"data-dir": options.data_dir, "text.dataset": "agnews", **assignments(options.set)},
    )
    if parse(recipe).task.options.recurrent:
        _show_kinds(options)
    else:
        _show_parts(recipe, options.batches, options.json)


def _show_parts(recipe: Mapping[str, Value], batches: int, path: str) -> None:
    """Measure each part of a pretrained encoder; append the results to the file ``path``, unless it is empty."""
    measured: dict[str, dict[str, list[Any]]] = {}  # no megabytes but on Linux
    for name, settings in _PARTS.items():
        prepare = partial(_part, {**recipe, "methods": "fedavg", **settings}, batches)
        measured[name] = {"step_seconds": [median(prepare()())], "megabytes": [peak_megabytes(prepare)]}
    show_methods(measured, path)


def _part(recipe: Mapping[str, Value], batches: int) -> Callable[[], list[float]]:
    """The steps, to be taken, of a model with these settings."""
    torch.set_num_threads(1)
    config = parse(recipe)
    data = config.task.load_node(Path(config.run.data_dir), 0, config.run.num_nodes)
    with torch_seed(0, "benchmark"):
        model = config.task.build_model_for(data)
        next(config.task.training_batches(model, data, 1))  # computes the states above frozen layers
    return partial(_steps_of, config.task, data, model, config.run.training.batch_size, batches)


def _steps_of(task: Task, data: Any, model: torch.nn.Module, batch_size: int, count: int) -> list[float]:
    """CPU seconds of each step but the first."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    with torch_seed(0, "benchmark"):
        batches = islice(task.training_batches(model, data, batch_size), count + 1)
        return [_step(task, model, optimizer, batch) for batch in batches][1:]


def _show_kinds(options: argparse.Namespace) -> None:
    text = (options.data_dir, options.batches)
    peaks = {name: peak_megabytes(partial(_work, *text, (name,))) for name in _KINDS}
    seconds = _work(*text, tuple(_KINDS))()
    setup = "fedvocab-small on agnews, Adam, CPU time; a pair is a batch"
    show(compare("training step [s]", seconds, PADDED, setup, peaks), options.json)


def _work(data_dir: str, batches: int, kinds: Sequence[str]) -> Callable[[], dict[str, list[float]]]:
    """The steps, to be taken, with the kinds of encoder in turn on each batch."""
    torch.set_num_threads(1)
    config = parse(read_recipe(Path("fedvocab-small"), {"data-dir": data_dir, "text.dataset": "agnews"}))
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
