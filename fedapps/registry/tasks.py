"""Tasks by their names: the folders of ``tasks/``, and the entry points ``fedapps.tasks`` of other packages."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedapps import tasks

from .classes import did_you_mean_or_install, imported, load, plugins

if TYPE_CHECKING:
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles

GROUP = "fedapps.tasks"


@cache
def own_tasks() -> tuple[str, ...]:
    """The names of the tasks of this package: a folder of ``tasks/`` with a module ``task``."""
    folders = [module.name for module in iter_modules(tasks.__path__) if module.ispkg]
    return tuple(name for name in folders if _has_module(name, "task"))


def own_modules(prefix: str) -> list[ModuleType]:
    """The modules in the folders of the tasks of this package whose names begin with ``prefix``."""
    packages = [import_module(f"fedapps.tasks.{task}") for task in own_tasks()]
    return [
        import_module(f"{package.__name__}.{module.name}")
        for package in packages
        for module in iter_modules(package.__path__)
        if module.name.startswith(prefix)
    ]


def task_names() -> tuple[str, ...]:
    """The names of all tasks, this package's first."""
    return (*own_tasks(), *(name for name in plugins(GROUP) if name not in own_tasks()))


def task_lines() -> Mapping[str, str]:
    """One line of help for each task: the first of its package's docstring, or of its class for other packages.

    For a damaged one it says why the task cannot be used.
    """
    lines = {name: _first_line(import_module(f"fedapps.tasks.{name}").__doc__) for name in own_tasks()}
    for name in task_names()[len(lines) :]:
        try:
            lines[name] = _first_line(task_class(name).__doc__)
        except ValueError as error:
            lines[name] = f"cannot be used: {error}"
    return lines


def usable_tasks() -> "Mapping[str, type[TaskProfiles]]":
    """As :func:`profiles_class`, all tasks by their names, without those of other packages that cannot be imported."""
    found: dict[str, type[TaskProfiles]] = {}
    for name in task_names():
        try:
            found[name] = profiles_class(name)
        except ValueError:  # raised again when a run config names it
            continue
    return found


@cache
def task_class(name: str) -> "type[Task]":
    """The class of a task.

    Raises
    ------
    ValueError
        The name is unknown, or the entry point of another package cannot be used.
    """
    from fedapps.tasks.base import Task

    if name in own_tasks():
        found: type[Task] = _class_of(f"fedapps.tasks.{name}.task", name, Task)
        return found
    if name not in plugins(GROUP):
        listed = ", ".join(task_names())
        raise ValueError(f"task = {name!r}: must be one of {listed}{did_you_mean_or_install(name, task_names())}")
    other: type[Task] = load(plugins(GROUP)[name], Task)
    return other


@cache
def profiles_class(name: str) -> "type[TaskProfiles]":
    """The half of a task that imports no torch: its options, its world and the profiles of its nodes.

    It is the one class of that name in the module ``profile`` beside the task's module; tasks without such a module are
    returned whole. Raises ``ValueError`` as :func:`task_class`.
    """
    from fedapps.tasks.profiles import TaskProfiles

    if name not in own_tasks():
        return _profiles_of_plugin(name, TaskProfiles) or task_class(name)
    if not _has_module(name, "profile"):
        return task_class(name)
    found: type[TaskProfiles] = _class_of(f"fedapps.tasks.{name}.profile", name, TaskProfiles)
    return found


def _has_module(task: str, module: str) -> bool:
    return any(found.name == module for found in iter_modules([f"{path}/{task}" for path in tasks.__path__]))


def _class_of(module: str, name: str, parent: type[Any]) -> Any:
    """The one subclass of ``parent`` in a module whose ``name`` is the task's."""
    (found,) = _classes_of(import_module(module), name, parent)
    return found


def _classes_of(module: ModuleType, name: str, parent: type[Any]) -> list[Any]:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, parent)]
    return [kind for kind in kinds if getattr(kind, "name", "") == name and kind.__module__ == module.__name__]


def _profiles_of_plugin(name: str, parent: type[Any]) -> Any:
    """As :func:`_class_of`, in the module ``profile`` beside another package's task; ``None`` if it is not there."""
    if not (found := plugins(GROUP).get(name)):
        return None
    package = found.module.rpartition(".")[0]
    try:
        there = bool(package) and find_spec(f"{package}.profile") is not None
    except ImportError:  # of the package itself; the task has the same reason
        return None
    kinds = _classes_of(imported(EntryPoint(name, f"{package}.profile", GROUP)), name, parent) if there else []
    return kinds[0] if kinds else None


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
