"""``python -m fedapps fleet``: one run on a SuperLink and SuperNodes of its own, from checks to the report."""

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapps.config import Config, parse
from fedapps.launch import APP, conclude, resolve
from fedapps.run_folder import RunFolder
from sim.processes import usable_cores

from .data import NodeData
from .deployment import Deployment, deployment
from .processes import FleetError

WORKERS_PER_CORE = 3


def run_fleet(
    overrides: Mapping[str, Any],
    *,
    nodes: int | None = None,
    node_data: str = "",
    tls: bool = False,
    auth: bool = False,
    output_dir: str = "runs",
) -> int:
    """Run the federation that ``overrides`` describe on a fleet of this machine; returns the exit status.

    ``nodes`` and ``node_data`` are as in :meth:`NodeData.read`. ``auth`` switches ``tls`` on, because Flower has no
    node keys without it. The fleet's folder stays, beside the run's: logs, keys, private states, the SuperLink's
    database. Raises ``ValueError`` before anything starts when the config, the folders or the data cannot be used,
    and ``KeyboardInterrupt`` on Ctrl-C and SIGTERM, once every process has ended.
    """
    config = parse(resolve(overrides, output_dir))
    path = RunFolder.check(config, run_id=0)
    data = NodeData.read(config, nodes, node_data)
    folder = fleet_folder(path, resume=config.run.resume)
    data.check(config)
    begun = time.monotonic()
    try:
        with deployment(folder, tls=tls or auth, auth=auth) as fleet:
            _deploy_and_run(config, data, fleet)
    except FleetError as error:
        kept = f"\nwhat was trained is in {path}: go on with resume = true" if path.exists() else ""
        print(f"\nfedapps: {error}{kept}", file=sys.stderr)
        return 1
    return conclude(config, path, "a fleet", begun)


def fleet_folder(run: Path, *, resume: bool) -> Path:
    """Where the fleet of the run in folder ``run`` keeps its things.

    Raises ``ValueError`` when it exists, or for a run to ``resume`` when it does not: its nodes' states are there.
    """
    folder = run.with_name(f"{run.name}-fleet")
    if resume and not folder.is_dir():
        raise ValueError(f"resume = true, but there is no fleet in {folder}: resume the run as it was begun")
    if folder.exists() and not resume:
        raise ValueError(f"{folder} exists: choose another name, remove the folder, or set resume = true")
    return folder


def at_a_time(config: Config, nodes: int, cores: int) -> Config:
    """The config with ``in-flight`` set, where it is not, to what so many cores can bear.

    A worker that trains takes some 4 s of a core to import torch, and Flower starts another where it hears nothing of
    one for 30 s: all at once they only keep each other from starting.
    """
    most = WORKERS_PER_CORE * cores
    if config.run.in_flight or nodes <= most:
        return config
    print(f"fleet: {most} of the {nodes} nodes work at a time, for {cores} cores are here (in-flight = {most})")
    return replace(config, run=replace(config.run, in_flight=most))


def _deploy_and_run(config: Config, data: NodeData, fleet: Deployment) -> None:
    fleet.start_superlink()
    guarded = "TLS, node keys" if fleet.auth else "TLS" if fleet.ca else "not encrypted"
    print(f"fleet: SuperLink at 127.0.0.1:{fleet.http}, SuperNodes at 127.0.0.1:{fleet.fleet} ({guarded})")
    print(f"fleet: logs, keys and private states are in {fleet.folder}", flush=True)
    fleet.start_supernodes(data.configs())
    print(f"fleet: {data.nodes} SuperNodes are connected", flush=True)
    fleet.run(APP, at_a_time(config, data.nodes, usable_cores()).flat())
