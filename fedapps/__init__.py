"""fedapps: federated learning for robots and personal devices on Flower.

:func:`run` and :func:`compare` are the commands of ``python -m fedapps`` as Python functions, :func:`open_run` reads
what they left, :func:`load` gives a trained model, and :func:`adapt` one for a new node. Importing the package loads
neither torch nor Flower; the functions load what they need.

``fedapps.strategies``, ``fedapps.clients``, ``fedapps.tasks`` and ``fedapps.sim`` are parts of this package. A wheel
has them in its folder; in the repository and in a Flower bundle they are folders beside it.
"""

from pathlib import Path

from .api import adapt, compare, export, load, open_run, run, watch

__all__ = ["adapt", "compare", "export", "load", "open_run", "run", "watch"]

if not Path(__file__).with_name("strategies").is_dir():
    __path__.append(str(Path(__file__).parents[1]))
