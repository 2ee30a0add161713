"""Compressed updates: nodes send the change of the parameters with fewer bytes, and the server restores them.

A lossy compression C leaves an error. With error feedback a node keeps it and adds it to its next update: it sends
C(Δ + e) and keeps e ← Δ + e − C(Δ + e), so that nothing is lost in the long run (Seide et al., 1-Bit Stochastic
Gradient Descent, Interspeech 2014; Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, Algorithm 1; with
partial participation Sattler et al., Robust and Communication-Efficient Federated Learning from Non-IID Data, 2019,
Algorithm 2).

A node needs one line: ``@app.train(mods=[compression_mod])`` compresses its replies whenever the server asks for it. A
node without it replies as before, and the server accepts both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from glob import escape
from math import floor
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray

from . import wire
from .arrays import Arrays, Buffers, from_record, in_blocks, shared_record, to_record, views, without
from .checks import require_one_of

#: The records of a compressed reply by their names on the wire.
Records = dict[str, Arrays]
#: Gives the change of a range of an array's values, in C order, as a new array of a dtype: float32 or float64.
Change = Callable[[slice, np.dtype[Any]], NDArray[Any]]
Next = Callable[[Message, Context], Message]
_ERROR = "compression.error"


class Compression(ABC):
    """How nodes compress their updates. Buffers and arrays of integers and booleans are sent as they are."""

    #: The value of the config key ``compression``.
    name: ClassVar[str]
    #: Whether nodes keep the error of a compression and add it to their next update.
    error_feedback: ClassVar[bool] = True

    @abstractmethod
    def encode(self, update: Arrays) -> Records:
        """Compress an update.

        Parameters
        ----------
        update : dict of float64 arrays
            The change of each floating-point array, finite.

        Returns
        -------
        dict of dicts of arrays
            The records to send, by their names on the wire.
        """

    @abstractmethod
    def read(self, records: Mapping[str, Arrays], sent: Arrays) -> dict[str, Change]:
        """Check the records of an update.

        Parameters
        ----------
        records : mapping of str to dict of arrays
            What a node sent, unchecked.
        sent : dict of arrays
            The floating-point arrays that the node received.

        Returns
        -------
        dict of functions
            The change of each array.

        Raises
        ------
        ValueError
            Records, names, shapes or dtypes are wrong.
        """

    def train_config(self) -> dict[str, str | float]:
        """Entries for the config of TRAIN messages."""
        return {wire.COMPRESSION: self.name}

    def decode(self, records: Mapping[str, Arrays], sent: Arrays) -> Arrays:
        """The update in the records of :meth:`read`.

        Returns
        -------
        dict of float64 arrays
            In the shapes of ``sent``; values may be infinite or not a number.
        """
        changes = self.read(records, sent)
        return {
            name: changes[name](slice(0, array.size), np.dtype(np.float64)).reshape(array.shape)
            for name, array in sent.items()
        }

    def restore(self, records: Mapping[str, Arrays], sent: Arrays) -> Arrays:
        """The node's arrays: the sum of ``sent`` and the update, in the dtype of ``sent``; see :meth:`read`.

        float16 is summed in float32. Where the change is 0, the bits stay, also those of −0.
        """
        changes = self.read(records, sent)
        with np.errstate(over="ignore", invalid="ignore"):  # the server refuses values that are not finite
            return {name: _restored(array, changes[name]) for name, array in sent.items()}


def _restored(sent: NDArray[Any], change_in: Change) -> NDArray[Any]:
    rows_first = np.ascontiguousarray(sent).reshape(sent.shape)
    restored, begin = np.empty(sent.shape, sent.dtype), 0
    dtype = np.result_type(sent.dtype, np.float32)
    for part, before in in_blocks(restored, rows_first):
        change = change_in(slice(begin, begin + part.size), dtype).reshape(part.shape)
        # −0 + 0 would be 0. Subtracting +0 changes no value, and 0 − (±0) is +0.
        np.subtract(0.0, change, out=change)
        np.subtract(before, change, out=part, casting="same_kind")
        begin += part.size
    return np.asarray(restored, order="F") if sent.flags.f_contiguous else restored


@dataclass(frozen=True)
class BFloat16(Compression):
    """The upper 16 bits of a float32, rounded to nearest, ties to even: half the bytes.

    The relative error of a normal number is at most 2⁻⁹, so nodes keep no error.
    """

    name: ClassVar[str] = "bf16"
    error_feedback: ClassVar[bool] = False

    def encode(self, update: Arrays) -> Records:
        return {wire.COMPRESSED_VALUES: {name: _upper_half(array) for name, array in update.items()}}

    def read(self, records: Mapping[str, Arrays], sent: Arrays) -> dict[str, Change]:
        values = _record(records, wire.COMPRESSED_VALUES, sent)
        for name, array in sent.items():
            _check(name, values[name], np.uint16, array.shape)
        return {name: partial(_from_upper_half, values[name].reshape(-1)) for name in sent}


@dataclass(frozen=True)
class Int8(Compression):
    """Integers from −127 to 127 times a step per array: a quarter of the bytes.

    The step s is the largest absolute value divided by 127, as a float32; values are rounded to the nearest multiple,
    ties to even. The error of a value is at most s / 2.
    """

    name: ClassVar[str] = "int8"

    def encode(self, update: Arrays) -> Records:
        steps = {name: np.asarray(np.abs(array).max(initial=0.0) / 127, np.float32) for name, array in update.items()}
        values = {name: _multiples(array, float(steps[name])) for name, array in update.items()}
        return {wire.COMPRESSED_VALUES: values, wire.COMPRESSED_STEPS: steps}

    def read(self, records: Mapping[str, Arrays], sent: Arrays) -> dict[str, Change]:
        values = _record(records, wire.COMPRESSED_VALUES, sent)
        steps = _record(records, wire.COMPRESSED_STEPS, sent)
        for name, array in sent.items():
            _check(name, values[name], np.int8, array.shape)
            _check(f"step of {name}", steps[name], np.float32, ())
        return {name: partial(_from_multiples, values[name].reshape(-1), float(steps[name])) for name in sent}


@dataclass(frozen=True)
class TopK(Compression):
    """The largest changes of each array alone, as float32 with their positions: 8 bytes per value that is sent.

    Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017. Of equal changes, the first are
    sent.

    Parameters
    ----------
    share : float
        In (0, 1], the share of the values of each array, halves rounded up, and at least one value.

    Raises
    ------
    ValueError
        ``share`` is out of range.
    """

    name: ClassVar[str] = "top-k"
    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share = {self.share!r}: must be above 0 and at most 1")

    def train_config(self) -> dict[str, str | float]:
        return {**super().train_config(), wire.COMPRESSION_SHARE: float(self.share)}

    def encode(self, update: Arrays) -> Records:
        # halves are rounded up, and at least one value is sent
        counts = {name: max(1, floor(self.share * array.size + 0.5)) for name, array in update.items()}
        positions = {name: _largest(array, counts[name]) for name, array in update.items()}
        values = {name: array.reshape(-1)[positions[name]].astype(np.float32) for name, array in update.items()}
        return {wire.COMPRESSED_VALUES: values, wire.COMPRESSED_PLACES: positions}

    def read(self, records: Mapping[str, Arrays], sent: Arrays) -> dict[str, Change]:
        values = _record(records, wire.COMPRESSED_VALUES, sent)
        positions = _record(records, wire.COMPRESSED_PLACES, sent)
        for name, array in sent.items():
            _check_positions(name, values[name], positions[name], array)
        return {
            name: partial(_from_positions, values[name], positions[name], array.size) for name, array in sent.items()
        }

    def restore(self, records: Mapping[str, Arrays], sent: Arrays) -> Arrays:
        """As :meth:`Compression.restore`; computes with the values that were sent alone."""
        self.read(records, sent)
        values, positions = records[wire.COMPRESSED_VALUES], records[wire.COMPRESSED_PLACES]
        restored: Arrays = {}
        for name, array in sent.items():
            # −0 + 0 would be 0, as in _restored
            change = np.subtract(0.0, values[name], dtype=np.result_type(array.dtype, np.float32))
            flat = np.array(array, order="C").reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                flat[positions[name].astype(np.intp)] -= change
            order: Literal["C", "F"] = "F" if array.flags.f_contiguous else "C"
            restored[name] = np.asarray(flat.reshape(array.shape), order=order)
        return restored


_BY_NAME: dict[str, type[Compression]] = {kind.name: kind for kind in (BFloat16, Int8, TopK)}
#: The names that :func:`compression_by_name` knows.
COMPRESSION_NAMES = tuple(_BY_NAME)


def compression_by_name(name: str, share: float = 0.01) -> Compression:
    """Make a compression.

    Parameters
    ----------
    name : "bf16", "int8" or "top-k"
    share : float
        In (0, 1], for top-k.

    Raises
    ------
    ValueError
        The name is unknown, or ``share`` is out of range.
    """
    require_one_of("compression", name, COMPRESSION_NAMES)
    return TopK(share) if name == TopK.name else _BY_NAME[name]()


def _upper_half(array: NDArray[Any]) -> NDArray[np.uint16]:
    with np.errstate(over="ignore"):
        bits = np.asarray(array, np.float32).view(np.uint32)
    return np.asarray((bits + 0x7FFF + (bits >> 16 & 1)) >> 16, np.uint16)


def _multiples(array: NDArray[Any], step: float) -> NDArray[np.int8]:
    if not step:  # all values are 0, or too small for a float32
        return np.zeros(array.shape, np.int8)
    return np.asarray(np.clip(np.rint(array / step), -127, 127), np.int8)


def _from_upper_half(values: NDArray[Any], part: slice, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers whose upper 16 bits as float32 these are."""
    bits = values[part].astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32).astype(dtype, copy=False)


