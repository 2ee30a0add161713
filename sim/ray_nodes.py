"""The nodes of a federation in processes of Ray: on this machine, or on the cluster that ``RAY_ADDRESS`` names.

The server works in this process. Its messages go to workers, processes that keep the app and what it has loaded from
one message to the next. One worker starts at once; another one is added whenever messages wait and the nodes have
worked four times as long as all workers took to start. So the starts take at most a quarter of the processor time of
the work, but for the first, and long runs soon use all cores.
"""

import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from logging import WARNING
from typing import Any, ClassVar, NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.client import ClientApp
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from fedapps.base.processes import Interrupts, ray_environment, usable_cores

from .flower_internals import direct_arrays, error_reply, flower_identity
from .inprocess import InProcessGrid
from .ray_cluster import RAY_ADDRESS, RETRIES, most_workers, no_room

#: Messages that a worker has at a time, so that it need not wait for the server.
_AHEAD = 2
#: How many times as long as all starts the nodes have worked before another worker is worth its start.
_WORTH = 4.0
_PATIENCE = 1.0  # seconds that a pull waits for a reply


class _Worker:
    """What a process of Ray keeps: the app of the nodes, and the run config."""

    def __init__(self, client_app: ClientApp, run_config: Mapping[str, Any]) -> None:
        self._client_app, self._run_config = client_app, run_config
        self._contexts = ExitStack()  # for as long as the process lives
        self._contexts.enter_context(flower_identity())
        self._contexts.enter_context(direct_arrays())

    def started(self) -> float:
        """The processor seconds that the start took."""
        return time.process_time()

    def answer(self, message: Message, context: Context) -> tuple[Message, RecordDict, float]:
        """The reply of a node, what the app left in its context, and the processor seconds that the work took."""
        begun = time.process_time()
        context.run_config = dict(self._run_config)
        try:
            reply = self._client_app(message, context)
        except Exception as error:
            reply = error_reply(message, "".join(traceback.format_exception(error)))
        return reply, context.state, time.process_time() - begun


class _Job(NamedTuple):
    message_id: str
    message: Message
    worker: Any


class RayGrid(InProcessGrid):
    """A :class:`flwr.serverapp.Grid` whose nodes work in processes of Ray. An exception in a node is an error reply.

    The messages of a worker that is lost go to another one, up to three times each.

    Parameters
    ----------
    client_app : ClientApp
        The app of the nodes, which other processes can import.
    node_configs, run_config
        See :class:`~fedapps.sim.inprocess.InProcessGrid`.
    cpus : int
        CPU cores of a worker, at least 1.
    gpus : float
        GPUs of a worker, at least 0.

    Raises
    ------
    ValueError
        No machine has what a worker needs.
    """

    immediate: ClassVar[bool] = False

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        *,
        cpus: int = 1,
        gpus: float = 0.0,
    ) -> None:
        super().__init__(client_app, node_configs, {}, errors="reply")
        import ray

        self._ray = ray
        self._most = min(most_workers(ray.nodes(), cpus, gpus), len(node_configs))
        if not self._most:
            raise ValueError(no_room(cpus, gpus))
        kind = ray.remote(_Worker).options(num_cpus=cpus, num_gpus=gpus)
        self._new_worker = partial(kind.remote, client_app, dict(run_config))
        self._starting: dict[Any, Any] = {}  # workers by what tells that they have started
        self._loads: dict[Any, int] = {}  # messages of each worker that has started
        self._jobs: dict[Any, _Job] = {}  # by the reference to the reply
        self._forgotten: set[str] = set()  # messages that workers have, whose replies nobody will pull
        self._lost: Counter[str] = Counter()  # how often a message has lost its worker
        self._start_seconds = self._work_seconds = 0.0
        self._start_worker()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to the workers, as many as they can have, and keep the others."""
        ids = super().push_messages(messages)
        self._collect(0.0)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived. If there is none to any message, wait for up to a second."""
        until = time.monotonic() + _PATIENCE
        self._collect(0.0)
        while not self._replies and (self._jobs or self._pending) and (left := until - time.monotonic()) > 0:
            self._collect(left)
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push the messages, and pull until all replies are there or the time is over."""
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        ids = set(self.push_messages(messages))
        replies: list[Message] = []
        while ids:
            new = list(self.pull_messages(ids))
            ids -= {reply.metadata.reply_to_message_id for reply in new}
            replies += new
            if time.monotonic() >= until:
                break
        self.forget(ids)
        return replies

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop the replies to messages that nobody will pull, and the messages that no worker has yet."""
        self._forgotten.update(message_ids)
        self._drop_forgotten()

    def _drop_forgotten(self) -> None:
        for kept in (self._replies, self._pending):
            for message_id in self._forgotten & kept.keys():
                del kept[message_id]
        self._forgotten &= {job.message_id for job in self._jobs.values()}

    def _collect(self, seconds: float) -> None:
        """Wait for a worker, take in what has arrived, and send what waits."""
        references = [*self._jobs, *self._starting]
        count = 1 if seconds else len(references)
        for reference in self._ray.wait(references, num_returns=count, timeout=seconds)[0] if references else ():
            if reference in self._jobs:
                self._take_reply(reference)
            else:
                self._take_worker(reference)
        if self._forgotten:
            self._drop_forgotten()
        self._send()

    def _take_worker(self, reference: Any) -> None:
        worker = self._starting.pop(reference)
        try:
            self._start_seconds += self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if not self._loads:
                raise RuntimeError(f"no worker of Ray can start: {error}") from error
            log(WARNING, "a worker of Ray did not start: %s", error)
        else:
            self._loads[worker] = 0

    def _take_reply(self, reference: Any) -> None:
        message_id, message, worker = self._jobs.pop(reference)
        try:
            self._replies[message_id], state, seconds = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:  # also where memory is short, or a machine and its replies lost
            self._loads.pop(worker, None)
            self._lost[message_id] += 1
            if self._lost[message_id] <= RETRIES:
                self._pending = {message_id: message, **self._pending}
            else:
                self._replies[message_id] = error_reply(message, f"lost {RETRIES + 1} workers: {error}")
            return
        if worker in self._loads:  # another message may have lost it since
            self._loads[worker] -= 1
        self._work_seconds += seconds
        node = message.metadata.dst_node_id
        if state or node in self._contexts:
            self._contexts[node] = context = self.context(node)
            context.state = state

    def _send(self) -> None:
        """Give messages to the workers that have fewest, one of each node at a time."""
        busy = {job.message.metadata.dst_node_id for job in self._jobs.values()}
        for message_id, message in list(self._pending.items()):
            worker = min(self._loads, key=self._loads.__getitem__, default=None)
            if worker is None or self._loads[worker] == _AHEAD:
                break
            node = message.metadata.dst_node_id
            if node not in busy:
                busy.add(node)
                self._loads[worker] += 1
                reference = worker.answer.remote(message, self.context(node))
                self._jobs[reference] = _Job(message_id, self._pending.pop(message_id), worker)
        worth_it = len(self._loads) < self._most and self._work_seconds >= _WORTH * self._start_seconds
        if self._pending and not self._starting and (worth_it or not self._loads):
            self._start_worker()

    def _start_worker(self) -> None:
        worker: Any = self._new_worker()
        self._starting[worker.started.remote()] = worker


