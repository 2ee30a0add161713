"""Tasks by their names: the folders of ``tasks/``, and the entry points ``fedapps.tasks`` of other packages."""

from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedapps import tasks

from . import did_you_mean_or_install, load, plugins

if TYPE_CHECKING:
    from fedapps.tasks.base import Task

GROUP = "fedapps.tasks"


@cache
def own_tasks() -> tuple[str, ...]:
    """The names of the tasks of this package: a folder of ``tasks/`` with a module ``task``."""
    folders = [module.name for module in iter_modules(tasks.__path__) if module.ispkg]
    paths_by_name = {name: [f"{path}/{name}" for path in tasks.__path__] for name in folders}
    return tuple(
        name for name, paths in paths_by_name.items() if "task" in {module.name for module in iter_modules(paths)}
    )


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


def usable_tasks(names: Collection[str] | None = None) -> Mapping[str, "type[Task]"]:
    """The classes of the named tasks, by default of all, without those of other packages that cannot be imported."""
    tasks_by_name: dict[str, type[Task]] = {}
    for name in (known for known in task_names() if names is None or known in names):
        try:
            tasks_by_name[name] = task_class(name)
        except ValueError:  # raised again when a run config names it
            continue
    return tasks_by_name


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
        module = import_module(f"fedapps.tasks.{name}.task")
        own: type[Task]
        (own,) = (kind for kind in vars(module).values() if _is_task(kind, name, module))
        return own
    if name not in plugins(GROUP):
        known = ", ".join(task_names())
        raise ValueError(f"task = {name!r}: must be one of {known}{did_you_mean_or_install(name, task_names())}")
    other: type[Task] = load(plugins(GROUP)[name], Task)
    return other


def _is_task(kind: Any, name: str, module: ModuleType) -> bool:
    """Whether something in a module is the class of the task ``name``, defined there."""
    return isinstance(kind, type) and getattr(kind, "name", "") == name and kind.__module__ == module.__name__


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
