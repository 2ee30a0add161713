"""Flower's differential-privacy mods for any model and any client.

``LocalDpMod``, ``fixedclipping_mod`` and ``adaptiveclipping_mod`` of Flower 1.42 expect messages with floating-point
arrays of at least one dimension and no other records. With other messages they fail, partly without an error:

- an array without dimensions is sent without clipping and without noise (``LocalDpMod``);
- an integer array, such as the counter of a batch normalisation, raises an error, and so do an update of 0 and a
  message without shared parameters;
- a message with another record beside the arrays is rejected;
- an error about a reply is addressed to that reply, so the server waits for the node until its timeout;
- if one value is not finite, no value of the update is clipped;
- the statistics of a batch normalisation count in the norm and get noise, which can make a variance negative.

The mods treat every message as a TRAIN message: pass them to ``@app.train(mods=[...])``, not to ``ClientApp``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from fedapps.strategies.arrays import shared_record
from fedapps.strategies.wire import ARRAYS, BUFFERS, CONFIG, STATISTICS, UNTRAINED, names_in
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from .messages import Arrays, clipping_norm, read_arrays

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]
#: A further number in every update, so that no update is 0. It is too small to change a norm.
_GUARD, _LEAST = "dp-guard", 1e-150


def on_floats(mod: Mod, seed: int | None = None) -> Mod:
    """Return a mod that applies ``mod`` to the parameters of a reply alone.

    ``mod`` sees the records ``arrays`` and ``config`` of the message and the record ``arrays`` of the reply, with every
    array as one of at least one dimension. Buffers and arrays of other types are returned as they were received, and
    other records of the reply are sent as they are.

    Parameters
    ----------
    mod : Mod
    seed : int, optional
        Makes the noise repeatable, for experiments. With ``None`` the operating system seeds it for every message,
        also in forked processes. NumPy's global random state is restored afterwards.

    Returns
    -------
    Mod
        On the node it raises ``ValueError`` if the message has a clipping norm that is no number above 0, if the reply
        has further ArrayRecords, which ``mod`` would not protect, if names or shapes differ from those received, if a
        value is not finite, or if the statistics of a normalisation have changed.
    """

    def guarded(message: Message, context: Context, call_next: Next) -> Message:
        received = shared_record(message.content)
        config = message.content.config_records.get(CONFIG, ConfigRecord())
        clipping_norm(config)  # Flower's mods do not check it
        left_out = names_in(config, UNTRAINED)
        sent = {name: array for name, array in read_arrays(ARRAYS, received).items() if name not in left_out}
        parameters = _parameters(sent, config)
        shown = Message(RecordDict({ARRAYS: _shown(parameters, 0.0)}), message.metadata.dst_node_id, "train")
        if CONFIG in message.content:
            shown.content[CONFIG] = message.content[CONFIG]
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        returned = _returned(reply, sent)
        if not parameters:
            reply.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in sent.items()})
            return reply
        content = RecordDict({**reply.content, ARRAYS: _shown({n: returned[n] for n in parameters}, _LEAST)})
        answer = Message(content, reply_to=shown)
        with _drawing(seed):  # training has its own generators
            outcome = mod(shown, context, lambda *_: answer)
        if outcome.has_error():
            return Message(outcome.error, reply_to=message)
        for name, record in outcome.content.items():
            reply.content[name] = record
        protected = outcome.content.array_records[ARRAYS]
        restored = {name: protected[name].numpy().reshape(array.shape) for name, array in parameters.items()}
        reply.content[ARRAYS] = ArrayRecord({n: Array(np.asarray(a)) for n, a in {**sent, **restored}.items()})
        return reply

    return guarded


def _returned(reply: Message, sent: Arrays) -> Arrays:
    """The reply's arrays in the order of ``sent``."""
    beside = [name for name, record in reply.content.items() if isinstance(record, ArrayRecord) and name != ARRAYS]
    if beside:
        raise ValueError(f"the reply has {', '.join(beside)} beside the arrays, which would be sent without protection")
    arrays = {name: array.numpy() for name, array in shared_record(reply.content).items()}
    if arrays.keys() != sent.keys() or any(arrays[name].shape != array.shape for name, array in sent.items()):
        raise ValueError("the names or shapes of the arrays in the reply differ from those received")
    if reason := unreleasable(arrays, sent):
        raise ValueError(reason)
    return arrays


def unreleasable(trained: Arrays, received: Arrays) -> str:
    """Why trained arrays cannot be released with privacy; empty if they can. It depends on the data of the node."""
    floats = {name: array for name, array in trained.items() if array.dtype.kind == "f"}
    if wild := [name for name, array in floats.items() if not np.isfinite(array).all()]:
        return f"values are not finite: {', '.join(wild)}; they cannot be clipped, so nothing is sent"
    statistics = [name for name in floats if name in received and _is_statistic(name)]
    if changed := [name for name in statistics if not np.array_equal(trained[name], received[name])]:
        return (
            f"nothing is sent, because {', '.join(changed)}, the statistics of a normalisation over batches, have "
            "changed and cannot be released with privacy: use nn.GroupNorm or nn.LayerNorm, or keep them on the nodes"
        )
    return ""


def _shown(parameters: Arrays, guard: float) -> ArrayRecord:
    shown = {name: Array(np.atleast_1d(array)) for name, array in parameters.items()}
    return ArrayRecord({**shown, _GUARD: Array(np.array([guard]))})


def _parameters(arrays: Arrays, config: ConfigRecord) -> Arrays:
    """The arrays of floating-point numbers that are no buffers, by their names and by the config of the message."""
    declared = names_in(config, BUFFERS)
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return {name: array for name, array in floats.items() if not _is_statistic(name) and name not in declared}


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in STATISTICS


@contextmanager
def _drawing(seed: int | None) -> Iterator[None]:
    before = np.random.get_state()  # noqa: NPY002 - Flower's mods draw from the global state
    np.random.seed(None if seed is None else [seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