class _Configured:
    """A ClientApp that gets a run config in each message."""

    def __init__(self, client_app: ClientApp, run_config: Mapping[str, Any]) -> None:
        self._client_app, self._run_config = client_app, run_config

    def __call__(self, message: Message, context: Context) -> Message:
        run_config = dict(self._run_config)  # the engine refuses a context whose own has changed
        own = Context(context.run_id, context.node_id, context.node_config, context.state, run_config)
        reply = self._client_app(message, own)
        context.state = own.state
        return reply


def run_flower_simulation(
    server_app: ServerApp,
    client_app: ClientApp,
    num_nodes: int,
    run_config: Mapping[str, Any],
    *,
    cpus: int = 1,
    gpus: float = 0.0,
) -> None:
    """Run an app to its end with Flower's own simulation engine, which needs no name that Flower does not publish.

    Exceptions of the ServerApp propagate.

    Parameters
    ----------
    server_app, client_app, run_config
        See :func:`~fedapps.sim.inprocess.run_inprocess`.
    num_nodes, cpus, gpus
        See :func:`ray_grid`.
    """
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        context.run_config = dict(run_config)
        server_app(grid, context)

    backend: Any = {"client_resources": {"num_cpus": cpus, "num_gpus": gpus}}
    nodes: Any = _Configured(client_app, run_config)
    with _ray_environment():
        run_simulation(server, nodes, num_nodes, backend_config=backend)


@contextmanager
def _ray_environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(ray_environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def ray_grid(
    client_app: ClientApp, num_nodes: int, run_config: Mapping[str, Any], *, cpus: int = 1, gpus: float = 0.0
) -> Iterator[RayGrid]:
    """Start Ray on this machine, or join the cluster that ``RAY_ADDRESS`` names, and give a grid with its processes.

    All processes that were started end with the context. Enter it in the main thread: SIGINT, SIGTERM and SIGHUP raise
    ``KeyboardInterrupt`` in it.

    Parameters
    ----------
    client_app, run_config, cpus, gpus
        See :class:`RayGrid`.
    num_nodes : int
        At least 1.
    """
    with _ray_environment():
        import ray

        joins = os.environ.get(RAY_ADDRESS, "") not in ("", "local")
        here: dict[str, Any] = {} if joins else {"num_cpus": usable_cores(), "include_dashboard": False}
        ray.init(**here, logging_level=WARNING)
        with Interrupts() as interrupts:  # in place of Ray's
            try:
                yield RayGrid(client_app, [{}] * num_nodes, run_config, cpus=cpus, gpus=gpus)
            finally:
                with interrupts.deferred():
                    ray.shutdown()
