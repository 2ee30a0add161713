"""One federation on an engine, from the command line."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.files import UnwritableError
from fedapps.config.keys import for_flower, path_keys
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import summary_table
from sim.flower_run import Fleet, flower_run
from sim.inprocess import run_inprocess
from sim.processes import usable_cores
from strategies.round_records import TooFewRepliesError
from tasks.base import DataError, Task

APP = Path(__file__).parents[2]


def launch(overrides: Mapping[str, Any], *, engine: str, output_dir: str) -> int:
    """Run the federation that ``overrides`` describe over the app's own config; returns the exit status.

    Raises ``ValueError`` before anything starts when the config, the run's folder or the data cannot be used.
    """
    config = parse(resolve(overrides, output_dir))
    path = RunFolder.check(config, run_id=0)
    check_data(config)
    begun = time.monotonic()
    try:
        execute(config, engine)
    except (TooFewRepliesError, UnwritableError) as error:
        print(f"\n{error}", file=sys.stderr)
    return conclude(config, path, engine, begun)


def conclude(config: Config, path: Path, engine: str, begun: float) -> int:
    """Print what came out of the run in folder ``path``, which began at ``begun`` (monotonic); the exit status."""
    folder = RunFolder(path, "")
    missing = [method for method in config.methods if not folder.finished(method)]
    if missing or not (path / "report.html").exists():
        where = ", ".join(missing) or "its report"
        print(f"\nthe run failed in: {where}. The log is above; what was trained is in {path}", file=sys.stderr)
        return 1
    print()
    print(summary_table(folder))
    for label, method in config.methods.items():
        print(f"  {label}: {method.line}")
    print(f"\nfinished in {(time.monotonic() - begun) / 60:.1f} minutes on {engine}")
    print(f"summary: {path / 'summary.json'}\nreport:  {path / 'report.html'}")
    return 0


def check_data(config: Config) -> None:
    """Read the data that nodes will read. Raises ``DataError`` when it is missing or cannot be used."""
    task = config.task
    task.check_nodes(config.run.num_nodes)
    check_folder(config, task)
    if config.run.data_dir:
        for partition in range(config.run.num_nodes):
            task.load_node(Path(config.run.data_dir), partition, config.run.num_nodes)


def check_folder(config: Config, task: Task) -> None:
    """Raise ``DataError`` without a folder of data where ``task`` needs one, and for one that does not exist."""
    if not config.run.data_dir and not task.has_world:
        made_up = f", or --set {config.run.task}.source=simulated for made-up data"
        raise DataError(
            "data-dir = '': this recipe learns from recorded data; add --set data-dir=FOLDER"
            + (made_up if hasattr(config.options, "source") else "")
        )
    if config.run.data_dir and not Path(config.run.data_dir).is_dir():
        raise DataError(f"data-dir = {config.run.data_dir!r}: no such folder; give the folder of the data files")


def execute(config: Config, engine: str) -> None:
    """Run a federation on ``inline`` (this process) or ``ray`` (``flwr run``)."""
    if engine == "inline":
        from fedapps.app.client_app import app as client_app
        from fedapps.app.server_app import app as server_app

        flat = config.flat()
        run_inprocess(server_app, client_app, num_nodes=config.run.num_nodes, run_config=flat, errors="reply")
    else:
        fleet = Fleet(config.run.num_nodes, cpus=config.run.node_cpus, gpus=_gpus_per_node(config))
        flower_run(APP, for_flower(config.flat()), fleet)


def resolve(overrides: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """Make paths absolute, because Flower's processes run elsewhere, and give the run a name."""
    resolved = dict(overrides)
    resolved.setdefault("output-dir", os.path.abspath(output_dir))
    for key in ("output-dir", "data-dir", "cache-dir"):
        if resolved.get(key):
            resolved[key] = str(Path(str(resolved[key])).expanduser().absolute())
    for key in path_keys() & resolved.keys():
        names = str(resolved[key]).split(",")
        resolved[key] = ",".join(_absolute(name.strip()) for name in names)
    if not resolved.get("name"):
        task = resolved.get("task", RunConfig.task)
        resolved["name"] = f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    return resolved


def _absolute(name: str) -> str:
    """An existing file or folder by its absolute path; anything else, such as a name on a hub, as it is."""
    path = Path(name).expanduser()
    return str(path.absolute()) if name and path.exists() else name


def _gpus_per_node(config: Config) -> float:
    """A share of the GPUs for each node that Ray runs at a time, so that ``device = "auto"`` finds one."""
    if config.run.device == "cpu":
        return 0.0
    import torch

    at_a_time = max(1, usable_cores() // config.run.node_cpus)
    return min(1.0, torch.cuda.device_count() / at_a_time)
