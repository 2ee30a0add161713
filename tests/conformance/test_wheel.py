"""The wheel holds the five packages and nothing else, and its strategies run where there are flwr and NumPy alone."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from example_apps import EXAMPLES, told
from lean_environment import install, make_environment, run_example, run_python, run_tool

pytestmark = pytest.mark.subprocesses

PROJECT = Path(__file__).parents[2]
PACKAGES = ("clients", "fedapps", "sim", "strategies", "tasks")
NO_SOURCE = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
DATA = (
    "fedapps/recipes/*.toml", "fedapps/comparison/paper_numbers/*.toml", "fedapps/py.typed", "strategies/py.typed",
    "fedapps/*/templates/*.md",
)  # fmt: skip

IMPORT_ALL = """
import importlib, importlib.util, pkgutil
from fedapps import strategies
for module in pkgutil.walk_packages(strategies.__path__, "fedapps.strategies."):
    importlib.import_module(module.name)
    print("imported", module.name)
for name in ("torch", "scipy", "ray", "safetensors"):
    assert importlib.util.find_spec(name) is None, name
print("from", strategies.__file__)
"""


def _no_source(folder: str, names: list[str]) -> set[str]:
    """What is left out of the copy; ``runs`` at the root holds run folders, elsewhere it is a package."""
    return {*NO_SOURCE(folder, names), *({"runs"} if Path(folder) == PROJECT else ())}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves its work in the tree, and takes what an earlier build left there."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(PROJECT, folder / "source", ignore=_no_source)
    run_tool(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index",
        "--no-build-isolation", "--wheel-dir", folder, folder / "source",
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment of flwr, what flwr requires, and the wheel."""
    python = make_environment(tmp_path_factory.mktemp("environment"), "flwr")
    install(python, wheel)
    return python


def test_the_wheel_holds_the_packages_with_recipes_and_types_and_nothing_else(wheel: Path) -> None:
    modules = {path for package in PACKAGES for path in (PROJECT / package).rglob("*.py")}
    data = {path for pattern in DATA for path in PROJECT.glob(pattern)}
    here = (path.relative_to(PROJECT).as_posix() for path in modules | data)
    wanted = {path if path.startswith("fedapps/") else f"fedapps/{path}" for path in here}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in held if ".dist-info/" not in name} == wanted
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in held)


def test_without_torch_and_scipy_every_module_of_strategies_can_be_imported(python: Path) -> None:
    output = run_python(python, "-c", IMPORT_ALL)
    modules = {path.stem for path in (PROJECT / "strategies").rglob("*.py")} - {"__init__"}
    imported = {line.rpartition(".")[2] for line in output.splitlines() if line.startswith("imported")}
    assert modules <= imported
    assert f"from {python.parents[1]}" in output


def test_the_numpy_example_runs_on_the_wheel(python: Path, tmp_path: Path) -> None:
    def losses(strategy: str) -> list[float]:
        log = run_example(python, tmp_path, EXAMPLES / "numpy-hierarchy", 4, f"strategy = '{strategy}'")
        return told(log, "eval_loss")

    adam, hierarchical = losses("adam"), losses("hierarchical")
    assert len(adam) == len(hierarchical) == 20
    assert adam[-1] < 0.3 * adam[0]
    assert hierarchical[-1] < 0.1 * adam[-1]
    # In round 15 the cities are averaged: for one round each has the model of both.
    assert hierarchical[14] == pytest.approx(adam[-1], rel=0.2)
    assert hierarchical[13] < 0.1 * hierarchical[14] > hierarchical[-1]