def _from_multiples(values: NDArray[Any], step: float, part: slice, dtype: np.dtype[Any]) -> NDArray[Any]:
    change = values[part].astype(dtype)
    change *= step
    return change


def _from_positions(
    values: NDArray[Any], positions: NDArray[Any], size: int, part: slice, dtype: np.dtype[Any]
) -> NDArray[Any]:
    change = np.zeros(size, dtype)
    change[positions.astype(np.intp)] = values
    return change[part]


def _largest(array: NDArray[Any], count: int) -> NDArray[np.uint32]:
    """The positions of the ``count`` largest absolute values, ascending."""
    sizes = np.abs(array.reshape(-1))
    if count >= sizes.size:
        return np.arange(sizes.size, dtype=np.uint32)
    least = np.partition(sizes, sizes.size - count)[sizes.size - count]
    above = np.flatnonzero(sizes > least)
    equal = np.flatnonzero(sizes == least)[: count - above.size]
    return np.sort(np.concatenate([above, equal])).astype(np.uint32)


def _check_positions(name: str, values: NDArray[Any], positions: NDArray[Any], sent: NDArray[Any]) -> None:
    _check(f"places of {name}", positions, np.uint32, (positions.size,))
    _check(name, values, np.float32, positions.shape)
    if positions.size and (positions[-1] >= sent.size or not (positions[1:] > positions[:-1]).all()):
        raise ValueError(f"places of {name}: must ascend and be below {sent.size}")


