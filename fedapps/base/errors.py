"""Errors that all folders raise, what a person reads of one, and the check that a package is installed."""

from collections.abc import Iterable
from importlib.util import find_spec


class DataError(ValueError):
    """Missing or malformed data. The message names the file and the line, and says what is expected."""


class DivergedError(RuntimeError):
    """The values of a model that was trained or is evaluated are not finite."""


class ReportError(ValueError):
    """A run folder has missing or malformed files; the message names the file, the line and the problem."""


def headline_of(reason: str) -> str:
    """The line of a reason that says most: the last one of a traceback, and the first one of any other text."""
    lines = [line.removeprefix("  | ").strip() for line in reason.splitlines()]
    filled = [line for line in lines if line] or [""]
    return filled[-1] if filled[0].startswith("Traceback") else filled[0]


def listed(names: Iterable[object], most: int) -> str:
    """The first ``most`` of some names, and how many more there are, such as "a, b and 3 more"."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def need(package: str, extra: str, purpose: str) -> None:
    """Check that a package is installed, before it is imported.

    Parameters
    ----------
    package : str
        The name of its module.
    extra : str
        The extra of fedapps that installs it.
    purpose : str
        What needs it, such as the key and its value.

    Raises
    ------
    DataError
        It is not installed.
    """
    if find_spec(package) is None:
        raise DataError(
            f"{purpose} needs the package {package}, which is not installed: pip install 'fedapps[{extra}]'"
        )
