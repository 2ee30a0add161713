"""``python -m fedapps check-node``: check whether a machine can take part in a run as a node.

The check reads the data, then trains one step and evaluates once with every method of the recipe. It uses the same
messages, the same ClientApp and the same checks of the reply as a real round, all in this process.
"""

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedapps.app.disclosure import DEFAULT_STATE
from fedapps.app.node import choose_device
from fedapps.app.node_ledger import LEDGER, NodeLedger
from fedapps.app.server_app import initial_arrays
from fedapps.app.strategy import build_strategy
from fedapps.base.options import did_you_mean
from fedapps.base.report.numbers import counted, format_bytes
from fedapps.clients.data import cached_load
from fedapps.clients.guard import Guard
from fedapps.clients.kept_models import KEPT_MODELS, KeptModels
from fedapps.clients.rules import KEEP_MODEL, PRIVATE, NodeLimits, NodeRules, RulesError, check_commands
from fedapps.config.parsing import Config, ConfigError, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.estimate import DryRun
from fedapps.launch.inputs import found_in_data, resolve
from fedapps.strategies import SecureRules
from fedapps.tasks.base import DataError, NodeData, Task

from .supernode import NODE_KEYS

#: Runs of a year.
_WEEKS = 52


def check(
    recipe: Path,
    overrides: Mapping[str, Any],
    data_dir: Path,
    state_dir: str | None,
    node_config: Mapping[str, Any] | None = None,
) -> int:
    """Check this machine as a node of a run, and print the results.

    Parameters
    ----------
    recipe : Path
        Run config of the run to join.
    overrides : mapping
        Keys of the run config that override the recipe.
    data_dir : Path
        Folder of the node's data.
    state_dir : str or None
        Folder for the node's private state; None: the default of the ClientApp.
    node_config : mapping, optional
        The other keys of the node config, such as ``private``.

    Returns
    -------
    int
        0 if the node can join, 1 if not; then the problems are printed too.

    Raises
    ------
    ConfigError
        If the run config is invalid.
    """
    keys, folder = resolve(read_recipe(recipe, overrides), "runs"), data_dir.expanduser().absolute()
    try:
        config = parse(keys, on_node=True)
    except ValueError as error:
        line = ""
        with suppress(DataError):
            _, line = found_in_data(keys, folder)
        raise (ConfigError(f"{error}\n  in {folder}: {line}") if line else error) from None
    state = Path(state_dir or DEFAULT_STATE).expanduser()
    report = NodeCheck(config, folder, state, node_config or {})
    report.run()
    print("\n".join(report.lines))
    if not report.problems:
        print("this node can join")
        return 0
    print(f"this node cannot join: {counted(len(report.problems), 'problem')}")
    for problem in report.problems:
        print("- " + problem.replace("\n", "\n  "))
    return 1


