"""The same app on a real SuperLink with real SuperNodes, each with a data folder and a state folder of its own."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapps.checkpoints import read_snapshot
from fedapps.client_app import app as client_app
from fedapps.config import parse
from fedapps.fleet.deployment import Deployment, deployment
from fedapps.server_app import app as server_app
from sim.inprocess import run_inprocess
from sim.lqr import write_world

pytestmark = pytest.mark.processes

APP = Path(__file__).parents[2]
NODES, ROUNDS = 2, 2


def run_config(folder: Path) -> dict[str, Any]:
    given = {"task": "lqr", "methods": "apfl", "num-nodes": NODES, "rounds": ROUNDS, "epochs": 1, "personal-epochs": 1}
    paths = {"name": "run", "output-dir": str(folder), "cache-dir": str(folder / "worlds"), "node-wait": 60.0}
    return parse(given | paths | {"collect-after": 0, "batch-size": 32}).flat()


@pytest.fixture
def node_folders(tmp_path: Path) -> list[Path]:
    """Each robot's file in a folder of its own."""
    folders = []
    for index, path in enumerate(write_world(tmp_path / "world", NODES, seed=1)):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        shutil.move(path, folder / path.name)
        folders.append(folder)
    return folders


@pytest.fixture
def fleet(tmp_path: Path, node_folders: list[Path]) -> Iterator[Deployment]:
    """A SuperLink and its SuperNodes on free ports of the loopback."""
    with deployment(tmp_path / "fleet") as started:
        started.start_superlink()
        started.start_supernodes([{"data-dir": str(f), "state-dir": str(f / "state")} for f in node_folders])
        yield started


def test_a_fleet_gives_the_same_bits_as_one_process(
    fleet: Deployment, node_folders: list[Path], tmp_path: Path
) -> None:
    deployed, inline = tmp_path / "deployed", tmp_path / "inline"
    shown: list[str] = []
    fleet.run(APP, run_config(deployed), shown.append)
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(fleet.folder.rglob("*.log")))
    assert (deployed / "run" / "summary.json").exists(), "\n".join([*shown, logs])

    configs = [{"data-dir": str(f), "state-dir": str(f / "state-inline")} for f in node_folders]
    run_inprocess(server_app, client_app, node_configs=configs, run_config=run_config(inline))

    last = Path("run") / "checkpoints" / "apfl" / f"round-{ROUNDS:06d}.safetensors"
    theirs, ours = read_snapshot(deployed / last), read_snapshot(inline / last)
    for name, array in ours.arrays.items():
        np.testing.assert_array_equal(array, theirs.arrays[name], err_msg=name)
    assert theirs.facts == ours.facts

    for folder in node_folders:
        personal = list((folder / "state").glob("*/apfl/*/personal.safetensors"))
        assert len(personal) == 1, "the personal model stays on its node"
        assert os.path.getsize(personal[0]) > 0
