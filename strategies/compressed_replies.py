"""A Flower mod with which nodes send the change of the parameters in fewer bytes.

A lossy compression C leaves an error. With error feedback a node keeps it and adds it to its next update: it sends
C(Δ + e) and keeps e ← Δ + e − C(Δ + e), so that nothing is lost in the long run (Seide et al., 1-Bit Stochastic
Gradient Descent, Interspeech 2014; Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, Algorithm 1; with
partial participation Sattler et al., Robust and Communication-Efficient Federated Learning from Non-IID Data, 2019,
Algorithm 2).

A node needs one line: ``@app.train(mods=[compression_mod])`` compresses its replies whenever the server asks for it. A
node without it replies as before, and the server accepts both.
"""

from collections.abc import Callable, Mapping
from glob import escape
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from . import wire
from .arrays import Arrays, Buffers, from_record, shared_record, to_record, views, without
from .compression import Compression, compression_by_name

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
    untrained = wire.names_in(message.content.get(wire.CONFIG), wire.UNTRAINED)
    received = without(views(shared_record(message.content)), untrained)
    reply = call_next(message, context)
    if not reply.has_error():
        compress_reply(reply, received, compression, memory_of(message, context), declared_buffers(message))
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


def declared_buffers(message: Message) -> Buffers:
    """The buffers that the config of a TRAIN message names, and those that always are.

    Raises
    ------
    ValueError
        The config has no list of names under ``buffers``.
    """
    return Buffers(tuple(map(escape, wire.names_in(message.content.get(wire.CONFIG), wire.BUFFERS))))


def compress_reply(
    reply: Message,
    received: Arrays,
    compression: Compression,
    memory: ErrorMemory,
    buffers: Buffers = Buffers(),  # noqa: B008 - immutable
) -> None:
    """Replace the parameters in a reply to TRAIN by their compressed change.

    Parameters
    ----------
    reply : Message
        Has the record ``arrays``, which keeps the buffers and the integer and boolean arrays.
    received : dict of arrays
        What the node received.
    compression : Compression
    memory : ErrorMemory
        Read and written if the compression has error feedback. An error in another form than the arrays, as of another
        model, is ignored.
    buffers : Buffers
        Which arrays are not trained.

    Raises
    ------
    ValueError
        The names or shapes of the parameters differ from those received, or a value is not finite.
    """
    arrays = views(shared_record(reply.content))
    floats, before = buffers.parameters(arrays), buffers.parameters(received)
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
    reply.content[wire.ARRAYS] = to_record({name: array for name, array in arrays.items() if name not in floats})
    for name, record in records.items():
        reply.content[name] = to_record(record)


def _form(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
