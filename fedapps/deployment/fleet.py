"""Recipes on nodes with their own processes: on a SuperLink that exists, or on a fleet of this machine."""

import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.app.server_app import check_start
from fedapps.base.atomic import whole_folder
from fedapps.base.errors import RunFailedError
from fedapps.base.processes import tool, usable_cores
from fedapps.base.text_files import found_in
from fedapps.config.keys import for_flower
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.inputs import app_folder, check_data
from fedapps.launch.launch import Runner, check_machine, conclude
from fedapps.registry.methods import local_methods
from fedapps.runs.owner import owned
from fedapps.runs.run_folder import RunFolder

from .processes import FleetError
from .submission import check_certificates, submission
from .superlink import Deployment, NodeConfig, deployment, started_run

WORKERS_PER_CORE = 3
#: Seconds before a SuperLink is asked again, and how often it is asked without an answer.
_PAUSE, _ASKED = 10.0, 30


def run_config_text(recipe: Path, overrides: Mapping[str, Any]) -> str:
    """The keys of a recipe as one flat TOML file for ``flwr run --run-config``, which knows no ``base``.

    Raises
    ------
    ValueError
        If the recipe or a key is invalid, or nodes with their own data cannot run it.
    """
    keys = read_recipe(recipe, overrides)
    check_deployable(parse(keys, files_exist=False))
    return tomli_w.dumps(for_flower(keys))


def deploy(recipe: Path, federation: str, overrides: Mapping[str, Any], *, stream: bool) -> None:
    """Run a recipe on the SuperLink of a federation.

    Parameters
    ----------
    recipe : Path
        Name of a recipe, or path of a run-config file.
    federation : str
        The name of a connection in Flower's ``config.toml``; empty for its default.
    overrides : mapping
        Keys of the run config that override the recipe. Paths refer to the server.
    stream : bool
        Show the log of the run until it ends; otherwise return once the SuperLink has taken the run.

    Raises
    ------
    ValueError
        As :func:`run_config_text`, or as :func:`check_certificates`.
    RunFailedError
        If the SuperLink does not take the run; with ``stream`` also if the run fails or is stopped.
    """
    keys = read_recipe(recipe, overrides)
    check_deployable(parse(keys, files_exist=False))
    submit(keys, federation, stream=stream)


def submit(keys: Mapping[str, Any], federation: str, *, stream: bool) -> None:
    """Run the app with the keys of a run config on the SuperLink of a federation. Raises as :func:`deploy`."""
    check_certificates(federation)
    with app_folder() as app, tempfile.TemporaryDirectory(prefix="fedapps-submit-") as folder:
        command = submission(app, Path(folder), for_flower(keys), federation, stream=stream)
        status, run = _shown(command) if stream else (subprocess.run(command, check=False).returncode, "")
    if run:
        _await_end(run, [federation] if federation else [])
    elif status or stream:
        raise RunFailedError(
            f"flwr run ended with exit status {status}: see its message above; `flwr config list` shows the federations"
        )


def _shown(command: Sequence[str]) -> tuple[int, str]:
    """Run a command of ``flwr`` and print its lines. Returns its exit status, and the id of the run, empty if none."""
    run = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as streaming:
        assert streaming.stdout is not None
        for line in streaming.stdout:
            print(line, end="", flush=True)
            run = started_run(line) or run
    return streaming.returncode, run


def _await_end(run: str, named: Sequence[str]) -> None:
    """Follow a run on the SuperLink of a connection to its end.

    ``flwr run --stream`` ends with 0 whatever becomes of the run, and before its end if the connection breaks.

    Raises
    ------
    RunFailedError
        The run has not completed, or the SuperLink has not answered for five minutes.
    """
    query = [tool("flwr"), "ls", *named, "--run-id", run, "--format", "json"]
    failed = 0
    while not (status := _status(query)).startswith("finished"):
        failed = 0 if status else failed + 1
        if failed == _ASKED:
            raise RunFailedError(f"whether run {run} has finished is not known: `{shlex.join(query)}` fails")
        broke = f"the log broke, but run {run} goes on ({status}): it follows again from its beginning"
        print(broke if status else "the SuperLink does not answer: it is asked again", flush=True)
        time.sleep(_PAUSE)
        if status:
            _shown([tool("flwr"), "log", run, *named, "--stream"])
    if status != "finished:completed":
        raise RunFailedError(f"run {run} did not complete ({status}): see its log above")


