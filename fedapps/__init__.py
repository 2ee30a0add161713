"""fedapps: federated learning for robots and personal devices on Flower.

:func:`run` and :func:`compare` are the commands of ``python -m fedapps`` as Python functions, :func:`open_run` reads
what they left, :func:`load` gives a trained model, and :func:`adapt` one for a new node. Importing the package loads
neither torch nor Flower; a function's module is imported when the function is first used.

``fedapps.strategies``, ``fedapps.clients``, ``fedapps.tasks`` and ``fedapps.sim`` are parts of this package. A wheel
has them in its folder; in the repository and in a Flower bundle they are folders beside it.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import compare, open_run, run
    from .trained.adapt import adapt
    from .trained.export import export
    from .trained.load import load
    from .trained.watch import watch

__all__ = ["adapt", "compare", "export", "load", "open_run", "run", "watch"]

if not Path(__file__).with_name("strategies").is_dir():
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    """A function of the Python interface (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "api" if name in ("compare", "open_run", "run") else f"trained.{name}"
    return getattr(import_module(f"{__name__}.{module}"), name)
