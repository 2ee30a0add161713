"""What a node says of an error: the server gets its kind and an identifier, the details stay in the node's log.

The text of an error can hold what must not leave a node: paths, lines of a data file, shapes and values of private
parameters.
"""

import secrets
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from logging import ERROR
from typing import Any

from flwr.app import Context, Message
from flwr.common.logger import log

from fedapps.base.atomic import UnwritableError
from fedapps.base.console import accept_all_text
from fedapps.base.errors import DataError
from fedapps.clients.data import is_simulated
from fedapps.clients.limits import LimitError
from fedapps.clients.rules import RulesError
from fedapps.strategies.checks import truncate
from fedapps.tasks.profiles import OtherFilesError

Handler = Callable[[Message, Context], Message]
#: Key of the node config: a developer's switch, which sends the details of errors to the server.
SEND_ERRORS = "send-errors"
#: Errors whose kind tells the server's operator enough to ask for the right thing. These texts hold no data.
_KINDS: Mapping[type[Exception], str] = {
    OtherFilesError: "the node has other files of the frozen weights than the server; give it the server's",
    DataError: "the node's data are missing or cannot be used",
    UnwritableError: "the node cannot write a file, its disk may be full",
    LimitError: "the message asks for more steps or time than the node gives",
    MemoryError: "the message asks for more memory than the node gives",
}
_MAX_CHARACTERS = 20_000
_accept_all_text_once = cache(accept_all_text)


class NodeFailedError(RuntimeError):
    """Work on a node failed. The message is what the server may know."""


def sends_details(node_config: Mapping[str, Any]) -> bool:
    """Whether a node with this config sends the details of its errors.

    A simulated node does, because it runs on the machine of the server and has no data but the server's. No server can
    make a deployed node believe that it is simulated: ``partition-id`` and ``data-dir`` come from the node config,
    which is on the command line of the SuperNode, and not from messages or from the run config.
    """
    return bool(node_config.get(SEND_ERRORS, False)) or is_simulated(node_config)


def reported(error: Exception, what: str, node_config: Mapping[str, Any]) -> str:
    """Log an error on the node, and return what the server is sent.

    Parameters
    ----------
    error : Exception
        The error that is being handled.
    what : str
        What failed, for the log.
    node_config : mapping
        The node's.
    """
    plain = isinstance(error, (DataError, UnwritableError, LimitError, RulesError))
    details = str(error) if plain else f"{error}\n{''.join(traceback.format_exception(error))}"
    if sends_details(node_config):
        return details.encode(errors="backslashreplace").decode()  # a file name can have bytes that are no text
    if isinstance(error, RulesError):  # what the operator demands is no secret: the run has to fulfil it
        log(ERROR, "%s failed: %s", what, truncate(details, _MAX_CHARACTERS))
        return f"RulesError: {details}"
    identifier = secrets.token_hex(4)
    log(ERROR, "%s failed, error %s: %s", what, identifier, truncate(details, _MAX_CHARACTERS))
    kind = next((f": {text}" for kind, text in _KINDS.items() if isinstance(error, kind)), "")
    return f"{type(error).__name__}{kind}; the node's log has the details of error {identifier}"


def report_errors(message: Message, context: Context, call_next: Handler) -> Message:
    """A mod that raises :class:`NodeFailedError` for every error, with the text that Flower sends to the server."""
    _accept_all_text_once()
    try:
        return call_next(message, context)
    except Exception as error:
        what = f"the {message.metadata.message_type} message"
        raise NodeFailedError(reported(error, what, context.node_config)) from None
