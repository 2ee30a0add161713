"""Compressed replies on both sides: nodes compress what they return, the server restores it.

A node needs one line: ``@app.train(mods=[compression_mod])`` compresses its replies whenever the server asks for it. A
node without it replies as before, and the server accepts both.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from . import wire
from .arrays import Arrays, from_record, is_float, to_record, views
from .compression import Compression, compression_by_name, floats_of

Next = Callable[[Message, Context], Message]
_ERROR = "compression.error"


class ErrorMemory(Protocol):
    """Where a node keeps the error of its last compression."""

    def load(self) -> Arrays:
        """The error of the last reply; empty if there is none."""

    def save(self, error: Arrays) -> None:
        """Keep an error in place of the last one."""


class ContextMemory:
    """The error in Flower's ``Context.state``."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def load(self) -> Arrays:
        kept = self._state.get(_ERROR)
        return from_record(kept) if isinstance(kept, ArrayRecord) else {}

    def save(self, error: Arrays) -> None:
        self._state[_ERROR] = to_record(error)


def compression_mod(message: Message, context: Context, call_next: Next) -> Message:
    """A Flower mod that compresses the reply to a TRAIN message if its config asks for it.

    The error of the compression stays in ``Context.state``. Use it as the outermost mod of ``@app.train``.

    Raises
    ------
    ValueError
        The config names an unknown compression or an invalid share, or the reply has other arrays than the message.
    """
    return compressed(message, context, call_next, lambda _, context: ContextMemory(context))


def compressed(
    message: Message, context: Context, call_next: Next, memory_of: Callable[[Message, Context], ErrorMemory]
) -> Message:
    """As :func:`compression_mod`, with the error in another memory, which is opened only where it is needed."""
    if (compression := requested(message)) is None:
        return call_next(message, context)
    received = views(message.content.array_records[wire.ARRAYS])
    reply = call_next(message, context)
    if not reply.has_error():
        compress_reply(reply, received, compression, memory_of(message, context))
    return reply


def requested(message: Message) -> Compression | None:
    """The compression that the config of a TRAIN message asks for; ``None`` if it asks for none.

    Raises
    ------
    ValueError
        The name is unknown or the share is invalid.
    """
    config = message.content.get(wire.CONFIG)
    if not isinstance(config, ConfigRecord) or wire.COMPRESSION not in config:
        return None
    share = config.get(wire.COMPRESSION_SHARE, 1.0)
    if not isinstance(share, float):
        raise ValueError(f"config {wire.COMPRESSION_SHARE} = {share!r}: must be a float")
    return compression_by_name(str(config[wire.COMPRESSION]), share)


def compress_reply(reply: Message, received: Arrays, compression: Compression, memory: ErrorMemory) -> None:
    """Replace the floating-point arrays of a reply to TRAIN by their compressed change.

    Parameters
    ----------
    reply : Message
        Has the record ``arrays``, which keeps the integer and boolean arrays.
    received : dict of arrays
        What the node received.
    compression : Compression
    memory : ErrorMemory
        Read and written if the compression has error feedback. An error in another form than the arrays, as of another
        model, is ignored.

    Raises
    ------
    ValueError
        The names or shapes of the floating-point arrays differ from those received, or a value is not finite.
    """
    arrays = views(reply.content.array_records[wire.ARRAYS])
    floats, before = floats_of(arrays), floats_of(received)
    if _form(floats) != _form(before):
        raise ValueError("the arrays of the reply differ from those received, so that their change is undefined")
    if not floats:
        return
    error = memory.load() if compression.error_feedback else {}
    update = {name: array.astype(np.float64) - before[name] for name, array in floats.items()}
    if error and _form(error) == _form(before):
        update = {name: change + error[name] for name, change in update.items()}
    if wild := [name for name, change in update.items() if not np.isfinite(change).all()]:
        raise ValueError(f"values are not finite: {', '.join(wild)}; they cannot be compressed")
    records = compression.encode(update)
    if compression.error_feedback:
        restored = compression.decode(records, before)
        memory.save({name: np.asarray((update[name] - restored[name]).astype(before[name].dtype)) for name in update})
    reply.content[wire.ARRAYS] = to_record({name: array for name, array in arrays.items() if not is_float(array)})
    for name, record in records.items():
        reply.content[name] = to_record(record)


def restored_arrays(content: RecordDict, expected: Arrays, compression: Compression) -> Arrays | None:
    """The floating-point arrays of a compressed reply; ``None`` if the reply is not compressed.

    Raises
    ------
    ValueError
        The records cannot be decoded or have another form than the compression's.
    """
    records = {
        name: views(record)
        for name, record in content.items()
        if name.startswith(wire.COMPRESSED_PREFIX) and isinstance(record, ArrayRecord)
    }
    return compression.restore(records, floats_of(expected)) if records else None


def _form(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
