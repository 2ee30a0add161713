"""What a run takes in: keys with absolute paths, data that can be read, and the folder of the app."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files, metadata, requires, version
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.base.options import under_prefix
from fedapps.clients.data import DataSource
from fedapps.config.clock import devices_of
from fedapps.config.keys import generated, path_keys
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig, held_out_of
from fedapps.registry.tasks import task_class, task_names
from fedapps.strategies.checks import truncate
from fedapps.tasks.base import DataError, NodeData, Task

from .plan import timed_name

_PACKAGE = Path(__file__).parents[1]
#: The repository or the bundle that holds this package; not a folder of an app where the package is installed.
APP = _PACKAGE.parent
_LICENSE = "LICENSE"  # which Flower's bundles of format 1 contain


@contextmanager
def app_folder() -> Iterator[Path]:
    """Give the folder of the app, with ``pyproject.toml`` in it.

    For an installed wheel it is a temporary folder with a copy of the package, because ``flwr run`` bundles whatever
    stands beside ``pyproject.toml``.
    """
    if not (_PACKAGE / "strategies").is_dir():
        yield APP
        return
    with tempfile.TemporaryDirectory(prefix="fedapps-app-") as folder:
        app = Path(folder)
        shutil.copytree(_PACKAGE, app / _PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        (app / "pyproject.toml").write_text(_pyproject(), encoding="utf-8")
        licenses = (file.locate() for file in files("fedapps") or () if file.name == _LICENSE)
        shutil.copy(next(licenses), app / _LICENSE)
        yield app


def _pyproject() -> str:
    """What Flower reads of a project: its name, description and requirements, its two apps and its keys."""
    app = {
        "publisher": "fedapps",
        "fab-format-version": 1,
        "flwr-version-target": version("flwr"),
        "components": {"serverapp": "fedapps.app.server_app:app", "clientapp": "fedapps.app.client_app:app"},
    }
    project = {
        "project": {
            "name": "fedapps",
            "version": version("fedapps"),
            "description": metadata("fedapps")["Summary"],  # without it, `flwr run` warns
            "license": {"file": _LICENSE},
            "dependencies": [needed for needed in requires("fedapps") or () if "extra ==" not in needed],
        },
        "tool": {"flwr": {"app": app}},
    }
    return f"{tomli_w.dumps(project)}\n{generated()}"


def resolve(overrides: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """The run config with absolute paths, a name, and what the data of a simulation answer.

    Flower's processes have other working directories, so relative paths would not work there.
    """
    resolved = dict(overrides)
    resolved.setdefault("output-dir", os.path.abspath(output_dir))
    for key in ("output-dir", "data-dir", "cache-dir"):
        if resolved.get(key):
            resolved[key] = str(Path(str(resolved[key])).expanduser().absolute())
    if Path(str(resolved.get("start") or "/")).expanduser().exists():  # other names are those of runs in output-dir
        resolved["start"] = _absolute(str(resolved.get("start", "")))
    for key in path_keys(resolved):
        names = str(resolved[key]).split(",")
        resolved[key] = ",".join(_absolute(name.strip()) for name in names)
    if resolved.get("data-dir"):
        of_data, line = found_in_data(resolved, Path(resolved["data-dir"]))
        resolved |= of_data
        if line:
            print(line, file=sys.stderr)
    if not resolved.get("name"):
        task = resolved.get("task", RunConfig.task)
        resolved["name"] = timed_name(str(task))
    return resolved


def found_in_data(keys: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """The keys of the task that are not given and that the data in a folder answer, such as the labels of texts; and a
    line for the user, empty if there are none.

    Raises
    ------
    DataError
        The data are missing or malformed.
    """
    task = str(keys.get("task", RunConfig.task))
    if task not in task_names():
        return {}, ""
    prefix = f"{task}."
    of_data, line = task_class(task).found_keys(under_prefix(prefix, keys), folder)
    return {prefix + key: value for key, value in of_data.items()}, line


def _absolute(name: str) -> str:
    """The absolute path of an existing file or folder, or of one with placeholders; other names, such as those on a
    model hub, unchanged."""
    path = Path(name).expanduser()
    return str(path.absolute()) if name and ("{" in name or path.exists()) else name


#: Reads the data of one node.
Load = Callable[[DataSource, Task], NodeData]


def check_data(config: Config, load: Load = DataSource.load) -> None:
    """Read the data of all nodes once, except those of a simulated world, and print what they were taken for.

    Raises ``DataError`` if data are missing or invalid, or can be read in two ways, or if a held-out node has none.
    """
    if config.run.data_dir:
        known = [data.key for data in read_nodes(config, config.task, load)]
        if missing := sorted(set(held_out_of(config.run).keys).difference(known)):
            raise DataError(
                f"held-out-nodes = {config.run.held_out_nodes!r}: no node has the key {', '.join(missing)}; "
                f"the nodes are {truncate(', '.join(sorted(known)))}"
            )
    else:
        _check_inputs(config)


def read_nodes(config: Config, task: Task, load: Load) -> Iterator[NodeData]:
    """Yield the data of each node, and print at the end what they were taken for.

    A simulated world is generated if it does not exist yet. Raises ``DataError`` as :func:`check_data`.
    """
    _check_inputs(config)
    run = config.run
    for partition in range(run.num_nodes):
        data = load(run.source(task, {"partition-id": partition, "num-partitions": run.num_nodes}), task)
        if run.data_dir:
            check_plateau(config, data)
        yield data
    if run.data_dir:
        _say_once(task.describe_data(Path(run.data_dir)))


def _check_inputs(config: Config) -> None:
    if config.run.clock.on:
        devices_of(config.run.clock, config.run.num_nodes, config.run.seed)
    config.task.check_nodes(config.run.num_nodes)
    check_folder(config, config.task)


@cache
def _say_once(line: str) -> None:
    """Print what the data were taken for, once for all runs of a comparison."""
    if line:
        print(f"data: {line}", file=sys.stderr)


def check_plateau(config: Config, data: NodeData) -> None:
    """Raise ``DataError`` if a method lowers the learning rate by the validation loss, of which a node has no data."""
    for label in config.methods:
        patience = config.run_of(label).training.plateau_patience
        if patience and data.count("train") and not data.count("validation"):
            raise DataError(
                f"plateau-patience = {patience}: node {data.key} has no validation examples to measure the loss on; "
                "set it to 0 for a constant learning rate, or hold out validation examples"
            )


def check_folder(config: Config, task: Task) -> None:
    """Raise ``DataError`` if ``data-dir`` does not exist, or is empty and the task has no simulated world."""
    if not config.run.data_dir and not task.has_world:
        simulated = f", or --set {config.run.task}.source=simulated for simulated data"
        raise DataError(
            "data-dir = '': this recipe needs recorded data; add --set data-dir=FOLDER"
            + (simulated if hasattr(config.options, "source") else "")
        )
    if config.run.data_dir and not Path(config.run.data_dir).is_dir():
        raise DataError(f"data-dir = {config.run.data_dir!r}: no such folder; give the folder with the data files")
