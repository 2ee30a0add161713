"""The wheel holds one package and nothing else, and its strategies run where there are flwr and NumPy alone."""

import zipfile
from pathlib import Path

import pytest
from example_apps import EXAMPLES, told
from lean_environment import install, make_environment, run_example, run_python

pytestmark = [pytest.mark.subprocesses, pytest.mark.slow]

PROJECT = Path(__file__).parents[2]
#: The folders that stand beside ``fedapps/`` in the repository, and in it in the wheel.
BESIDE = ("clients", "sim", "strategies", "tasks")

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, fedapps.strategies
for module in pkgutil.walk_packages(fedapps.strategies.__path__, "fedapps.strategies."):
    importlib.import_module(module.name)
    print("imported", module.name)
for name in ("torch", "scipy", "ray", "safetensors", "strategies"):
    assert importlib.util.find_spec(name) is None, name
print("from", fedapps.strategies.__file__)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment of flwr, what flwr requires, and the wheel."""
    python = make_environment(tmp_path_factory.mktemp("environment"), "flwr")
    install(python, wheel)
    return python


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    places = {"fedapps": "fedapps"} | {folder: f"fedapps/{folder}" for folder in BESIDE}
    wanted = {
        f"{place}/{path.relative_to(PROJECT / folder).as_posix()}"
        for folder, place in places.items()
        for path in (PROJECT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in held if ".dist-info/" not in name} == wanted
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in held)


def test_without_torch_and_scipy_every_module_of_strategies_can_be_imported(python: Path) -> None:
    output = run_python(python, "-c", IMPORT_ALL)
    below = (
        path.relative_to(PROJECT / "strategies").with_suffix("") for path in (PROJECT / "strategies").rglob("*.py")
    )
    modules = {".".join(path.parts).removesuffix(".__init__") for path in below} - {"__init__"}
    found = {line.split()[1] for line in output.splitlines() if line.startswith("imported")}
    assert found == {f"fedapps.strategies.{name}" for name in modules}
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