def _status(query: Sequence[str]) -> str:
    """The status of the run that a query lists; empty if the SuperLink does not answer."""
    listing = subprocess.run(query, check=False, capture_output=True, encoding="utf-8", errors="replace").stdout
    try:
        return str(json.loads(listing)["runs"][0]["status"])
    except (ValueError, LookupError):
        return ""


def check_deployable(config: Config) -> None:
    """Check that nodes with their own data and processes can run a config.

    Raises
    ------
    ValueError
        If nodes shall train at once, or in simulated time, or if a method needs the pooled data of all nodes or is not
        part of a package.
    """
    config.run.check_separate_nodes()
    config.check_real_nodes()
    if pooled := [label for label, method in config.methods.items() if method.pools_data]:
        others = ",".join(label for label in config.methods if label not in pooled)
        raise ValueError(
            f"methods: {', '.join(pooled)} trains on the pooled data of all nodes, which no node of a fleet has: "
            "use `fedapps run`" + (f", or add --set methods={others}" if others else "")
        )
    if local := [label for label, method in config.methods.items() if method.name in local_methods()]:
        raise ValueError(
            f"methods: {', '.join(local)} is defined in a file of this machine, which the nodes do not have: make a "
            "package of it (docs/extending.md) and install it on the server and on every node"
        )


@dataclass(frozen=True)
class FleetData:
    """The data sources of a fleet.

    Attributes
    ----------
    nodes : int
        Number of nodes.
    folders : tuple of Path
        One folder per node; if empty, the nodes share one data source, each with one partition.
    """

    nodes: int
    folders: tuple[Path, ...] = ()

    @classmethod
    def read(cls, config: Config, nodes: int | None, folders: str) -> "FleetData":
        """Parse the command-line options ``--nodes`` and ``--node-data``.

        Parameters
        ----------
        config : Config
            The run config.
        nodes : int or None
            Number of nodes; None: the number of folders, or ``num-nodes`` without folders.
        folders : str
            A folder that contains one folder per node, or the nodes' folders separated by commas; empty: none.

        Raises
        ------
        ValueError
            If the options contradict each other or the run config, or nodes of a fleet cannot run it.
        """
        check_deployable(config)
        node_folders = _node_folders(folders) if folders else ()
        if node_folders and all(config.unreported(folder) for folder in node_folders):
            raise ValueError(config.unreported_text)
        count = (len(node_folders) or config.run.num_nodes) if nodes is None else nodes
        if count < 1:
            raise ValueError(f"--nodes {count}: must be at least 1")
        if node_folders and count != len(node_folders):
            raise ValueError(f"--nodes {count}: --node-data names {len(node_folders)} folders; omit --nodes")
        if count < config.run.num_nodes:
            raise ValueError(
                f"--nodes {count}: the run waits for num-nodes = {config.run.num_nodes}; add --set num-nodes={count}"
            )
        if node_folders and config.run.data_dir:
            raise ValueError(
                f"--node-data, but data-dir = {config.run.data_dir!r}: give one of them, either a folder per node or "
                "one folder with the data of all nodes"
            )
        return cls(count, node_folders)

    def check(self, config: Config) -> None:
        """Read the data of all nodes once; generate the simulated world if the cache does not have it yet.

        Raises
        ------
        DataError
            If data are missing or invalid.
        """
        task = config.task
        if self.folders:
            task.check_nodes(self.nodes)
            for folder in self.folders:
                task.load_own(folder)
            return
        check_data(replace(config, run=replace(config.run, num_nodes=self.nodes)))
        config.run.source(task, self.configs()[0])

    def configs(self) -> Sequence[NodeConfig]:
        """The node config of each SuperNode."""
        if self.folders:
            return [{"data-dir": str(folder)} for folder in self.folders]
        return [{"partition-id": index, "num-partitions": self.nodes} for index in range(self.nodes)]


