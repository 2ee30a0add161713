"""``fedapps new``: what it writes runs, tests and deploys; what it refuses, it refuses before it writes anything.

tests/examples/test_extending_page.py installs a project with pip and compares its method.
"""

import importlib
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from example_apps import load_example
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fedapps.base.text_files import flattened
from fedapps.cli.commands import main
from fedapps.cli.parser import command_parser
from fedapps.config.recipe_files import read_recipe
from fedapps.deployment.fleet import run_config_text
from fedapps.registry import methods, tasks

#: The options of ``fedapps new`` by kind of project.
KINDS = {
    "task": ["--task", "rain"],
    "method": ["--method", "near-start"],
    "both": ["--task", "rain", "--method", "near-start", "--deployment"],
}

#: A deployment of a recipe of fedapps, whose tracked metric needs a test that real nodes lack.
RECIPE = ["--recipe", "images-digits", "--deployment"]


def make(folder: Path, options: list[str], name: str = "wet-days") -> Path:
    """A new project in ``folder``."""
    assert main(["new", str(folder / name), *options]) == 0
    return folder / name


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Installs a project in this process: its folder and its entry points are on the import path."""
    path, modules = list(sys.path), set(sys.modules)

    def as_pip_does(project: Path) -> None:
        groups = tomllib.loads((project / "pyproject.toml").read_text())["project"]["entry-points"]
        metadata = tmp_path / "site" / "wet_days-0.1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wet-days\nVersion: 0.1.0\n")
        lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in found.items()) for group, found in groups.items()]
        (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
        sys.path[:0] = [str(project), str(metadata.parent)]
        importlib.invalidate_caches()

    yield as_pip_does
    sys.path[:] = path
    for name in {name for name in sys.modules if name.partition(".")[0] == "wet_days"} - modules:
        del sys.modules[name]
    for cached in (methods.canonical, tasks.task_class, tasks.task_class):
        cached.cache_clear()


def module_at(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["task", "method", pytest.param("both", marks=pytest.mark.slow)])
def test_the_tests_of_the_project_pass(kind: str, installed: Callable[[Path], None], tmp_path: Path) -> None:
    project = make(tmp_path, KINDS[kind])
    installed(project)
    tests = vars(module_at(project / "tests" / "test_wet_days.py"))
    found = [test for name, test in tests.items() if name.startswith("test_")]
    assert len(found) == (2 if kind == "both" else 1)
    for number, test in enumerate(found):
        test(tmp_path / str(number))


def test_the_flower_app_of_the_project_runs_its_recipe(installed: Callable[[Path], None], tmp_path: Path) -> None:
    from fedapps.sim.inprocess import run_inprocess
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    project = make(tmp_path, KINDS["both"])
    installed(project)
    build_fab_from_disk(project)  # Flower's checks of pyproject.toml
    load_and_validate(project / "pyproject.toml")  # and of its modules, before `flwr run`
    server_app, client_app, config = load_example(project)
    flat = flattened(config)  # as Flower does
    assert flat == flattened(tomllib.loads((project / "wet-days.toml").read_text()))
    quick = {"rounds": 1, "evaluate-every": 1, "output-dir": str(tmp_path), "cache-dir": str(tmp_path), "name": "run"}
    run_inprocess(server_app, client_app, num_nodes=4, run_config=flat | quick)
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_profile_of_the_task_is_that_of_its_data(installed: Callable[[Path], None], tmp_path: Path) -> None:
    installed(make(tmp_path, KINDS["task"]))
    task = tasks.task_class("rain")()
    task.make_world(tmp_path, 3, seed=0)
    assert task.node_profile(tmp_path, 2, 3) == task.load_node(tmp_path, 2, 3).profile()
    assert task.own_profile(tmp_path) == task.load_own(tmp_path).profile()


@pytest.mark.parametrize("options", [RECIPE, KINDS["both"]], ids=["recipe", "package"])
def test_the_commands_of_the_pages_exist_and_the_fleet_takes_the_recipe(
    options: list[str], installed: Callable[[Path], None], tmp_path: Path
) -> None:
    project = make(tmp_path, options)
    if (project / "pyproject.toml").exists():
        installed(project)
    lines = (line for line in (project / "README.md").read_text().splitlines() if line.startswith("fedapps "))
    words = [shlex.split(line, comments=True)[1:] for line in lines]
    commands = {"run", "compare", "check-node", "fleet", "deploy"} | ({"predict"} if options is RECIPE else set())
    assert {command_parser().parse_args(given).command for given in words} == commands
    flat = tomllib.loads(run_config_text(project / "wet-days-fleet.toml", {}))
    assert flat["num-nodes"] == flat["min-replies"] == 2
    assert flat["bind-keys"] is True


def test_a_project_of_any_name_has_two_recipes_and_the_fleet_tracks_what_its_nodes_report(tmp_path: Path) -> None:
    project = make(tmp_path, RECIPE, name="fleet")
    simulated = read_recipe(project / "fleet.toml")
    fleet = read_recipe(project / "fleet-fleet.toml")
    assert simulated["task"] == fleet["task"] == "images"
    assert (simulated["track-metric"], fleet["track-metric"]) == ("test.global_accuracy", "test.local_accuracy")
    assert fleet["name"] == "fleet-fleet"
    assert "check-node fleet-fleet.toml" in (project / "node.sh").read_text()
    lqr = make(tmp_path, ["--recipe", "lqr", "--deployment"], name="robots")
    assert "track-metric" not in (lqr / "robots-fleet.toml").read_text(), "what nodes report stays as it is"


def test_the_scripts_of_a_deployment_call_flower_as_it_is(tmp_path: Path) -> None:
    project = make(tmp_path, RECIPE)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("fedapps", "flower-superlink"):
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" end >> {tmp_path}/called\n')
        (programs / name).chmod(0o755)
    (tmp_path / "data").mkdir()
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}

    def calls(*command: str) -> list[list[str]]:
        (tmp_path / "called").unlink(missing_ok=True)
        subprocess.run(["sh", *command], cwd=tmp_path, env=environment, check=True, capture_output=True)
        return [call.strip().splitlines() for call in (tmp_path / "called").read_text().split("end\n") if call]

    keys, superlink = calls(f"{project}/server.sh", "fl.example.org", "10.0.0.7")
    assert command_parser().parse_args(keys[1:]).host == ["fl.example.org", "10.0.0.7"]
    given = _parse_args_run_superlink().parse_args(superlink[1:])
    assert given.enable_supernode_auth
    assert given.ssl_keyfile == "certificates/superlink.key"
    node = [f"{project}/node.sh", "car-7", "fl.example.org:9092", "data"]
    check, key = calls(*node)
    assert command_parser().parse_args(check[1:]).data_dir == str(tmp_path / "data")
    assert command_parser().parse_args(key[1:]).name == "car-7"
    for made in (project / "nodes" / "car-7.key", project / "certificates" / "ca.crt"):
        made.parent.mkdir(exist_ok=True)
        made.touch()
    ((program, *rest),) = calls(*node)
    options = _parse_args_run_supernode().parse_args(command_parser().parse_known_args(rest)[1])
    assert (program, options.superlink) == ("fedapps", "fl.example.org:9092")
    assert f'data-dir="{tmp_path}/data"' in options.node_config


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["p"], "choose what the project has: --task NAME, --method NAME, --deployment"),
        (["My project", "--deployment"], "NAME = 'My project': must begin with a letter and consist of lower-case"),
        (["2days", "--deployment"], "NAME = '2days': must begin with a letter"),
        (["class", "--deployment"], "NAME = 'class': is a keyword of Python"),
        (["json", "--task", "rain"], "NAME = 'json': a Python module json is installed here"),
        (["tests", "--task", "rain"], "NAME = 'tests': would hide"),
        (["lqr", "--deployment"], "NAME = 'lqr': is a recipe of fedapps"),
        (["gone/p", "--deployment"], "gone/p: there is no folder gone; create it first"),
        (["there", "--deployment"], "there exists: choose another name, or remove it"),
        (["p", "--task", "import"], "--task = 'import': is a keyword of Python"),
        (["p", "--task", "lqr"], "--task = 'lqr': is a task already"),
        (["p", "--task", "rounds"], "--task = 'rounds': is a key of the run config already"),
        (["p", "--deployment"], "--deployment: name what the fleet trains, by --recipe RECIPE"),
        (["p", "--method", "near", "--deployment"], "--deployment: name what the fleet trains"),
        (["p", "--recipe", "images-digit", "--deployment"], "did you mean 'images-digits'?"),
        (["p", "--recipe", "lqr", "--task", "rain"], "--recipe = 'lqr': the project's recipe is that of its --task"),
        (["p", "--method", "method"], "--method = 'method': would hide"),
        (["p", "--method", "sfl"], "--method = 'sfl': is a method already"),
        (["p", "--method", "fed.x"], "--method = 'fed.x': must begin with a letter and consist of"),
        (["p", "--task", "x", "--method", "x"], "--task and --method are both 'x'"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    assert main(["new", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
