"""A project with its own packages ``strategies``, ``clients``, ``tasks`` and ``sim``, beside ours."""

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path

import pytest
from flower_runs import Fleet, flower_run
from lean_environment import install, make_environment, run_tool
from packaging.requirements import Requirement

pytestmark = pytest.mark.subprocesses

ROOT = Path(__file__).parents[2]
FOLDERS = ("strategies", "clients", "tasks", "sim")
PROJECT = """
[project]
name = "shop"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "shop.server_app:app"
clientapp = "shop.client_app:app"

[tool.flwr.app.config]
"""
#: What every process of the app must find: theirs by their names, ours below ours, and no module twice.
CHECK = """
import importlib
import sys

FOLDERS = ("strategies", "clients", "tasks", "sim")


def check():
    for name in FOLDERS:
        assert importlib.import_module(name + ".theirs").OWNER == "they", name
        ours = importlib.import_module("fedapps." + name)
        assert ours.__name__ == "fedapps." + name
        assert not hasattr(ours, "OWNER")
    names = {}
    for name, module in list(sys.modules.items()):
        names.setdefault(getattr(module, "__file__", None) or name, []).append(name)
    known = ("fedapps", *FOLDERS)
    twice = [of for of in names.values() if len(of) > 1 and any(name.split(".")[0] in known for name in of)]
    assert not twice, twice
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.strategies import BaseStrategy
from shop.check import check
from strategies.theirs import OWNER
from tasks.theirs import OWNER as TASKS_OWNER

app = ServerApp()


@app.main()
def main(grid, context):
    result = BaseStrategy(min_nodes=2).start(grid, ArrayRecord([np.zeros(2)]), num_rounds=1)
    check()
    print(f"{OWNER} and {TASKS_OWNER}: {result.arrays['0'].numpy().tolist()}", flush=True)
"""
CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import sim.theirs
from fedapps.clients.guard import keep_private
from shop.check import check

app = ClientApp()


@app.train()
def train(message, context):
    check()
    trained = ArrayRecord([array.numpy() + 1 for array in message.content["arrays"].values()])
    content = RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
"""
RUN = """
from fedapps.sim.inprocess import run_inprocess
from shop.client_app import app as client_app
from shop.server_app import app as server_app

run_inprocess(server_app, client_app, num_nodes=2, errors="reply")
"""
SAID = "they and they: [1.0, 1.0]"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The folder of their project."""
    folder = tmp_path / "theirs"
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text('OWNER = "they"\n')
        (folder / name / "theirs.py").write_text('OWNER = "they"\n')
    shop = {"__init__": "", "check": CHECK, "server_app": SERVER, "client_app": CLIENT, "run": RUN}
    (folder / "shop").mkdir()
    for name, text in shop.items():
        (folder / "shop" / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def environment(*paths: Path) -> Mapping[str, str]:
    """The environment of a process that searches these folders before all others."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    joined = os.pathsep.join([*map(str, paths), *inherited])
    return {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": joined}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel and what its extra ``apps`` requires."""
    wanted = [Requirement(text) for text in requires("fedapps") or ()]
    apps = [w for w in wanted if w.marker is None or "apps" in str(w.marker)]
    names = [f"{w.name}[{','.join(w.extras)}]" if w.extras else w.name for w in apps]
    python = make_environment(tmp_path_factory.mktemp("environment"), *names)
    install(python, wheel)
    return python


@pytest.mark.slow
def test_an_installed_wheel_in_their_folder(installed: Path, theirs: Path) -> None:
    alone = {**environment(), "PYTHONPATH": ""}
    assert "fedavg" in run_tool(installed, "-m", "fedapps", "list", folder=theirs, environment=alone)
    script = installed.with_name("fedapps")
    assert "fedavg" in run_tool(script, "list", folder=theirs, environment=alone | {"PYTHONPATH": str(theirs)})
    assert SAID in run_tool(installed, "-m", "shop.run", folder=theirs, environment=alone)
    assert "supernode" in run_tool(script, "--help", folder=theirs, environment=alone)
    run_tool(script, "new", "weather", "--task", "rain", folder=theirs, environment=alone)
    assert (theirs / "weather" / "weather" / "task.py").is_file()
    small = [f"--set={key}" for key in ("methods=fedavg", "rounds=1", "epochs=1", "num-nodes=2", "name=run")]
    run_tool(script, "run", "lqr", *small, folder=theirs, environment=alone)
    assert "<svg" in (theirs / "runs" / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_editable_installation_in_their_folder(theirs: Path) -> None:
    assert "fedavg" in run_tool(sys.executable, "-m", "fedapps", "list", folder=theirs, environment=environment(theirs))
    assert SAID in run_tool(sys.executable, "-m", "shop.run", folder=theirs, environment=environment(theirs))


@pytest.mark.slow
def test_the_command_in_a_folder_that_also_has_a_package_of_our_name(theirs: Path, tmp_path: Path) -> None:
    """The console script does not search the folder in which it is called; ``-P`` is the same for ``-m``."""
    (theirs / "fedapps").mkdir()
    (theirs / "fedapps" / "__init__.py").write_text("raise SystemExit('theirs')\n")
    keys = ("methods=sfl", "rounds=1", "epochs=1", "collect-after=0", f"cache-dir={tmp_path / 'worlds'}", "name=run")
    sets = [word for key in keys for word in ("--set", key)]
    command = [sys.executable, "-P", "-m", "fedapps", "run", "lqr", "--engine", "inline", "--output-dir", tmp_path]
    run_tool(*command, *sets, folder=theirs, environment=environment(ROOT))
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_copied_folder_in_their_folder(theirs: Path) -> None:
    shutil.copytree(ROOT / "strategies", theirs / "vendored", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "import sys, strategies.theirs; from vendored import BaseStrategy, HierarchicalFedAvg, Krum; BaseStrategy();"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'fedapps'];"
        "print(BaseStrategy.__module__, strategies.theirs.OWNER)"
    )
    assert "vendored.base they" in run_tool(
        sys.executable, "-c", program, folder=theirs, environment=environment(theirs)
    )


@pytest.mark.slow
@pytest.mark.processes
def test_their_app_in_ray(theirs: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    flower_run(theirs, {}, Fleet(num_nodes=2), home=tmp_path / "flwr", show=lines.append)
    log = "\n".join(lines)
    assert SAID in log
    for alarm in ("Traceback", "No query function", "ERROR", "takes part under its node id"):
        assert alarm not in log, "their clients are asked nothing that they cannot answer"
