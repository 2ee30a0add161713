"""Retries of calls to the SuperLink after transient failures: an interrupted connection, a locked database."""

import time
from collections.abc import Callable
from logging import WARNING
from typing import TypeVar

from flwr.common.logger import log
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from .sanitize import MAX_NAME_LENGTH, truncate

#: Seconds before each retry; the failure after the last retry is raised.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Exceptions that Flower raises if it cannot decode what a node sent.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, DecodeError)

Result = TypeVar("Result")


def retry(call: Callable[[], Result]) -> Result:
    """Call a function, and retry up to five times within 31 s after failures that may be transient.

    Flower's calls can be repeated: a message that is pushed twice is delivered once.

    Parameters
    ----------
    call : function without arguments
        A call to the SuperLink.

    Returns
    -------
    object
        The result of ``call``.

    Raises
    ------
    Exception
        What ``call`` raised last; exceptions in :data:`UNREADABLE` and ``RuntimeError`` are raised at once.
    """
    for pause in PAUSES:
        try:
            return call()
        except (*UNREADABLE, RuntimeError):  # a retry would fail in the same way
            raise
        except Exception as error:  # the exception types differ between versions of Flower
            reason = truncate(f"{type(error).__name__}: {error}".partition("\n")[0], MAX_NAME_LENGTH)
            log(WARNING, "a call to the SuperLink failed (%s); retrying in %g s", reason, pause)
        time.sleep(pause)
    return call()
