"""The SuperLink, asked again where it fails for a moment: a break of the line, a database locked by many nodes."""

import time
from collections.abc import Callable
from logging import WARNING
from typing import TypeVar

from flwr.common.logger import log
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from .sanitize import MOST_IN_NAME, truncate

#: Seconds until it is asked again; after the last time its failure is raised.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: What Flower raises where it cannot put together what a node sent.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, DecodeError)

Answer = TypeVar("Answer")


def retry(ask: Callable[[], Answer]) -> Answer:
    """What ``ask`` gives; called again, up to five times in half a minute, where it raises what may pass.

    Flower's calls can be repeated: a message that is pushed twice is one message.
    """
    for pause in PAUSES:
        try:
            return ask()
        except (*UNREADABLE, RuntimeError):  # asking again would not mend it
            raise
        except Exception as error:  # Flower's own differ from version to version
            said = truncate(f"{type(error).__name__}: {error}".partition("\n")[0], MOST_IN_NAME)
            log(WARNING, "the SuperLink failed (%s); it is asked again in %g s", said, pause)
        time.sleep(pause)
    return ask()
