"""The packages of extras: every import of a task is declared, and a missing one is told with the extra to install."""

import ast
import re
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from inspect import getmembers, isclass
from pathlib import Path
from pkgutil import iter_modules

import pytest
from fedapps.tasks.base import DataError, Task
from fedapps.tasks.text.sources import PUBLISHED, fetch
from fedapps.tasks.text.transformer import load_config, load_tokenizer

from fedapps import tasks
from fedapps.base.errors import need

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Extras beside that of a task, for files that few have, and for floors by scikit-learn.
FURTHER = {"text": ("adapters", "vectors", "images"), "vln": ("text",)}
OWN = {"fedapps", "strategies", "clients", "tasks", "sim"}
#: The extra that users install for the task of each folder.
EXTRAS = {
    "driving": "driving",
    "images": "images",
    "lqr": "apps",
    "social": "social",
    "text": "text",
    "vln": "vln",
    "vpr": "vision",
}


def declared(extra: str) -> set[str]:
    """Distributions that an extra installs directly, and those of the package itself."""
    found = {"flwr", "numpy"}
    for requirement in PROJECT["optional-dependencies"][extra]:
        if nested := re.match(r"fedapps\[(.*)\]", requirement):
            found |= set().union(*map(declared, nested[1].split(",")))
        else:
            found.add(re.match(r"[\w-]+", requirement)[0].lower())  # type: ignore[index]
    return found


def imported(folder: Path) -> set[str]:
    """Distributions that the modules of a folder import, at the top or in a function."""
    modules: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules.add(node.module)
            elif (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "need"
                and isinstance(node.args[0], ast.Constant)
            ):
                modules.add(str(node.args[0].value))
    tops = {name.partition(".")[0] for name in modules} - OWN - set(sys.stdlib_module_names)
    known = packages_distributions()
    return {known[top][0].lower().replace("_", "-") for top in tops}


@pytest.mark.parametrize("folder", EXTRAS)
def test_the_extra_of_a_task_installs_what_the_task_imports(folder: str) -> None:
    assert imported(ROOT / "tasks" / folder) <= set().union(*map(declared, (EXTRAS[folder], *FURTHER.get(folder, ()))))


@pytest.mark.parametrize(
    ("folder", "extra"),
    [("clients", "apps"), ("fedapps/app", "apps"), ("fedapps/report", "vision"), ("tasks/driving/world", "driving")],
)
def test_what_all_tasks_share_needs_no_more_than_apps(folder: str, extra: str) -> None:
    assert imported(ROOT / folder) <= declared(extra)


def test_every_task_has_an_extra() -> None:
    folders = {path.parent.name for path in (ROOT / "tasks").glob("*/task.py")}
    assert folders == set(EXTRAS) == set(PACKAGES)
    assert declared("all") == set().union(*map(declared, EXTRAS.values()))


def test_an_installed_package_is_no_error_and_a_missing_one_names_its_extra() -> None:
    need("torch", "apps", "training")
    with pytest.raises(
        DataError, match=r"key = 'x' needs the package no_such, which is not installed: pip install 'fedapps\[text\]'"
    ):
        need("no_such", "text", "key = 'x'")


@pytest.mark.parametrize("package", ["transformers", "datasets"])
def test_without_a_package_of_texts_the_option_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapps.base.errors.find_spec", lambda name: None)
    uses = {
        "transformers": [lambda: load_config.__wrapped__("bert"), lambda: load_tokenizer.__wrapped__("bert")],
        "datasets": [lambda: fetch(next(iter(PUBLISHED.values())).hub, "train", tmp_path)],
    }
    for use in uses[package]:
        with pytest.raises(DataError, match=rf"needs the package {package}, .*fedapps\[text\]"):
            use()


# What the registry of tasks relies on when it scans ``tasks/``.


_FOLDERS = [module.name for module in iter_modules(tasks.__path__) if module.ispkg]
PACKAGES = [name for name in _FOLDERS if find_spec(f"fedapps.tasks.{name}.task")]  # others serve several tasks


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_defines_one_task_of_its_name(name):
    module = import_module(f"fedapps.tasks.{name}.task")
    defined = [
        found
        for _, found in getmembers(module, isclass)
        if issubclass(found, Task) and found.__module__ == module.__name__
    ]
    assert [found.name for found in defined] == [name]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_docstring_of_a_package_begins_with_a_line_of_help(name):
    line = (import_module(f"fedapps.tasks.{name}").__doc__ or "").splitlines()[0]
    assert line[:1].isupper()
    assert line.endswith(".")
    assert len(line) <= 114