def _record(records: Mapping[str, Arrays], name: str, sent: Arrays) -> Arrays:
    """A record of a reply, which must have the names of ``sent``."""
    record = records.get(name, {})
    if record.keys() != sent.keys():
        differing = sorted(record.keys() ^ sent.keys())[:5]
        raise ValueError(f"{name}: the names differ from those sent: {', '.join(differing)}")
    return record


def _check(name: str, array: NDArray[Any], dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)} instead of {np.dtype(dtype)}{list(shape)}")


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
    reply: Message, received: Arrays, compression: Compression, memory: ErrorMemory, buffers: Buffers
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
        Read and written if the compression has error feedback. The error of an array in another form, as of another
        model, is ignored; that of an array that is not in this reply stays.
    buffers : Buffers
        Which arrays are not trained.

    Raises
    ------
    ValueError
        The names or shapes of the parameters differ from those received, or a change is no finite float32. The memory
        is then as before.
    """
    arrays = views(shared_record(reply.content))
    floats, before = buffers.parameters(arrays), buffers.parameters(received)
    if _form(floats) != _form(before):
        raise ValueError("the arrays of the reply differ from those received, so that their change is undefined")
    if not floats:
        return
    kept = memory.load() if compression.error_feedback else {}
    forms, kept_forms = _form(before), _form(kept)
    update = {name: array.astype(np.float64) - before[name] for name, array in floats.items()}
    for name in update:
        if kept_forms.get(name) == forms[name]:
            update[name] = update[name] + kept[name]
    if wild := [name for name, change in update.items() if not (np.abs(change) <= np.finfo(np.float32).max).all()]:
        raise ValueError(f"values are not finite in float32: {', '.join(wild)}; they cannot be compressed")
    records = compression.encode(update)
    if compression.error_feedback:
        restored = compression.decode(records, before)
        error = {name: np.asarray((update[name] - restored[name]).astype(before[name].dtype)) for name in update}
        memory.save({**kept, **error})
    reply.content[wire.ARRAYS] = to_record({name: array for name, array in arrays.items() if name not in floats})
    for name, record in records.items():
        reply.content[name] = to_record(record)


def _form(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}
