"""Many arrays in one: a fleet exchanges a few large objects in place of many small ones.

Flower stores each array of a message as two objects. It sends a request for each object, and the SuperLink answers the
requests one after another. A network of a hundred arrays needs several hundred requests for each node and round.
:class:`PackedGrid` joins the arrays of a record into one array, which :func:`packing_mod` takes apart on the node, and
the other way round. Nothing is decoded, so no bit changes, and neither strategies nor clients see packed records.

A server with :class:`PackedGrid` needs nodes with the mod: ``ClientApp(mods=[packing_mod])``. Nodes with the mod also
answer servers without it.
"""

import json
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

#: The serialisation type (``Array.stype``) of a packed array.
PACKED = "fedapps.packed"
#: Bytes of the number in front, which is that of the bytes of the header; and the most that it may be.
_PREFIX, _LONGEST_HEADER = 8, 2**24


def pack(record: ArrayRecord) -> ArrayRecord:
    """A record with one array that has all of a record's arrays."""
    header = [[name, one.dtype, [*one.shape], one.stype, len(one.data)] for name, one in record.items()]
    head = json.dumps(header).encode()
    data = b"".join([len(head).to_bytes(_PREFIX, "little"), head, *(one.data for one in record.values())])
    return ArrayRecord({"": Array("uint8", (len(data),), PACKED, data)})


def is_packed(record: ArrayRecord) -> bool:
    """Whether a record comes from :func:`pack`."""
    return len(record) == 1 and all(one.stype == PACKED for one in record.values())


def unpack(record: ArrayRecord) -> ArrayRecord:
    """The record that was packed.

    Raises
    ------
    ValueError
        The packed array is damaged.
    """
    (data,) = (memoryview(one.data) for one in record.values())
    length = int.from_bytes(data[:_PREFIX], "little")
    begin, unpacked = _PREFIX + length, ArrayRecord()
    try:
        if length > _LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes, at most {_LONGEST_HEADER}")
        for name, dtype, shape, stype, length in json.loads(bytes(data[_PREFIX:begin])):
            if name in unpacked or not 0 <= length <= len(data) - begin:
                raise ValueError(f"array {name!r} of {length} bytes")
            unpacked[name] = Array(dtype, tuple(shape), stype, bytes(data[begin : begin + length]))
            begin += length
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"packed arrays cannot be taken apart: {error}") from None
    if begin != len(data):
        raise ValueError("packed arrays cannot be taken apart: more bytes than arrays")
    return unpacked


def _unpack_in(content: RecordDict) -> bool:
    """Unpack all packed records of a message; whether there were any."""
    packed = [name for name, record in content.array_records.items() if is_packed(record)]
    for name in packed:
        content[name] = unpack(content.array_records[name])
    return bool(packed)


def packing_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Unpack the packed records of a message. The reply to a message with packed records is packed, too.

    It must be the first mod that looks at arrays.

    Raises
    ------
    ValueError
        A packed array is damaged.
    """
    packed = _unpack_in(message.content)
    reply = call_next(message, context)
    if packed and reply.has_content():
        for name, record in [*reply.content.array_records.items()]:
            reply.content[name] = pack(record)
    return reply


class PackedGrid(Grid):
    """A grid that packs the records of what it sends, and unpacks those of replies.

    Parameters
    ----------
    grid : Grid
        That of nodes whose ClientApp has :func:`packing_mod`.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @property
    def run(self) -> Any:
        """As the grid's own."""
        return self._grid.run

    def set_run(self, run: Any) -> None:
        """As the grid's own."""
        self._grid.set_run(run)

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        """As the grid's own."""
        return self._grid.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        """As the grid's own."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """As the grid's own."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; as the grid's own."""
        return self._grid.push_messages(_packed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies; as the grid's own. Raises ``ValueError`` if a reply is damaged."""
        return self._unpacked(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for the replies; as the grid's own. Raises ``ValueError`` if a reply is damaged."""
        return self._unpacked(self._grid.send_and_receive(_packed(messages), timeout=timeout))

    @staticmethod
    def _unpacked(replies: Iterable[Message]) -> list[Message]:
        received = [*replies]
        for reply in received:
            if reply.has_content():
                _unpack_in(reply.content)
        return received


def _packed(messages: Iterable[Message]) -> list[Message]:
    """The messages with packed records and the same metadata, into which a grid writes their ids.

    A record that several messages have is packed once.
    """
    packed: dict[int, ArrayRecord] = {}
    sent = []
    for message in messages:
        sent.append(copied := copy(message))
        copied.content = RecordDict({**message.content})
        for name, record in message.content.array_records.items():
            if id(record) not in packed:
                packed[id(record)] = pack(record)
            copied.content[name] = packed[id(record)]
    return sent
