"""Methods by their names: the modules of ``fedapps/methods``, the entry points of other packages, and files.

A method in a file or a notebook needs no package. The environment variable ``FEDAPPS_METHODS`` names such files, so
that the processes of a simulation, which inherit it, know the same methods. It never travels in a message: a deployed
node runs only methods that are installed on it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # pickles the classes of scripts and notebooks by value

from fedapps import methods
from fedapps.base.options import option_fields, option_values, parse_options, under_prefix
from fedapps.methods.base import Method

from . import Registry
from .expressions import Expression, read_expression

_VARIABLE = "FEDAPPS_METHODS"
#: Holds the pickled classes of this process, and is deleted with it.
_folder: tempfile.TemporaryDirectory[str] | None = None


def local_methods() -> Mapping[str, type[Method]]:
    """The classes of the files that ``FEDAPPS_METHODS`` names, by the names of the methods.

    Raises
    ------
    ValueError
        A file is missing, cannot be imported or has no method, or two of them have methods of the same name.
    """
    return _of_files(os.environ.get(_VARIABLE, ""))


def use_file(path: Path) -> None:
    """Make the methods of a Python file known in this process and in those that it starts.

    Raises
    ------
    ValueError
        As :func:`local_methods`.
    """
    files = [name for name in os.environ.get(_VARIABLE, "").split(os.pathsep) if name]
    joined = os.pathsep.join(dict.fromkeys([*files, str(path.absolute())]))
    _of_files(joined)
    os.environ[_VARIABLE] = joined


def named(methods: str | Iterable[str | Method | type[Method]]) -> str:
    """Methods as the run config names them.

    Parameters
    ----------
    methods : str, or iterable of str, Method or subclass of Method
        A class that is not installed becomes known in this process and in those that it starts. It can be defined in a
        script or a notebook.

    Returns
    -------
    str
        Such as ``fedavg,mine(mu=0.1)``.
    """
    if isinstance(methods, str):
        return methods
    return ",".join(method if isinstance(method, str) else _expression(method) for method in methods)


def _expression(source: Method | type[Method]) -> str:
    method = source() if isinstance(source, type) else source
    if method.name not in METHODS.own:
        _use_class(type(method))
    default = option_values(type(method).Options())
    changed = [(key, value) for key, value in option_values(method.options).items() if value != default[key]]
    return Expression(method.name, tuple((key, _text(value)) for key, value in changed)).label


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_class(kind: type[Method]) -> None:
    global _folder
    _folder = _folder or tempfile.TemporaryDirectory(prefix="fedapps-methods-")
    content = cloudpickle.dumps(kind)
    path = Path(_folder.name) / f"{kind.name}-{hashlib.sha256(content).hexdigest()[:12]}.pickle"
    path.write_bytes(content)
    earlier = [name for name in os.environ.get(_VARIABLE, "").split(os.pathsep) if name]
    replaced = [name for name in earlier if not Path(name).name.startswith(f"{kind.name}-")]
    os.environ[_VARIABLE] = os.pathsep.join(replaced)
    use_file(path)


@lru_cache(maxsize=8)
def _of_files(joined: str) -> Mapping[str, type[Method]]:
    methods: dict[str, type[Method]] = {}
    for name in filter(None, joined.split(os.pathsep)):
        kinds = _kinds(Path(name))
        if twice := sorted(kinds.keys() & methods.keys()):
            raise ValueError(f"{name}: the method {twice[0]!r} is also in another file: give one of them another name")
        methods |= kinds
    return methods


def _kinds(path: Path) -> dict[str, type[Method]]:
    if not path.is_file():
        raise ValueError(
            f"method file {path}: no such file; give a Python file with a subclass of fedapps.methods.base.Method"
        )
    try:
        values: Iterable[Any] = [_unpickled(path)] if path.suffix == ".pickle" else vars(_module(path)).values()
    except Exception as error:  # other people's code: whatever it raises, say whose it is
        raise ValueError(f"method file {path} cannot be imported ({type(error).__name__}: {error})") from error
    kinds = [kind for kind in values if isinstance(kind, type) and issubclass(kind, Method) and "name" in vars(kind)]
    methods = {kind.name: kind for kind in kinds if not kind.__module__.startswith("fedapps.")}
    if not methods:
        raise ValueError(f"method file {path}: has no subclass of fedapps.methods.base.Method with a name")
    return methods


def _module(path: Path) -> ModuleType:
    name = f"method_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError("its name must end in .py")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _unpickled(path: Path) -> Any:
    return cloudpickle.loads(path.read_bytes())


#: Prefix of the arguments that set a key of the run for one method: ``fedavg(run.learning-rate=0.01)``.
RUN_PREFIX = "run."
METHODS: Registry[Method] = Registry(methods, Method, "fedapps.methods", "methods", local_methods)
#: The names of all methods, without aliases, this package's first.
method_names = METHODS.names
#: The class of a method by its name, not by an alias.
method_class = METHODS.find


@cache
def own_aliases() -> Mapping[str, Expression]:
    """Other names of this package's methods, and what they stand for."""
    return _aliases_of(METHODS.own)


