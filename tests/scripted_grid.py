"""A grid with simulated time, in which a test says how long each message takes."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from math import inf

from fedapps.sim.flower_internals import decode_records, encode_records, set_message_id
from fedapps.sim.inprocess import InProcessGrid
from flwr.app import Error, Message, RecordDict
from flwr.client import ClientApp

#: Seconds that the n-th training of a partition takes, both counted from 0; infinite for one that never replies.
Durations = Callable[[int, int], float]


class ScriptedGrid(InProcessGrid):
    """Trainings take the seconds of the script, all other messages none. ``sent`` lists (time, partition, version)."""

    def __init__(self, app: ClientApp, num_nodes: int, durations: Durations) -> None:
        super().__init__(app, [{} for _ in range(num_nodes)], {}, errors="reply")
        self.durations, self.time = durations, 0.0
        self.sent: list[tuple[float, int, int]] = []
        self._trainings: Counter[int] = Counter()
        self._arrivals: dict[str, float] = {}
        self._pulled: dict[str, float] = {}
        self._put_back: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for message, message_id in zip(messages, ids, strict=True):
            seconds = 0.0
            if message.metadata.message_type == "train":
                partition = message.metadata.dst_node_id - 2
                seconds = self.durations(partition, self._trainings[partition])
                self._trainings[partition] += 1
                self.sent.append((self.time, partition, message.content["config"]["server-round"] - 1))
            self._arrivals[message_id] = self.time + seconds
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        there = [message_id for message_id in message_ids if self._arrivals.get(message_id, inf) <= self.time]
        self._pulled |= {message_id: self._arrivals.pop(message_id) for message_id in there}
        kept = [self._put_back.pop(message_id) for message_id in there if message_id in self._put_back]
        return [*kept, *super().pull_messages(there)]

    def now(self) -> float:
        return self.time

    def wait(self, until: float, messages: Collection[str] | None = None) -> None:
        awaited = self._arrivals.keys() if messages is None else messages
        event = min((t for m in awaited if (t := self._arrivals[m]) > self.time), default=inf)
        if min(event, until) == inf:
            raise RuntimeError("nothing will happen")
        self.time = max(self.time, min(event, until))

    def arrived_at(self, message_id: str) -> float:
        return self._pulled[message_id]

    def forget(self, message_ids: Collection[str]) -> None:
        for message_id in message_ids:
            del self._arrivals[message_id]

    def evaluation(self):
        return nullcontext()

    def busy(self) -> dict[str, float]:
        return {}

    def set_now(self, seconds: float, busy: Mapping[str, float] | None = None) -> None:
        self.time = seconds

    def due(self, message_id: str) -> tuple[float, Message]:
        if message_id not in self._put_back:
            (self._put_back[message_id],) = super().pull_messages([message_id])
        return self._arrivals[message_id], self._put_back[message_id]

    def encoded(self, reply: Message) -> bytes:
        return encode_records(reply.content)

    def put_back(self, node_id: int, arrival: float, reply: bytes | Error) -> str:
        message = Message(RecordDict(), node_id, "train")
        set_message_id(message, message_id := f"resumed-{len(self._put_back)}")
        content = decode_records(reply) if isinstance(reply, bytes) else reply
        self._put_back[message_id] = Message(content, reply_to=message)
        self._arrivals[message_id] = arrival
        return message_id


def script(*rows: Iterable[float]) -> Durations:
    """The durations of each partition's trainings; the last one repeats."""
    listed = [list(row) for row in rows]
    return lambda partition, training: listed[partition][min(training, len(listed[partition]) - 1)]
