"""fedapps: federated learning for robots and personal devices on Flower.

:func:`run` and :func:`compare` are the commands of ``python -m fedapps`` as Python functions, and :func:`open_run`
reads what they left. Importing the package loads neither torch nor Flower; the functions load what they need.
"""

from .api import compare, open_run, run

__all__ = ["compare", "open_run", "run"]
