"""What runs where and when in Ray, with a stand-in for Ray that works in this process."""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from fedapps.sim import ray_nodes
from fedapps.sim.inprocess import run_server
from fedapps.sim.ray_cluster import most_workers
from fedapps.sim.ray_nodes import RayGrid
from fedapps.strategies.transport import clock_of
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from inprocess_apps import ask, asked, client, metrics, partition, server


class LostError(Exception):
    """Such as OutOfMemoryError or ObjectLostError, which are no RayActorError."""


class ActorLostError(LostError):
    pass


class TaskError(LostError):
    pass


class StandIn:
    """Ray with a machine: a call of an actor ends when it is waited for, the oldest first; some lose their actors."""

    exceptions = SimpleNamespace(RayError=LostError, RayActorError=ActorLostError, RayTaskError=TaskError)

    def __init__(self, cores: int, lost: Sequence[str] = (), error: type[Exception] = ActorLostError) -> None:
        self.cores, self.lost, self.error = cores, deque(lost), error
        self.calls: dict[int, Callable[[], Any]] = {}
        self.actors = self.count = 0
        self.most_calls = 0

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Resources": {"CPU": float(self.cores)}}, {"Resources": {}}]  # the second has left

    def remote(self, kind: type) -> Any:
        self.kind = kind
        return self

    def options(self, **resources: float) -> Any:
        return SimpleNamespace(remote=self.start)

    def start(self, *arguments: Any) -> Any:
        self.actors += 1
        actor = self.kind(*arguments)
        return SimpleNamespaceWithId(**{name: self.method(actor, name) for name in ("started", "answer")})

    def method(self, actor: Any, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.count += 1
            copies = deepcopy(arguments)  # the actor has another memory
            self.calls[self.count] = lambda: getattr(actor, name)(*copies)
            self.most_calls = max(self.most_calls, len(self.calls))
            return self.count

        return SimpleNamespace(remote=call)

    def wait(self, references: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        done = sorted(references)[: min(num_returns, 1 if timeout else 0)]
        return done, [reference for reference in references if reference not in done]

    def get(self, reference: int) -> Any:
        result = self.calls.pop(reference)()
        name = "started" if isinstance(result, float) else "answer"
        if self.lost and self.lost[0] == name:
            self.lost.popleft()
            raise self.error("killed")
        return result


class SimpleNamespaceWithId(SimpleNamespace):
    __hash__ = object.__hash__


def run(
    stand_in: StandIn,
    app: Any,
    main: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    nodes: int = 3,
    cpus: int = 1,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    run_server(server(main), RayGrid(app, [{}] * nodes, {"a": 1}, cpus=cpus))


def replies(
    stand_in: StandIn, app: Any, monkeypatch: pytest.MonkeyPatch, nodes: int = 3, times: int = 1
) -> list[Message]:
    got: list[Message] = []

    def main(grid: Any, _: Any) -> None:
        for _ in range(times):
            got.extend(sorted(ask(grid), key=lambda reply: reply.metadata.src_node_id))

    run(stand_in, app, main, monkeypatch, nodes)
    return got


def first_time(message: Message, context: Any) -> dict[str, int]:
    """Whether the context has nothing of this node, which forgets it when it is asked again."""
    known = "n" in context.state
    context.state = RecordDict() if known else RecordDict({"n": MetricRecord({"n": 1})})
    return {"first": int(not known)}


def count(message: Message, context: Any) -> dict[str, int]:
    """How often this node was asked before, which it keeps in its context."""
    before = int(context.state["n"]["n"]) if "n" in context.state else 0  # type: ignore[index, call-overload, arg-type]
    context.state["n"] = MetricRecord({"n": before + 1})
    return {"before": before, "a": context.run_config["a"]}


def test_replies_and_contexts_are_those_of_one_process(monkeypatch):
    assert metrics(replies(StandIn(4), client(partition), monkeypatch)) == metrics(
        asked(client(partition), num_nodes=3)
    )
    found = metrics(replies(StandIn(4), client(count), monkeypatch, times=2))
    assert found == [{"before": 0, "a": 1}] * 3 + [{"before": 1, "a": 1}] * 3
    found = metrics(replies(StandIn(4), client(first_time), monkeypatch, nodes=1, times=3))
    assert found == metrics(asked(client(first_time), num_nodes=1, times=3)) == [{"first": n} for n in (1, 0, 1)]


def test_an_exception_in_a_node_is_an_error_reply(monkeypatch):
    (reply,) = replies(StandIn(1), client(lambda *_: 1 / 0), monkeypatch, nodes=1)
    assert "ZeroDivisionError" in reply.error.reason
    assert reply.metadata.reply_to_message_id == "message-1"


def test_the_messages_of_a_node_are_answered_one_after_another(monkeypatch):
    def main(grid: Any, _: Any) -> None:
        (node,) = grid.get_node_ids()
        messages = [Message(RecordDict({"c": ConfigRecord()}), dst_node_id=node, message_type="train") for _ in "123"]
        assert metrics(list(grid.send_and_receive(messages))) == [{"before": n, "a": 1} for n in range(3)]

    run(StandIn(4), client(count), main, monkeypatch, nodes=1)


@pytest.mark.parametrize(
    ("start", "work", "cores", "nodes", "actors"),
    [(100, 1.0, 8, 20, 1), (0.25, 1.0, 8, 200, 8), (0.25, 1.0, 3, 200, 3), (0.25, 1.0, 8, 2, 1), (2.5, 2.0, 8, 20, 3)],
    ids=["work too short", "work long", "few cores", "no message waits", "each start pays"],
)
def test_a_worker_is_added_once_the_work_has_taken_four_times_as_long_as_all_starts(
    start, work, cores, nodes, actors, monkeypatch
):
    class Timed(ray_nodes._Worker):
        def started(self) -> float:
            return start

        def answer(self, *arguments: Any) -> Any:
            return *super().answer(*arguments)[:2], work

    monkeypatch.setattr(ray_nodes, "_Worker", Timed)
    stand_in = StandIn(cores)
    assert len(replies(stand_in, client(partition), monkeypatch, nodes=nodes)) == nodes
    assert stand_in.actors == actors
    assert stand_in.most_calls <= 2 * actors + 1, "two messages each, and one that starts"


@pytest.mark.parametrize("error", [ActorLostError, LostError])
def test_the_message_of_a_lost_worker_goes_to_another(error, monkeypatch):
    stand_in = StandIn(4, ["answer"] * 2, error)
    assert metrics(replies(stand_in, client(partition), monkeypatch)) == [{"partition": n} for n in range(3)]
    assert stand_in.actors > 1


def test_a_worker_that_is_lost_with_its_second_message_may_have_answered_the_first(monkeypatch):
    """The news of the loss can be there before the reply."""

    class NewestFirst(StandIn):
        def wait(self, references: list[int], **options: Any) -> Any:
            return super().wait([max(references)], **options)

    stand_in = NewestFirst(4, ["answer"])
    assert metrics(replies(stand_in, client(partition), monkeypatch)) == [{"partition": n} for n in range(3)]


def test_a_message_that_loses_all_its_workers_has_an_error_reply(monkeypatch):
    (reply,) = replies(StandIn(4, lost=["answer"] * 4), client(partition), monkeypatch, nodes=1)
    assert reply.error.reason == "lost 4 workers: killed"


def test_no_reply_is_kept_that_nobody_waits_for(monkeypatch):
    """Neither one after the timeout, nor one that has come; what no worker has yet is not sent."""

    def main(grid: Any, _: Any) -> None:
        def messages() -> list[Message]:
            return [Message(RecordDict(), dst_node_id=node, message_type="train") for node in grid.get_node_ids()]

        assert len(list(grid.send_and_receive(messages(), timeout=0.0))) == 1
        assert (len(grid._jobs), len(grid._forgotten), grid._pending) == (2, 2, {})
        ids = list(grid.push_messages(messages()))
        for _ in "123":
            grid._collect(1.0)
        assert grid._replies.keys() == {ids[0]}, "not those that came late"
        clock_of(grid).forget(ids)
        assert (grid._replies, len(grid._jobs)) == ({}, 2)
        assert len(list(grid.send_and_receive(messages()))) == 4
        assert (grid._replies, grid._forgotten) == ({}, set())

    run(StandIn(1), client(partition), main, monkeypatch, nodes=4)


def test_nodes_that_never_reply_are_not_waited_for_beyond_the_timeout(monkeypatch):
    def main(grid: Any, _: Any) -> None:
        monkeypatch.setattr(stand_in, "wait", lambda references, **options: ([], references))
        messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in grid.get_node_ids()]
        assert grid.send_and_receive(messages, timeout=0.0) == []

    stand_in = StandIn(4)
    monkeypatch.setattr(ray_nodes, "_PATIENCE", 0.0)
    run(stand_in, client(partition), main, monkeypatch)


def test_workers_that_cannot_start_end_the_run(monkeypatch):
    with pytest.raises(RuntimeError, match="no worker of Ray can start: killed"):
        replies(StandIn(4, lost=["started"]), client(partition), monkeypatch)


def test_a_worker_that_finds_no_machine_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"node-cpus = 3: no machine has 3 CPU cores and 0 GPUs"):
        run(StandIn(2), client(partition), lambda *_: None, monkeypatch, cpus=3)
    machines = [{"Resources": {"CPU": 5.0, "GPU": 1.0}}, {"Resources": {"CPU": 3.0}}]
    assert (most_workers(machines, 2), most_workers(machines, 2, 0.5)) == (3, 2)
