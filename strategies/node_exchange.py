"""The exchange with the nodes of a run: which nodes are there and free, and the messages to them."""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from math import inf

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from . import wire
from .arrays import Arrays
from .hooks import ExtraRecords, RoundHooks
from .nodes.profiles import Profile, in_key_order
from .nodes.registry import NodeRegistry
from .nodes.samplers import Sampler
from .replies import count_bytes
from .rounds.clock import clock_of, is_simulated
from .rounds.closing import Closing
from .rounds.exchange import exchange
from .rounds.flights import Flights
from .rounds.records import RoundReport, TooFewRepliesError
from .rounds.transport import Outcome
from .stopwatch import timed, timed_items

#: Bytes of early replies that the server keeps in memory; other early replies wait in the SuperLink.
MAX_BUFFERED_BYTES = 2**27
#: Bytes of replies that the server fetches together from nodes in its own process, so that they stay in the cache.
MAX_CACHED_BYTES = 2**21


class NodeExchange(RoundHooks):
    """Knows the nodes of a run, builds their messages, sends them and yields the replies.

    Parameters
    ----------
    registry : NodeRegistry
        The connected nodes.
    closing : Closing
        When a round closes before all nodes have replied.
    min_replies : int
        ≥ 0, the number of usable replies that a round needs.
    poll : float
        > 0, seconds between the first two attempts to fetch a reply.
    in_flight : int or None
        ≥ 1, the largest number of nodes that work at a time.
    """

    def __init__(
        self, registry: NodeRegistry, closing: Closing, min_replies: int, poll: float, in_flight: int | None
    ) -> None:
        self.registry, self.closing, self.min_replies = registry, closing, min_replies
        self.poll, self.in_flight = poll, in_flight
        self.report = RoundReport(0)
        self._records: dict[Hashable, ArrayRecord] = {}
        self._resumed: Arrays = {}  # the state of the snapshot, until the nodes are there
        self._flights: Flights | None = None  # messages that a round need not wait for
        self._seconds: dict[str, float] = {}  # from the messages of a phase to their replies
        self._timed = False  # whether these are recorded

    # -- who is there ---------------------------------------------------------------------------------------------

    def await_nodes(self, grid: Grid, timeout: float) -> None:
        """Wait for the nodes of the first round; ``timeout`` is the seconds that a node has to send its profile."""
        self.registry.queries.timeout = timeout
        self.registry.connected(grid)
        if self._resumed and self._flights is not None:
            with clock_of(grid).evaluation():  # all nodes are there
                nodes = [self.label(node) for node in self.registry.connected(grid)]
            self._flights.load_state(self._resumed, {node.key: node for node in nodes})
        self._resumed = {}

    def profiles(self, grid: Grid) -> list[Profile]:
        """The connected nodes with a profile and data, in the order of their keys."""
        return [self.label(node) for node in self.registry.connected(grid) if not node.no_data]

    def candidates(self, grid: Grid) -> list[Profile]:
        """The nodes that can train, by their keys. Waits for late nodes if there are too few others.

        Raises
        ------
        TooFewRepliesError
            In simulated time, too few nodes will ever be there.
        """
        while True:
            found = [node for node in self.profiles(grid) if node.num_examples != 0]
            busy = self._flights.working if self._flights else set()
            free = sum(node.node_id not in busy for node in found)
            if free >= max(1, self.min_replies) or not (busy or is_simulated(grid)):
                return found
            try:
                if self._flights:
                    self._flights.wait()
                    self._flights.look()
                else:
                    clock_of(grid).wait(inf)
            except RuntimeError as error:
                raise TooFewRepliesError(
                    f"{free} nodes can train, but min-replies is {self.min_replies}, and no other node will come "
                    f"({error})"
                ) from error

    def _ready(
        self, cohort: list[Profile], candidates: list[Profile], server_round: int, sampler: Sampler
    ) -> list[Profile]:
        """The nodes of a cohort that are not at work, and others in place of those that are, or that may be late."""
        busy = self._flights.working if self._flights else set()
        ready, chosen = [node for node in cohort if node.node_id not in busy], {node.node_id for node in cohort}
        free = [node for node in candidates if node.node_id not in busy | chosen]
        more = sampler.further(free, self.closing.asked(len(cohort)) - len(ready), server_round, "train")
        return in_key_order([*ready, *more])

    def _late(self) -> set[int]:
        """The ids of the nodes that work on a message of a round that has closed, or for longer than the deadline."""
        if self._flights is None or not self.closing.early:
            return set()
        return self._flights.working_for(0.0 if self.closing.over_selection > 1 else self.closing.deadline)

    def _known(self, node_id: int) -> Profile:
        profile = self.registry.known.get(node_id)
        return self.label(profile) if profile else Profile.unknown(node_id)

    # -- messages -------------------------------------------------------------------------------------------------

    def send(self, grid: Grid, messages: Iterable[Message], timeout: float) -> Iterable[Outcome]:
        """Send messages and yield one reply or failure for each, in the order of the messages; counts their bytes."""
        with timed("prepare"):
            outgoing = list(messages)
            largest = self._count(outgoing)
        if outgoing and outgoing[0].metadata.message_type == MessageType.EVALUATE:
            timeout = min(timeout, self.closing.deadline)
        ahead = MAX_BUFFERED_BYTES // largest  # a train reply is about as large as its message
        self._seconds, self._timed = {}, is_simulated(grid)
        replies = exchange(
            grid,
            outgoing,
            timeout,
            self.poll,
            ahead=ahead,
            together=max(1, MAX_CACHED_BYTES // largest),
            in_flight=self.in_flight,
            count_busy=lambda: self.registry.queries.working,
            on_wait=partial(self.registry.poll, grid),
            on_reply=lambda sent, seconds: self._seconds.update({sent.message_id: seconds}),
        )
        return timed_items("wait", replies)

    def _count(self, messages: Iterable[Message]) -> int:
        """Count the bytes of messages in the report. Returns the largest size, at least 1."""
        largest = 1
        for message in messages:
            largest = max(largest, size := count_bytes(message.content))
            self.report.count_message(message.metadata.message_type, size)
        return largest

    def _messages(
        self,
        cohort: Iterable[Profile],
        kind: str,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        records_for: Callable[[int, Profile], ExtraRecords],
    ) -> list[Message]:
        """One message for each node of the cohort, in the same order; each has its own copy of the config."""
        self._records = {}
        numbered = ConfigRecord({**config, wire.SERVER_ROUND: server_round})
        shared = RecordDict({wire.ARRAYS: arrays})
        messages = []
        for node in cohort:
            further, own = records_for(server_round, node), self.arrays_for(node, arrays)
            content = shared.copy() if own is arrays else RecordDict({wire.ARRAYS: own})  # a copy takes less time
            content[wire.CONFIG] = numbered.copy()
            for name, record in further.items():
                content[name] = record
            messages.append(Message(content, node.node_id, kind))
        self._records = {}
        return messages

    def record_once(self, key: Hashable, make: Callable[[], ArrayRecord]) -> ArrayRecord:
        """A record that is made once for all messages of a phase; ``key`` tells it from the others."""
        if key not in self._records:
            self._records[key] = make()
        return self._records[key]
