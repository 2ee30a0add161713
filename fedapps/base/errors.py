"""What a person reads: errors that all folders raise, and standard output and error that no text can make fail.

Consoles, containers and the code pages of Windows have encodings without ``±`` or ``τ``, and file names can have bytes
that are no text in any encoding. By default Python raises an error when a program prints such characters, which would
end a job of hours. Here, what an encoding lacks is written in other characters.
"""

import codecs
import io
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


class DataError(ValueError):
    """Missing or malformed data. The message names the file and the line, and says what is expected."""


class DivergedError(RuntimeError):
    """The values of a model that was trained or is evaluated are not finite."""


class RunFailedError(RuntimeError):
    """A run did not finish; the message names its folder, which has everything that was trained."""


class ReportError(ValueError):
    """A run folder has missing or malformed files; the message names the file, the line and the problem."""


def headline_of(reason: str) -> str:
    """The line of a reason that says most: the last one of a traceback, and the first one of any other text."""
    lines = [line.removeprefix("  | ").strip() for line in reason.splitlines()]
    filled = [line for line in lines if line] or [""]
    return filled[-1] if filled[0].startswith("Traceback") else filled[0]


def ends_of(text: str, most: int) -> str:
    """A text on one line; one of more than ``most`` characters without its middle: the end of a traceback says most."""
    line = " ".join(text.split())
    first = most // 3
    return line if len(line) <= most else f"{line[:first]} ... {line[first - most :]}"


def listed(names: Iterable[object], most: int) -> str:
    """The first ``most`` of some names, and how many more there are, such as "a, b and 3 more"."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def need(module: str, extra: str, purpose: str) -> Any:
    """Import a module of a package that not every installation has.

    Parameters
    ----------
    module : str
        Such as ``pyarrow.parquet``.
    extra : str
        The extra of fedapps that installs the package.
    purpose : str
        What needs it, such as the key and its value.

    Returns
    -------
    module

    Raises
    ------
    DataError
        The package is not installed.
    """
    require_package(module.partition(".")[0], extra, purpose)
    return import_module(module)


def require_package(package: str, extra: str, purpose: str) -> None:
    """Raise :class:`DataError` if a package is not installed, without importing it; arguments as of :func:`need`."""
    if find_spec(package) is None:
        raise DataError(
            f"{purpose} needs the package {package}, which is not installed: pip install 'fedapps[{extra}]'"
        )


_ERRORS = "fedapps.readable"
_VARIABLE = "PYTHONIOENCODING"
#: How frequent characters are written where an encoding lacks them; others as escapes, such as ``\u4e2d``.
_READABLE = {
    "±": "+-", "×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "→": "->", "≥": ">=", "≤": "<=", "≈": "~",
    "τ": "tau", "ε": "epsilon", "δ": "delta", "μ": "mu", "µ": "mu", "λ": "lambda", "σ": "sigma", "η": "eta", "✓": "ok",
    "“": '"', "”": '"', "‘": "'", "’": "'", "²": "^2",
}  # fmt: skip


def accept_all_text() -> None:
    """Let standard output and error of this process, and of the Python processes that it starts, show any text.

    Every program of this package calls it first. Streams that are not of the usual kind, such as those of a notebook,
    stay as they are.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != _ERRORS:
            stream.reconfigure(errors=_ERRORS)
    os.environ.update(text_environment(os.environ))


def text_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variable with which Python processes write escapes for what their encoding lacks.

    Parameters
    ----------
    environment : mapping
        Its ``PYTHONIOENCODING`` may name an encoding, which is kept.
    """
    return {_VARIABLE: f"{environment.get(_VARIABLE, '').partition(':')[0]}:backslashreplace"}


def _readable(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    shown = (_READABLE.get(char) or char.encode("ascii", "backslashreplace").decode() for char in lacking)
    return "".join(shown), error.end


codecs.register_error(_ERRORS, _readable)