@dataclass
class NodeCheck:
    """The check of one node.

    Attributes
    ----------
    lines : list of str
        Facts to print.
    problems : list of str
        Reasons why the node cannot join; empty if it can.
    """

    config: Config
    data_dir: Path
    state_dir: Path
    node_config: Mapping[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Check the data, the device and the state folder; if there is no problem, dry-run every method."""
        usable = self._data(self.config.task)
        self._device()
        state_disk = self._state()
        self._private(usable)
        self._rules()
        if self.problems or state_disk is None:
            return
        _warm_up()
        node = {**self.node_config, "data-dir": str(self.data_dir)}
        if self._gets_champions:
            node[KEEP_MODEL] = True
        with tempfile.TemporaryDirectory(prefix=".fedapps-check-", dir=state_disk) as state:
            dry_runs = [DryRun.of(self.config, method, data, node, Path(state)) for method, data in usable.items()]
        for dry_run in dry_runs:
            self.lines += [] if dry_run.problems else [dry_run.line]
            self.problems += [problem for problem in dry_run.problems if problem not in self.problems]
            self._models(dry_run)
        self._memory()
        self._disk(state_disk, dry_runs, {label: self.config.task_of(self.config.methods[label]) for label in usable})

    def _data(self, task: Task) -> dict[str, NodeData]:
        """Load the node's data for each method."""
        data_of: dict[str, NodeData] = {}
        for label, method in self.config.methods.items():
            if method.pools_data:
                self._wrong(f"methods: {label} trains on the pooled data of all nodes, which no deployed node has")
                continue
            try:
                source = self.config.run.source(task, {"data-dir": str(self.data_dir)})
                data_of[label] = cached_load(source, self.config.task_of(method), False)  # the ClientApp's cache
            except (DataError, OSError) as error:
                self._wrong(f"data: {error}")
        if data_of and (line := task.describe_data(self.data_dir, own=True)):
            self._say(f"read:   {line}")
        for label, data in data_of.items():
            task_of_node = self.config.task_of(self.config.methods[label])
            sizes = ", ".join(f"{count} {what}" for what, count in task_of_node.sizes(data).items())
            groups = "".join(f", {kind} {label}" for kind, label in data.groups.items())
            self._say(f"data:   node {data.key}: {sizes or 'no examples'}{groups}")
            if self.config.unreported(self.data_dir):
                self._say(
                    f"note:   {self.config.unreported_text}. The run ends before its first round if no node has one"
                )
            if not data.count("train"):
                self._wrong(f"data: {self.data_dir} has no training examples: the run would exclude this node")
        return data_of

    def _device(self) -> None:
        run = self.config.run
        try:
            device = choose_device(run.device)
        except ValueError as error:
            self._wrong(str(error))
            return
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        self._say(f"device: {name}, {counted(run.node_cpus, 'torch thread')} (node-cpus)")

    def _state(self) -> Path | None:
        """The state folder, or its nearest existing parent; None if it is not writable."""
        path = self.state_dir.absolute()
        try:
            existing = next(folder for folder in (path, *path.parents) if folder.exists())
            with tempfile.TemporaryDirectory(prefix=".fedapps-check-", dir=existing) as scratch:
                (Path(scratch) / "file").write_bytes(b"written")
        except OSError as error:
            self._wrong(
                f"--state-dir {self.state_dir}: cannot be written ({error}): create it and give it to the user that "
                "runs the node"
            )
            return None
        if os.path.exists(path / "state" / LEDGER):  # false also where this user may not look
            self._say(
                f"note:   {path / 'state'} has a {LEDGER}, so it is probably the node's state folder: give "
                f"--state-dir {path / 'state'}, or what has left this node before is not counted here"
            )
        return existing

    def _private(self, usable: Mapping[str, NodeData]) -> None:
        """Print what ``--private`` keeps on the node; methods that share some of it cannot be used."""
        private = str(self.node_config.get(PRIVATE, ""))
        guard = Guard.of({PRIVATE: private})
        for label, data in usable.items() if guard.node else ():
            model = self.config.task_of(self.config.methods[label]).build_model_for(data)
            try:
                guard.check_model(model, ())
            except ValueError as error:
                self._wrong(f"--{error}")
                continue
            staying = [name for name in model.state_dict() if guard.stays(name)]
            self._say(f"private: {', '.join(staying)} never leave this node")
            initial = initial_arrays(self.config, label)
            shared = build_strategy(self.config, label, initial.keys()).share(initial)
            if refused := [name for name in shared if guard.stays(name)]:
                self._wrong(
                    f"--private {private}: {label} shares {', '.join(refused)}, so this node would refuse its "
                    "messages: leave the method out, or change --private"
                )

    def _rules(self) -> None:
        """Check the run against the limits and the rules of the node config, and print what its privacy budget has."""
        run, node = self.config.run, {**self.node_config, "data-dir": str(self.data_dir)}
        for key in sorted(node.keys() - NODE_KEYS):
            self._wrong(f"--node-config {key}: no key of the node config{did_you_mean(key, NODE_KEYS)}")
        try:
            NodeLimits.of(node)
            secure = SecureRules.of(node)
            secure.check_files()
            check_commands(node)
            if secure.required and not run.secure_aggregation:
                raise RulesError('secagg = "required" needs a run with secure-aggregation = true')
            rules = NodeRules.of(node)
            rules.check_run(run.dp, run.dp_noise, run.dp_clip, seeded=run.dp_seeded)
        except (ValueError, RulesError) as error:
            self._wrong(f"--node-config: {error}")
            return
        if (why := rules.ineligible()) is not None:
            self._say(f"works:  {f'not now, {why}' if why else 'now'}; asked before each round")
        if rules.dp == "none":
            return
        ledger = NodeLedger(self.state_dir, rules)
        sharing = [m for m in self.config.methods.values() if not m.private(self.config.task).everything]
        most, spent = run.rounds * len(sharing), ledger.spent()
        self._say(
            f"privacy: {spent.count} updates have left this node, epsilon {spent.epsilon(rules.dp_delta):.3g}; the run "
            f"takes at most {most} more, epsilon {spent.plus(run.dp_noise, most).epsilon(rules.dp_delta):.3g} at delta "
            f"{rules.dp_delta:g}"
        )
        try:
            ledger.check(run.dp_noise, most if run.fraction_train == 1 else 1)
        except RulesError as error:
            self._wrong(f"--node-config: {error}")

    def _models(self, dry_run: "DryRun") -> None:
        if (size := dry_run.model_bytes) and self.node_config.get(KEEP_MODEL):
            kept = KeptModels.of(self.state_dir, self.config.run.name or "RUN", dry_run.method, dry_run.data.key)
            self._say(f"{dry_run.method}: models of {format_bytes(size)} will be in {kept.folder}")

    def _memory(self) -> None:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._say(f"memory: peak of {format_bytes(peak)} in this process; the machine has {format_bytes(total)}")
        if torch.cuda.is_initialized():
            self._say(f"        peak of {format_bytes(torch.cuda.max_memory_allocated())} on the GPU")

    def _disk(self, state_disk: Path, dry_runs: "list[DryRun]", tasks: Mapping[str, Task]) -> None:
        free, methods = shutil.disk_usage(state_disk).free, self.config.methods
        needed = sum(
            dry_run.bytes_to_keep(tasks[dry_run.method], methods[dry_run.method], self.config.num_stages)
            for dry_run in dry_runs
        )
        models = (KEPT_MODELS + 1) * sum(dry_run.model_bytes for dry_run in dry_runs)
        if self._gets_champions and not self.node_config.get(KEEP_MODEL):
            needed -= models
        if self.config.run.state_backend == "context":
            needed = 0
        self._say(f"disk:   a run needs up to {format_bytes(needed)} in {self.state_dir}; {format_bytes(free)} free")
        span = "a run"
        if self._gets_champions:
            keep, span = self.config.run.keep_runs, "a year"
            # beside the last runs: the champions, the present run, and the one that it goes on from
            runs = min(keep + 4, _WEEKS) if keep else _WEEKS
            needed = runs * needed + models
            self._say(
                f"        a year of weekly runs takes up to {format_bytes(needed)}: {runs} runs (keep-runs = {keep}), "
                f"and {format_bytes(models)} of champions"
            )
        if needed > free:
            self._wrong(
                f"--state-dir {self.state_dir}: {span} needs up to {format_bytes(needed)}, but only "
                f"{format_bytes(free)} are free: free some space or choose another disk"
            )

    @property
    def _gets_champions(self) -> bool:
        """Whether the node gets champions, whose size is that of the models that it keeps in the dry run."""
        return bool(self.config.run.registry)

    def _say(self, line: str) -> None:
        if line not in self.lines:  # most methods load the same data
            self.lines.append(line)

    def _wrong(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _warm_up() -> None:
    """Take one optimizer step, so that the time of torch's lazy imports is not measured with the first method."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()
