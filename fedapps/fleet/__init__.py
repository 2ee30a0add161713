"""A SuperLink and its SuperNodes on this machine, for one run: ``python -m fedapps fleet``."""

from .command import run_fleet

__all__ = ["run_fleet"]
