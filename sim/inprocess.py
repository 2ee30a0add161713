"""A whole federation in one process: any ServerApp and ClientApp, without Flower processes or Ray.

Nodes run one after another when the server pulls their replies, so a thousand nodes need the memory of one. With
``batch`` above 1, as many nodes run side by side (:mod:`fedapps.sim.joint_work`) and can do parts of their work
together.
"""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, ClassVar, Literal

from flwr.app import Context, Message, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import Grid, ServerApp

from .flower_internals import direct_arrays, empty_run, error_reply, flower_identity, received_copy, set_message_id
from .joint_work import side_by_side

_SERVER = 1  # Flower's id of the server; node ids start after it
_RUN_ID = 1


class NodeError(RuntimeError):
    """A node's app raised an exception. The message names node, round and message type, with the traceback."""


class MessageGrid(Grid):
    """A grid that makes messages itself."""

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message, for apps that ask the grid for it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


class InProcessGrid(MessageGrid):
    """A :class:`flwr.serverapp.Grid` whose nodes are function calls.

    Parameters
    ----------
    client_app : ClientApp
        The app of the nodes.
    node_configs : sequence of mappings
        One per node; missing ``partition-id`` and ``num-partitions`` are added.
    run_config : mapping
        The run config of the nodes.
    errors : "raise" or "reply"
        The treatment of an exception in a node: raise it as :class:`NodeError`, or send an error reply with the
        traceback as its reason, as Flower's other engines do.
    batch : int
        Nodes that run side by side, at least 1. A node that gets several messages runs once at a time.
    """

    #: A reply is computed when it is pulled (:func:`fedapps.strategies.transport.is_immediate`).
    immediate: ClassVar[bool] = True

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        *,
        errors: Literal["raise", "reply"] = "raise",
        batch: int = 1,
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch = {batch}: must be at least 1")
        if errors not in ("raise", "reply"):
            raise ValueError(f"errors = {errors!r}: must be 'raise' or 'reply'")
        self.client_app = client_app
        self.errors = errors
        self._batch, self._threads = batch, ThreadPoolExecutor(batch)
        self._pending: dict[str, Message] = {}
        self._replies: dict[str, Message] = {}
        self._pushed = 0
        # Flower's older strategies pull from threads. Nodes share torch's random state, so they must run one by one.
        self._one_at_a_time = Lock()
        self._nodes = range(_SERVER + 1, _SERVER + 1 + len(node_configs))
        self._node_configs, self._run_config = node_configs, dict(run_config)
        self._contexts: dict[int, Context] = {}  # of the nodes that keep something between messages

    def set_run(self, run: Any) -> None:
        """Do nothing, because there is only one run."""

    @property
    def run(self) -> Any:
        """An empty run with the id of the only run."""
        return empty_run(_RUN_ID)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes, in the order of ``node_configs``."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Store the messages; a node runs when its reply is pulled."""
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self._nodes:
                raise ValueError(f"message to node {message.metadata.dst_node_id}, which does not exist")
            self._pushed += 1
            message_id = f"message-{self._pushed}"
            set_message_id(message, message_id)
            self._pending[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the nodes of these messages and return their replies."""
        return [self._reply(i) for i in message_ids if i in self._pending or i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push the messages, then pull the replies."""
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message_id: str) -> Message:
        """Return the reply to a message. If it is not there yet, run the nodes of the message's batch."""
        with self._one_at_a_time:
            if self._batch == 1:
                return self._answer(self._pending.pop(message_id))
            if message_id not in self._replies:
                batch = {i: self._pending.pop(i) for i in self._batch_of(message_id)}
                replies = side_by_side([partial(self._answer, message) for message in batch.values()], self._threads)
                self._replies |= zip(batch, replies, strict=True)
            return self._replies.pop(message_id)

    def _batch_of(self, message_id: str) -> list[str]:
        """This message and the next ones, up to one of another type or to a node that the batch has."""
        first = self._pending[message_id].metadata
        batch, nodes = [message_id], {first.dst_node_id}
        for other_id, other in self._pending.items():
            node = other.metadata.dst_node_id
            if other_id == message_id:
                continue
            if len(batch) == self._batch or node in nodes or other.metadata.message_type != first.message_type:
                break
            batch.append(other_id)
            nodes.add(node)
        return batch

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        received, context = received_copy(message), self.context(node)
        try:
            return self.client_app(received, context)
        except Exception as error:
            if self.errors == "raise":
                configs: list[Mapping[str, Any]] = list(message.content.config_records.values())
                raise NodeError(
                    f"node {node} (partition {context.node_config['partition-id']}) failed in round "
                    f"{(configs or [{}])[0].get('server-round', '?')} on a {message.metadata.message_type!r} message:\n"
                    f"{traceback.format_exc()}"
                ) from error
            reason = "".join(traceback.format_exception(error))
            return error_reply(message, reason)
        finally:
            if context.state:
                self._contexts[node] = context

    def context(self, node: int) -> Context:
        """The context of a node: that of its last message, if its app left something there, else a new one."""
        if node in self._contexts:
            return self._contexts[node]
        index = node - _SERVER - 1
        config = {"partition-id": index, "num-partitions": len(self._node_configs), **self._node_configs[index]}
        return Context(_RUN_ID, node, config, RecordDict(), dict(self._run_config))


def run_inprocess(
    server_app: ServerApp,
    client_app: ClientApp,
    *,
    num_nodes: int = 0,
    node_configs: Sequence[Mapping[str, Any]] = (),
    run_config: Mapping[str, Any] | None = None,
    errors: Literal["raise", "reply"] = "raise",
    batch: int = 1,
) -> None:
    """Run an app to its end.

    Exceptions of the ServerApp propagate. The results are whatever the ServerApp leaves behind.

    Parameters
    ----------
    server_app : ServerApp
        The app of the server.
    client_app : ClientApp
        The app of the nodes.
    num_nodes : int
        The number of nodes, if ``node_configs`` is empty.
    node_configs : sequence of mappings
        The configuration of each node.
    run_config : mapping, optional
        The run config.
    errors : "raise" or "reply"
    batch : int
        See :class:`InProcessGrid`.

    Raises
    ------
    ValueError
        There is no node, or the installed version of Flower lacks what this engine needs.
    """
    configs = node_configs or [{} for _ in range(num_nodes)]
    if not configs:
        raise ValueError("num_nodes = 0 and no node_configs: a federation needs at least one node")
    run_server(server_app, InProcessGrid(client_app, configs, run_config or {}, errors=errors, batch=batch), run_config)


def run_server(server_app: ServerApp, grid: InProcessGrid, run_config: Mapping[str, Any] | None = None) -> None:
    """Run a ServerApp on a grid to its end, as :func:`run_inprocess`."""
    context = Context(
        run_id=_RUN_ID, node_id=_SERVER, node_config={}, state=RecordDict(), run_config=dict(run_config or {})
    )
    with flower_identity(_RUN_ID, _SERVER), direct_arrays():
        server_app(grid, context)
