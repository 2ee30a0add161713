"""What this project uses of Flower beyond its public interface: private names, its own modules, replaced methods.

Another version of Flower may change them. No other module depends on them, and
``tests/conformance/test_flower_internals.py`` checks each with every tested version.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from flwr.app import Array, Error, Message
from flwr.common.constant import FAB_EXCLUDE_PATTERNS, FAB_INCLUDE_PATTERNS, ErrorCode
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

__all__ = [
    "FAB_EXCLUDE_PATTERNS",
    "FAB_INCLUDE_PATTERNS",
    "direct_arrays",
    "empty_run",
    "error_reply",
    "flower_identity",
    "poll_every",
    "received_copy",
    "set_message_id",
    "simulates_nodes",
    "unavailable_reply",
]

Thing = TypeVar("Thing")


@contextmanager
def flower_identity(run_id: int = 1, node_id: int = 1) -> Iterator[None]:
    """Set the process identity with which Flower stamps every message, for code outside a Flower process."""
    before = {name: getattr(TaskIdentity, name) for name in ("_task_id", "_run_id", "_node_id")}
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = 1, run_id, node_id
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


def empty_run(run_id: int) -> Run:
    """A run of which only the id is known."""
    return Run.create_empty(run_id)


def simulates_nodes(grid: object) -> bool:
    """Whether a grid is that of Flower's simulation engine, which is in another module in each version of Flower."""
    return type(grid).__name__ == "InMemoryGrid"


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink does when it is pushed."""
    message.metadata.__dict__["_message_id"] = message_id


def error_reply(message: Message, reason: str) -> Message:
    """The reply that Flower sends for a ClientApp that raised an exception."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def unavailable_reply(message: Message, reason: str) -> Message:
    """The reply of a SuperLink to a message whose node has gone offline."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)


def received_copy(message: Message) -> Message:
    """A copy of a message, as over a network. The bytes of arrays are shared, because nobody can change them."""
    received, content = _shallow(message), message.content.copy()
    records = content.__dict__["_data"]  # the dictionary inside; its own methods check types again
    for name, record in message.content.items():
        records[name] = own = record.copy()
        values = own.__dict__["_data"]
        for key, value in record.items():
            if isinstance(value, Array):
                values[key] = _shallow(value)
            elif isinstance(value, list):  # all other values are immutable
                values[key] = value.copy()
    received.__dict__ |= {"_metadata": _shallow(message.metadata), "_content": content}
    return received


def _shallow(thing: Thing) -> Thing:
    """A shallow copy, in less time than ``copy.copy`` takes."""
    copied = object.__new__(type(thing))
    copied.__dict__ |= thing.__dict__
    return copied


@contextmanager
def direct_arrays() -> Iterator[None]:
    """Until the context ends, encode Flower's arrays with one copy of the values, and decode them with one.

    ``flwr.app.Array`` encodes with ``np.save`` and decodes with ``np.load``, which copy two or three times and parse a
    header each time. Apps that follow Flower's template call them in every message. Here both take the way of
    :mod:`fedapps.strategies.arrays`. Bytes, arrays and errors are the same.
    """
    from fedapps.strategies import arrays  # a SuperNode needs none of the server's modules

    decode, encode = Array.numpy, Array.__dict__["from_numpy_ndarray"]

    def numpy(array: Array) -> NDArray[Any]:
        try:
            view = arrays.decode(array)
        except ValueError:
            return decode(array)  # raises Flower's error
        return view.copy(order="K")  # the app may write into it

    def from_numpy_ndarray(cls: type[Array], ndarray: NDArray[Any]) -> Array:
        if arrays.is_plain(ndarray):
            return arrays.encode(ndarray)
        array: Array = encode.__func__(cls, ndarray)
        return array

    Array.numpy = numpy  # type: ignore[method-assign, assignment]
    Array.from_numpy_ndarray = classmethod(from_numpy_ndarray)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Array.numpy = decode  # type: ignore[method-assign]
        Array.from_numpy_ndarray = encode  # type: ignore[method-assign]


def poll_every(seconds: float) -> None:
    """Let the SuperNode of this process pause at most so long between two polls for messages."""
    import_module("flwr.supernode.start_client_internal").time = _Clock(seconds)  # type: ignore[attr-defined]


class _Clock:
    """The module ``time`` with shorter pauses."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
