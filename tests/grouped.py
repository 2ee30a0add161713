"""Nodes that tell their groups, in one process, for strategies that cluster them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fedapps.sim.inprocess import InProcessGrid
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.client import ClientApp
from toys import arithmetic_app, arrays_of, federate, same_bits

Profiles = Callable[[int], Mapping[str, Any]]


def grouped_app(profile: Profiles, train: Any, evaluate: Any = None, seen: list[Message] | None = None) -> ClientApp:
    """An arithmetic app whose node k answers the query with ``part-000k`` and the entries of ``profile(k)``."""
    app, inner = ClientApp(), arithmetic_app(train, evaluate, seen)
    app.train()(inner)
    app.evaluate()(inner)

    @app.query("profile")
    def on_query(message: Message, context: Any) -> Message:
        partition = int(context.node_config["partition-id"])
        record = ConfigRecord({"key": f"part-{partition:04d}", **profile(partition)})
        return Message(RecordDict({"profile": record}), reply_to=message)

    return app


class ChangingGrid(InProcessGrid):
    """A grid whose connected nodes are those of ``present`` (partitions), which a test may change."""

    present: Sequence[int] | None = None

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        return nodes if self.present is None else [nodes[partition] for partition in self.present]


def grid_of(app: ClientApp, num_nodes: int) -> ChangingGrid:
    """A changing grid with all its nodes present."""
    return ChangingGrid(app, [{} for _ in range(num_nodes)], {})


class MemoryCheckpoints:
    """Keeps every snapshot, and the best one."""

    def __init__(self):
        self.snapshots = []
        self.best = None

    def save(self, snapshot, *, best):
        self.snapshots.append(snapshot)
        self.best = snapshot if best else self.best
        return self.oldest_round()

    def oldest_round(self):
        return self.snapshots[0].round if self.snapshots else 0

    def latest(self):
        return self.snapshots[-1] if self.snapshots else None


class PowerCutError(Exception):
    """Ends a run in the middle."""


def assert_resumes_alike(make: Callable[[], Any], app: ClientApp, arrays: Any, *, cut: int, **options: Any) -> None:
    """A run that was cut off in round ``cut`` and resumed ends bit for bit as an undisturbed one, and stays so."""
    whole, parts = MemoryCheckpoints(), MemoryCheckpoints()
    undisturbed = federate(make(), app, arrays, checkpoints=whole, **options)

    def stop(report: Any) -> None:
        if report.round == cut:
            raise PowerCutError

    with suppress(PowerCutError):
        federate(make(), app, arrays, checkpoints=parts, on_round=stop, **options)
    assert parts.latest().round == cut - 1
    for rounds in (options["num_rounds"], 0):
        reports: list[Any] = []
        resumed = federate(make(), app, arrays, checkpoints=parts, resume=True, on_round=reports.append, **options)
        assert [report.round for report in reports] == [*range(cut, rounds + 1)]
        assert same_bits(arrays_of(resumed.arrays), arrays_of(undisturbed.arrays))
        for history in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            assert getattr(resumed, history) == getattr(undisturbed, history)
        assert same_bits(parts.latest().arrays, whole.latest().arrays)
        assert parts.latest().facts == whole.latest().facts
