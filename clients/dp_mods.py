"""Flower's differential-privacy mods on any model and any client.

``LocalDpMod``, ``fixedclipping_mod`` and ``adaptiveclipping_mod`` of Flower 1.39 work on messages that hold nothing but
floating-point arrays of at least one dimension. Beyond that they fail, some of them silently:

- an array without dimensions is neither clipped nor gets noise (``LocalDpMod``): it travels as it is;
- an integer array, such as the counter of a batch normalisation, raises an error, as does an update of 0, and a
  message in which nothing is shared;
- a message that brings another record beside the arrays is refused;
- a fault in the reply is reported in answer to that reply, so the server waits for the node until its timeout;
- values that are not finite make every other value of the update pass unclipped.

And they take every message for a TRAIN message: give them to ``@app.train(mods=[...])``, not to ``ClientApp``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]
#: One number more in every update, so that none is 0; too small to change a norm.
_GUARD, _LEAST = "dp-guard", 1e-150


def on_floats(mod: Mod, seed: int | None = None) -> Mod:
    """The mod, shown only what it can handle: the floating-point arrays, as arrays of one dimension or more.

    It sees the record ``arrays`` of the message, its record ``config``, and the same arrays of the reply; all else
    passes it by. Arrays that are not floating-point go back as they came. ``seed`` makes its draws from NumPy's global
    state repeatable, which is for experiments: ``None`` has the operating system start them anew, also in
    processes that are copies of each other. The global state itself is left as it was.

    The wrapped mod raises ``ValueError`` where a reply brings ArrayRecords beside ``arrays``, which the mod would not
    protect, where names or shapes differ from those received, and where values are not finite.
    """

    def guarded(message: Message, context: Context, call_next: Next) -> Message:
        received = message.content["arrays"]
        assert isinstance(received, ArrayRecord)
        sent = {name: array.numpy() for name, array in received.items()}
        shown = Message(RecordDict({"arrays": _shown(sent, 0.0)}), message.metadata.dst_node_id, "train")
        if "config" in message.content:
            shown.content["config"] = message.content["config"]
        reply = call_next(message, context)
        if reply.has_error() or not any(_is_float(array) for array in sent.values()):
            return reply
        content = RecordDict({**reply.content, "arrays": _shown(_returned(reply, sent), _LEAST)})
        answer = Message(content, reply_to=shown)
        with _drawing(seed):  # training is over: its own draws are its own affair
            outcome = mod(shown, context, lambda *_: answer)
        if outcome.has_error():
            return Message(outcome.error, reply_to=message)
        for name, record in outcome.content.items():
            reply.content[name] = record
        reply.content["arrays"] = _restored(outcome.content.array_records["arrays"], sent)
        return reply

    return guarded


def _returned(reply: Message, sent: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The reply's arrays in the order of ``sent``."""
    beside = [name for name, record in reply.content.items() if isinstance(record, ArrayRecord) and name != "arrays"]
    if beside:
        raise ValueError(f"the reply has {', '.join(beside)} beside the arrays, which would travel unprotected")
    arrays = {name: array.numpy() for name, array in reply.content.array_records["arrays"].items()}
    if arrays.keys() != sent.keys() or any(arrays[name].shape != array.shape for name, array in sent.items()):
        raise ValueError("the names or shapes of the arrays in the reply differ from those received")
    wild = [name for name, array in arrays.items() if _is_float(array) and not np.isfinite(array).all()]
    if wild:
        raise ValueError(f"values are not finite: {', '.join(wild)}; they cannot be clipped, nothing is sent")
    return {name: arrays[name] for name in sent}


def _shown(arrays: dict[str, np.ndarray], guard: float) -> ArrayRecord:
    floats = {name: Array(np.atleast_1d(array)) for name, array in arrays.items() if _is_float(array)}
    return ArrayRecord({**floats, _GUARD: Array(np.array([guard]))})


def _restored(shown: ArrayRecord, sent: dict[str, np.ndarray]) -> ArrayRecord:
    back = {name: shown[name].numpy().reshape(a.shape) if _is_float(a) else a for name, a in sent.items()}
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in back.items()})


def _is_float(array: np.ndarray) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


@contextmanager
def _drawing(seed: int | None) -> Iterator[None]:
    before = np.random.get_state()  # noqa: NPY002 - Flower's mods draw from the global state
    np.random.seed(None if seed is None else [seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
