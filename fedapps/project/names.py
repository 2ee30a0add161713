"""The names of a new project, its task and its method: what they may be, and what is written in the files."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedapps.base.options import did_you_mean
from fedapps.config.keys import all_keys
from fedapps.config.recipe_files import recipes
from fedapps.registry import TRACKERS
from fedapps.registry.methods import aliases, method_names
from fedapps.registry.tasks import task_names

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_FORM = (
    "must begin with a letter and consist of lower-case letters and digits, with single - or _ between them, such as "
    "my-project"
)
#: Names that would hide a folder of the project, or a class of fedapps in the module that defines it.
_OWN = {"tests", "task", "method"}


@dataclass(frozen=True)
class Names:
    """The names in a new project.

    Parameters
    ----------
    folder : Path
        The project's folder, which does not exist; its last part is the name of the project.
    task, method : str
        The names of what the project adds; empty for none.
    recipe : str
        The name of the recipe that the project's begins from; empty for none.
    """

    folder: Path
    task: str = ""
    method: str = ""
    recipe: str = ""

    @property
    def project(self) -> str:
        """The name of the project."""
        return self.folder.name

    @property
    def package(self) -> str:
        """The name of the Python package."""
        return self.project.replace("-", "_")

    def check(self) -> None:
        """Check all names and the folder.

        Raises
        ------
        ValueError
            A name is malformed or taken, the folder exists, or the recipe is unknown or beside a task.
        """
        _check_form("NAME", self.project)
        if self.folder.exists():
            raise ValueError(f"{self.folder} exists: choose another name, or remove it; nothing was written")
        if not self.folder.parent.is_dir():
            raise ValueError(f"{self.folder}: there is no folder {self.folder.parent}; create it first")
        if self.project in recipes():
            raise ValueError(f"NAME = {self.project!r}: is a recipe of fedapps; choose another name")
        if self.package in sys.stdlib_module_names or find_spec(self.package) is not None:
            raise ValueError(
                f"NAME = {self.project!r}: a Python module {self.package} is installed here, which the package would "
                "hide; choose another name"
            )
        for option, name in (("--task", self.task), ("--method", self.method)):
            if name:
                _check_form(option, name)
                _check_free(option, name)
        if self.recipe and self.task:
            raise ValueError(f"--recipe = {self.recipe!r}: the project's recipe is that of its --task; leave one out")
        if self.recipe and self.recipe not in recipes():
            suggestion = did_you_mean(self.recipe, recipes())
            raise ValueError(f"--recipe = {self.recipe!r}: is no recipe (`fedapps list` has all){suggestion}")
        if self.task and self.task == self.method:
            raise ValueError(
                f"--task and --method are both {self.task!r}, but their options are keys of the run config that begin "
                "with these names; choose two names"
            )


def class_name(name: str) -> str:
    """The name of a class: ``MyMethod`` for ``my-method``."""
    return "".join(part.capitalize() for part in re.split("[-_]", name))


def _check_form(option: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{option} = {name!r}: {_FORM}")
    if keyword.iskeyword(name):
        raise ValueError(f"{option} = {name!r}: is a keyword of Python; choose another name")
    if name in _OWN:
        raise ValueError(f"{option} = {name!r}: would hide what the project calls so; choose another name")


def _check_free(option: str, name: str) -> None:
    taken = {"a task": task_names(), "a method": [*method_names(), *aliases()], "a tracker": TRACKERS.names()}
    taken |= {"a key of the run config": [key.partition(".")[0] for key in all_keys()]}
    for kind, known in taken.items():
        if name in known:
            raise ValueError(f"{option} = {name!r}: is {kind} already (`fedapps list` lists all); choose another name")