@dataclass(frozen=True)
class LocalFleet(Runner):
    """A SuperLink and SuperNodes on this machine.

    The fleet keeps its logs, keys, private states and database in a folder next to the run folder.

    Parameters
    ----------
    nodes : int, optional
        Number of SuperNodes; see :meth:`FleetData.read`.
    node_data : str
        Data folders of the nodes; see :meth:`FleetData.read`.
    tls : bool
        Encrypt all connections to the SuperLink.
    auth : bool
        Authenticate SuperNodes by their keys. Implies ``tls``, which Flower requires for it.
    """

    nodes: int | None = None
    node_data: str = ""
    tls: bool = False
    auth: bool = False

    def check(self, config: Config) -> None:
        check_machine("fleet", config.run)
        path = RunFolder.check(config, run_id=0)
        self._data(config)
        fleet_folder(path, resume=config.run.resume)
        if not config.run.resume:
            check_start(config)

    def check_data(self, config: Config) -> None:
        self._data(config).check(config)

    def run(self, config: Config) -> None:
        """Run a federation.

        Raises
        ------
        RunFailedError
            If a process of the fleet failed or a method did not finish.
        KeyboardInterrupt
            On SIGINT, SIGTERM and SIGHUP, after all processes have ended.
        """
        path = config.run.folder(0)
        folder = fleet_folder(path, resume=config.run.resume)
        begun = time.monotonic()
        try:
            with owned(folder), deployment(folder, tls=self.tls or self.auth, auth=self.auth) as fleet:
                _deploy_and_run(config, self._data(config), fleet)
        except FleetError as error:
            kept = f"\nfinished rounds are saved in {path}: set resume = true to continue" if path.exists() else ""
            raise RunFailedError(f"{error}{kept}") from error
        conclude(config, "fleet", begun)

    def _data(self, config: Config) -> FleetData:
        return FleetData.read(config, self.nodes, self.node_data)


def fleet_folder(run: Path, *, resume: bool) -> Path:
    """The folder of the fleet that runs the run in folder ``run``.

    Raises
    ------
    ValueError
        If it exists and ``resume`` is false, or does not exist and ``resume`` is true: a resumed run needs the
        private states of its nodes.
    """
    folder = run.with_name(f"{run.name}-fleet")
    if resume and not folder.is_dir():
        raise ValueError(
            f"resume = true, but there is no fleet folder {folder}: resume the run with the command that started it"
        )
    if folder.exists() and not resume:
        raise ValueError(f"{folder} exists: choose another name, remove the folder, or set resume = true")
    return folder


def limit_in_flight(config: Config, nodes: int, cores: int) -> Config:
    """Set ``in-flight``, if it is 0, to the number of nodes that the cores can serve at the same time.

    A worker process needs about 4 s of CPU time to import torch, and Flower starts a second one if it does not hear
    from the first within 30 s. If too many start at the same time, none of them gets ready.
    """
    most = WORKERS_PER_CORE * cores
    if config.run.in_flight or nodes <= most:
        return config
    print(f"fleet: {most} of {nodes} nodes work at the same time, because there are {cores} cores (in-flight = {most})")
    return replace(config, run=replace(config.run, in_flight=most))


def _deploy_and_run(config: Config, data: FleetData, fleet: Deployment) -> None:
    if config.run.started_from is not None:
        _carry_states(config.run.started_from, fleet.folder)
    fleet.start_superlink()
    security = "TLS, node keys" if fleet.auth else "TLS" if fleet.ca else "not encrypted"
    ports = f"port {fleet.control_port} for flwr, port {fleet.fleet_port} for SuperNodes"
    print(f"fleet: SuperLink at 127.0.0.1: {ports} ({security})")
    print(f"fleet: logs, keys and private states: {fleet.folder}", flush=True)
    fleet.start_supernodes(data.configs())
    print(f"fleet: {data.nodes} SuperNodes are connected", flush=True)
    with app_folder() as app:
        fleet.run(app, for_flower(limit_in_flight(config, data.nodes, usable_cores()).flat()))


def _carry_states(run: Path, folder: Path) -> None:
    """Copy what the nodes kept that another fleet of this machine ran with, unless the fleet has it."""
    before = run.with_name(f"{run.name}-fleet")
    for state in before.glob("node-*/state"):
        target = folder / state.relative_to(before)
        if not target.exists():
            with whole_folder(target) as copy:
                shutil.copytree(state, copy, symlinks=True, dirs_exist_ok=True)


def _node_folders(text: str) -> tuple[Path, ...]:
    paths = [Path(part.strip()).expanduser().absolute() for part in text.split(",") if part.strip()]
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"--node-data {path}: no such folder")
    if len(paths) != 1:
        return tuple(paths)
    below = [path for path in found_in(paths[0], "*") if path.is_dir()]
    if not below:
        raise ValueError(
            f"--node-data {paths[0]}: expected one folder per node in it, found none; give such a folder, or the "
            "nodes' folders separated by commas"
        )
    return tuple(below)
