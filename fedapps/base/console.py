"""Standard output and error that no text can make fail: what their encoding lacks is written in other characters.

Consoles, containers and the code pages of Windows have encodings without ``±`` or ``τ``, and file names can have bytes
that are no text in any encoding. By default Python raises an error when a program prints such characters, which would
end a job of hours.
"""

import codecs
import io
import os
import sys
from collections.abc import Mapping

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