def aliases() -> Mapping[str, Expression]:
    """Other names of all methods, and what they stand for; this package's names go before those of other packages."""
    taken = {*own_aliases(), *method_names()}
    others = {a: meaning for a, meaning in _aliases_of(METHODS.usable()).items() if a not in taken}
    return {**own_aliases(), **others}


def _aliases_of(kinds: Mapping[str, type[Method]]) -> dict[str, Expression]:
    return {
        alias: read_expression(meaning or name)
        for name, kind in kinds.items()
        for alias, meaning in kind.aliases.items()
    }


@dataclass(frozen=True)
class Call:
    """A method's name and arguments, with aliases resolved."""

    name: str
    arguments: Mapping[str, str]

    @property
    def own(self) -> dict[str, str]:
        """The arguments that set options of the method."""
        return {key: text for key, text in self.arguments.items() if not key.startswith(RUN_PREFIX)}

    @property
    def run(self) -> dict[str, str]:
        """The arguments that set keys of the run for this method, without the prefix ``run.``."""
        return under_prefix(RUN_PREFIX, dict(sorted(self.arguments.items())))


def resolved(expression: Expression) -> Call:
    """What an expression stands for. Raises ``ValueError`` for an unknown name."""
    known = own_aliases()
    if expression.name not in known and expression.name not in method_names():
        known = aliases()  # imports the methods of other packages
    named = known.get(expression.name, expression)
    return Call(method_class(named.name).name, {**dict(named.arguments), **dict(expression.arguments)})


def build_method(expression: Expression, blocks: Mapping[str, Any]) -> Method:
    """The method of an expression.

    Parameters
    ----------
    expression : Expression
        Its arguments go before the ``blocks``.
    blocks : mapping
        Flat keys of the run config such as ``fedprox.mu``; those of other methods are ignored.

    Raises
    ------
    ValueError
        The name or an option is unknown, or a value is not allowed; the message has a line per error.
    """
    call = resolved(expression)
    kind, prefix = method_class(call.name), f"{call.name}."
    arguments, errors = parse_options(kind.Options, under_prefix(prefix, blocks), prefix)
    typed = {key: typed_argument(kind.Options, key, text) for key, text in call.own.items()}
    parsed, bad = parse_options(kind.Options, typed, prefix)
    if errors or bad:
        raise ValueError("\n".join([*errors, *bad]))
    options: Any = kind.Options(**(arguments | parsed))
    return kind(options)


@cache
def canonical(label: str) -> str:
    """The label of the same method without aliases and without arguments that are the defaults.

    Arguments that set keys of the run are kept.
    """
    call = resolved(read_expression(label))
    kind = method_class(call.name)
    differing = {
        key: text
        for key, value in option_values(kind.Options()).items()
        if (text := call.arguments.get(key)) is not None and typed_argument(kind.Options, key, text) != value
    }
    differing |= {RUN_PREFIX + key: text for key, text in call.run.items()}
    return Expression(call.name, tuple(differing.items())).label


def options_of(name: str) -> Mapping[str, Any]:
    """The default options of a method, by their keys in the run config."""
    return {f"{name}.{key}": value for key, value in option_values(method_class(name).Options()).items()}


def method_lines() -> Mapping[str, str]:
    """One line of help for each method, with its aliases; why it cannot be used for a damaged one."""
    known = aliases()

    def line(kind: type[Method]) -> str:
        others = [alias for alias, meaning in known.items() if meaning.name == kind.name]
        return kind.summary + (f" [also: {', '.join(others)}]" if others else "")

    return METHODS.lines(line)


def queries() -> tuple[str, ...]:
    """The names of the QUERY messages that nodes answer for their methods."""
    return tuple(dict.fromkeys(query for kind in METHODS.usable().values() for query in kind.queries))


def typed_argument(options: type, key: str, text: str) -> Any:
    """The text of an argument as its option's type, or unchanged where it is none; then it is refused as it stands."""
    known = option_fields(options)
    kind: Any = type(known[key].default) if key in known else str
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        return kind(text)
    except ValueError:
        return text
