"""Methods that are defined in a file or a notebook, without a package.

The environment variable ``FEDAPPS_METHODS`` names their files, so that the processes of a simulation, which inherit it,
know the same methods. It never travels in a message: a deployed node runs only methods that are installed on it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from fedapps.base.options import option_values
from fedapps.methods.base import Method

from .expressions import Expression

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


def named(methods: str | Iterable[str | Method | type[Method]], known: Iterable[str]) -> str:
    """Methods as the run config names them.

    Parameters
    ----------
    methods : str, or iterable of str, Method or subclass of Method
        A class that is not installed becomes known in this process and in those that it starts. It can be defined in a
        script or a notebook.
    known : iterable of str
        The names of installed methods.

    Returns
    -------
    str
        Such as ``fedavg,mine(mu=0.1)``.
    """
    if isinstance(methods, str):
        return methods
    installed = set(known)
    return ",".join(method if isinstance(method, str) else _expression(method, installed) for method in methods)


def _expression(source: Method | type[Method], installed: set[str]) -> str:
    method = source() if isinstance(source, type) else source
    if method.name not in installed:
        _use_class(type(method))
    default = option_values(type(method).Options())
    changed = [(key, value) for key, value in option_values(method.options).items() if value != default[key]]
    return Expression(method.name, tuple((key, _text(value)) for key, value in changed)).label


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_class(kind: type[Method]) -> None:
    import cloudpickle  # type: ignore[import-untyped]  # of Ray; pickles the classes of scripts and notebooks by value

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
    own = {kind.name: kind for kind in kinds if not kind.__module__.startswith("fedapps.")}
    if not own:
        raise ValueError(f"method file {path}: has no subclass of fedapps.methods.base.Method with a name")
    return own


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
    import cloudpickle

    return cloudpickle.loads(path.read_bytes())
