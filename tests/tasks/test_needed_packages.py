"""The packages of extras: every import of a task is declared, and a missing one is told with the extra to install."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.text.sources import PUBLISHED, fetch
from fedapps.tasks.text.transformer import load_config, load_tokenizer

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
    [
        ("clients", "apps"),
        ("fedapps/app", "apps"),
        ("fedapps/report", "vision"),
        ("tasks/driving/world", "driving"),
    ],
)
def test_what_all_tasks_share_needs_no_more_than_apps(folder: str, extra: str) -> None:
    assert imported(ROOT / folder) <= declared(extra)


def test_every_task_has_an_extra() -> None:
    folders = {path.parent.name for path in (ROOT / "tasks").glob("*/task.py")}
    assert folders == set(EXTRAS)
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
