"""``python -m fedapps check-node``: try on a machine what a run will ask of it as a node, before it joins.

Each method of the recipe trains one step and evaluates once, as in a round of which this is the only node: the same
ServerApp's orders, the same ClientApp, the same checks of the reply, all in this process.
"""

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clients.data_sources import cached_load
from fedapps.app.node import DEFAULT_STATE, choose_device
from fedapps.app.profile_query import data_source
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.launch import resolve
from tasks.base import DataError, NodeData, Task

from .dry_run import Trial, in_words


def check(recipe: Path, overrides: Mapping[str, Any], data_dir: Path, state_dir: str | None) -> int:
    """Print what the node has and how it fares in the run that ``recipe`` and ``overrides`` describe.

    ``state_dir`` is where it will keep its private state; by default where a node does that is not told. Returns 0 when
    it can join, otherwise 1, with a list of what is wrong. Raises ``ConfigError`` when there can be no such run.
    """
    config = parse(resolve(read_recipe(recipe) | dict(overrides), "runs"))
    report = NodeCheck(config, data_dir.expanduser().absolute(), Path(state_dir or DEFAULT_STATE).expanduser())
    report.look()
    print("\n".join(report.lines))
    if not report.problems:
        print("this node can join")
        return 0
    print(
        f"this node cannot join yet: {len(report.problems)} {'things are' if report.problems[1:] else 'thing is'} wrong"
    )
    for problem in report.problems:
        print("- " + problem.replace("\n", "\n  "))
    return 1


@dataclass
class NodeCheck:
    """What was found on a node: ``lines`` to read, ``problems`` that keep it from joining."""

    config: Config
    data_dir: Path
    state_dir: Path
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Look at data, state folder and device first; try the methods where nothing of this is wrong."""
        usable = self._data(self.config.task)
        self._device()
        place = self._state()
        if self.problems or place is None:
            return
        _warm_up()
        with tempfile.TemporaryDirectory(prefix=".fedapps-check-", dir=place) as state:
            trials = [
                Trial.of(self.config, method, data, self.data_dir, Path(state)) for method, data in usable.items()
            ]
        for trial in trials:
            self.lines += trial.lines
            self.problems += [problem for problem in trial.problems if problem not in self.problems]
        self._memory()
        self._disk(place, trials, {label: self.config.task_of(self.config.methods[label]) for label in usable})

    def _data(self, task: Task) -> dict[str, NodeData]:
        """The node's data as each method sees it."""
        found: dict[str, NodeData] = {}
        for label, method in self.config.methods.items():
            if method.pools_data:
                self._wrong(f"methods: {label} learns from the data of all nodes together: no deployed node has them")
                continue
            try:
                source = data_source(self.config.run, task, {"data-dir": str(self.data_dir)})
                found[label] = cached_load(source, self.config.task_of(method), False)  # where the ClientApp looks
            except (DataError, OSError) as error:
                self._wrong(f"data: {error}")
        for label, data in found.items():
            task_of_node = self.config.task_of(self.config.methods[label])
            sizes = ", ".join(f"{count} {what}" for what, count in task_of_node.sizes(data).items())
            groups = "".join(f", {kind} {label}" for kind, label in data.groups.items())
            self._say(f"data:   node {data.key}: {sizes or 'no examples'}{groups}")
            if not data.count("train"):
                self._wrong(f"data: {self.data_dir} has no training examples: the run would leave this node out")
        return found

    def _device(self) -> None:
        run = self.config.run
        try:
            device = choose_device(run.device)
        except ValueError as error:
            self._wrong(str(error))
            return
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        self._say(f"device: {name}, {run.node_cpus} torch thread{'s'[: run.node_cpus - 1]} (node-cpus)")

    def _state(self) -> Path | None:
        """An existing folder that can be written on the disk of the state folder."""
        whole = self.state_dir.absolute()
        try:
            place = next(folder for folder in (whole, *whole.parents) if folder.exists())
            with tempfile.TemporaryDirectory(prefix=".fedapps-check-", dir=place) as tried:
                (Path(tried) / "file").write_bytes(b"written")
        except OSError as error:
            self._wrong(
                f"--state-dir {self.state_dir}: cannot be written ({error}): make it a folder of the user that "
                "runs the node"
            )
            return None
        return place

    def _memory(self) -> None:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._say(f"memory: {in_words(peak)} at most in this process, of {in_words(total)}")
        if torch.cuda.is_initialized():
            self._say(f"        {in_words(torch.cuda.max_memory_allocated())} on the GPU")

    def _disk(self, place: Path, trials: "list[Trial]", tasks: Mapping[str, Task]) -> None:
        free = shutil.disk_usage(place).free
        needed = sum(
            trial.bytes_to_keep(tasks[trial.method], self.config.methods[trial.method], self.config.num_stages)
            for trial in trials
        )
        if self.config.run.state_backend == "context":
            needed = 0
        self._say(f"disk:   a run keeps up to {in_words(needed)} in {self.state_dir}; {in_words(free)} are free")
        if needed > free:
            self._wrong(
                f"--state-dir {self.state_dir}: a run keeps up to {in_words(needed)} there, but only {in_words(free)} "
                "are free: make room, or take another disk"
            )

    def _say(self, line: str) -> None:
        if line not in self.lines:  # methods mostly see the same data
            self.lines.append(line)

    def _wrong(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _warm_up() -> None:
    """Have torch import what it imports at its first optimizer step, which would be counted otherwise."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()
