"""What the registry of tasks relies on when it scans ``tasks/``."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from inspect import getmembers, isclass
from pkgutil import iter_modules

import pytest
from fedapps.tasks.base import Task

from fedapps import tasks

_FOLDERS = [module.name for module in iter_modules(tasks.__path__) if module.ispkg]
PACKAGES = [name for name in _FOLDERS if find_spec(f"fedapps.tasks.{name}.task")]  # others serve several tasks


def test_tasks_are_found_by_scanning():
    assert {"driving", "lqr", "social", "text", "vpr"} <= set(PACKAGES)


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


@pytest.mark.subprocesses
def test_the_lines_of_help_load_no_torch():
    code = "; ".join(
        [*(f"import fedapps.tasks.{name}" for name in PACKAGES), "import sys", "sys.exit('torch' in sys.modules)"]
    )
    subprocess.run([sys.executable, "-c", code], check=True)
