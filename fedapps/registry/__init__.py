"""What can be named in a run config: classes of this package, of others, and how they are found by name."""

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Generic, TypeVar

from fedapps import trackers
from fedapps.base.options import did_you_mean
from fedapps.trackers import Tracker

Kind = TypeVar("Kind")


class Registry(Generic[Kind]):
    """The subclasses of a class that have a ``name``.

    Parameters
    ----------
    package : module
        The package with a module for each of this project's classes.
    parent : type
        Their base class.
    group : str
        The group of the entry points of other packages.
    plural : str
        What the classes are, for messages, such as ``"methods"``.
    local : function
        Returns classes that no package has, by name.
    """

    def __init__(
        self,
        package: ModuleType,
        parent: type[Any],
        group: str,
        plural: str,
        local: Callable[[], Mapping[str, type[Kind]]] = dict,
    ) -> None:
        self.package, self.parent, self.group, self.plural, self.local = package, parent, group, plural, local

    @cached_property
    def own(self) -> Mapping[str, type[Kind]]:
        """The classes of this project by their names, sorted."""
        kinds_by_name: dict[str, type[Kind]] = {}
        for module in iter_modules(self.package.__path__):
            source = import_module(f"{self.package.__name__}.{module.name}")
            kinds = [kind for kind in vars(source).values() if isinstance(kind, type) and issubclass(kind, self.parent)]
            named: list[Any] = [kind for kind in kinds if kind.__module__ == source.__name__ and "name" in vars(kind)]
            kinds_by_name |= {kind.name: kind for kind in named}
        return dict(sorted(kinds_by_name.items()))

    def names(self) -> tuple[str, ...]:
        """The names of all classes, this project's first, then those of other packages."""
        return tuple(dict.fromkeys([*self.own, *plugins(self.group), *self.local()]))

    def find(self, name: str) -> type[Kind]:
        """The class of a name.

        Raises
        ------
        ValueError
            The name is unknown, or the entry point of another package cannot be used.
        """
        if name in self.own:
            return self.own[name]
        if name in self.local() and name not in plugins(self.group):
            return self.local()[name]
        if name not in plugins(self.group):
            known = f"; known {self.plural}: {', '.join(self.names())}"
            meant = did_you_mean_or_install(name, self.names(), known)
            raise ValueError(f"{name!r} is unknown{meant}")
        kind: type[Kind] = load(plugins(self.group)[name], self.parent)
        return kind

    def usable(self) -> Mapping[str, type[Kind]]:
        """All classes by their names, without those of other packages that cannot be imported."""
        kinds: dict[str, type[Kind]] = {}
        for name in self.names():
            try:
                kinds[name] = self.find(name)
            except ValueError:  # raised again when a run config names it
                continue
        return kinds

    def lines(self, describe: Callable[[type[Kind]], str]) -> dict[str, str]:
        """One line of help for each class; why it cannot be used for a damaged one."""
        lines = {}
        for name in self.names():
            try:
                lines[name] = describe(self.find(name))
            except ValueError as error:
                lines[name] = f"cannot be used: {error}"
        return lines


def stated(package: ModuleType, fields: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the classes of a package that have a ``name`` state in their bodies, by name, from its source alone.

    Nothing is imported: the methods import torch, which takes ten times as long as all else that ``fedapps list`` does.

    Parameters
    ----------
    package : module
    fields : iterable of str
        Names of class attributes that are literals.
    """
    wanted, statements = {"name", *fields}, {}
    for module in iter_modules(package.__path__):
        source = Path(package.__path__[0], f"{module.name}.py").read_text(encoding="utf-8")
        for part in ast.parse(source).body:
            body = part.body if isinstance(part, ast.ClassDef) else []
            pairs: list[tuple[ast.expr, ast.expr | None]] = [
                *((line.target, line.value) for line in body if isinstance(line, ast.AnnAssign)),
                *((line.targets[0], line.value) for line in body if isinstance(line, ast.Assign)),
            ]
            texts = {
                at.id: ast.literal_eval(value)
                for at, value in pairs
                if isinstance(at, ast.Name) and at.id in wanted and value
            }
            if "name" in texts:
                statements[texts["name"]] = texts
    return dict(sorted(statements.items()))


def did_you_mean_or_install(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """As :func:`did_you_mean`; ``otherwise`` if no name is close, and how to make a name of a package known."""
    install = "; if another package has it, install that, as with pip install -e FOLDER"
    return did_you_mean(name, known) or otherwise + install


def plugins(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group, such as ``fedapps.methods``, by name; none is loaded yet."""
    return _on_path(tuple(sys.path)).get(group, {})


@lru_cache(maxsize=8)
def _on_path(path: tuple[str, ...]) -> Mapping[str, Mapping[str, EntryPoint]]:
    """The entry points of fedapps by group and name on the import path ``path``, which must be the present one.

    A search reads the metadata of all installed packages, and parsing one run config asks hundreds of times.
    """
    points = entry_points()
    groups = [group for group in points.groups if group.startswith("fedapps.")]
    return {group: {point.name: point for point in points.select(group=group)} for group in groups}


def load(point: EntryPoint, parent: type) -> Any:
    """The class that an entry point names.

    Raises
    ------
    ValueError
        The import fails, or the object is no subclass of ``parent``, lacks what ``parent`` declares, or has another
        ``name`` than the entry point.
    """
    loaded, where = imported(point), _where(point)
    if not (isinstance(loaded, type) and issubclass(loaded, parent)):
        raise ValueError(f"{where}: must name a subclass of {parent.__module__}.{parent.__name__}, not {loaded!r}")
    if getattr(loaded, "name", "") != point.name:
        raise ValueError(
            f"{where}: the class must have name = {point.name!r}, not {getattr(loaded, 'name', '')!r}; change one of "
            "them, and reinstall the package after a change of its entry points"
        )
    if lacking := sorted(getattr(loaded, "__abstractmethods__", ())):
        raise ValueError(f"{where}: the class lacks {', '.join(lacking)}; define what {parent.__name__} declares")
    return loaded


def imported(point: EntryPoint) -> Any:
    """What an entry point names. Raises ``ValueError`` if its import fails."""
    try:
        return point.load()
    except Exception as error:  # other people's module: whatever it raises, say whose it is
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{_where(point)} cannot be imported ({reason}): correct the module, or reinstall its package if its entry "
            "points have changed"
        ) from error


def _where(point: EntryPoint) -> str:
    return f"entry point {point.name!r} = {point.value!r} of the group {point.group!r}"


#: The modules of ``fedapps/trackers``, and the entry points ``fedapps.trackers`` of others.
TRACKERS: Registry[Tracker] = Registry(trackers, Tracker, "fedapps.trackers", "trackers")
