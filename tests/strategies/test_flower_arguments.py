"""A project of Flower whose one line becomes a strategy of this project: its arguments keep their meaning."""

import inspect
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from every_strategy import NEEDED
from fedapps.clients.guard import keep_private
from fedapps.strategies import (
    SGD,
    AdaptiveRates,
    BaseStrategy,
    BufferedAsync,
    ClusteredFedAvg,
    FisherExchange,
    FixedNodes,
    IndependentDraws,
    Int8,
    Median,
    PartialAggregation,
    RoundReport,
    TrainedInTurn,
    UniformFraction,
    VirtualClients,
)
from fedapps.strategies import __all__ as names
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import FedAvg
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits, template_app, template_net

START = {"w": np.zeros(2)}


def of_replies(contents: list[RecordDict], key: str) -> MetricRecord:
    """The largest loss, and the sum of the weights."""
    metrics = [next(iter(content.metric_records.values())) for content in contents]
    return MetricRecord({"largest": max(m["loss"] for m in metrics), "weights": sum(m[key] for m in metrics)})


FLOWER: dict[str, Any] = {
    "fraction_train": 0.5,
    "fraction_evaluate": 0.25,
    "min_train_nodes": 3,
    "min_evaluate_nodes": 2,
    "min_available_nodes": 4,
    "weighted_by_key": "num-batches",
    "arrayrecord_key": "model",
    "configrecord_key": "settings",
    "train_metrics_aggr_fn": of_replies,
    "evaluate_metrics_aggr_fn": of_replies,
}


def test_these_are_all_strategies_and_all_arguments_of_flower() -> None:
    import fedapps.strategies

    exported = [getattr(fedapps.strategies, name) for name in names]
    assert {kind for kind in exported if isinstance(kind, type) and issubclass(kind, BaseStrategy)} == set(NEEDED)
    assert inspect.signature(FedAvg).parameters.keys() == FLOWER.keys()


@pytest.mark.parametrize("kind", NEEDED)
def test_every_strategy_takes_flowers_arguments_or_refuses_them_by_name(kind: type[BaseStrategy]) -> None:
    needed = NEEDED[kind]
    refused = {*kind.flower_gaps, *(["weighted_by_key"] if "weighting" in needed else [])}
    for name in refused:
        with pytest.raises(ValueError, match=rf"^{name} = .*(;|: )"):
            kind(**needed, **{name: FLOWER[name]})
    strategy = kind(**needed, **{name: value for name, value in FLOWER.items() if name not in refused})
    if "fraction_train" not in refused:
        assert strategy.sampler == UniformFraction(0.5, minimum=3)
    assert strategy.evaluate_sampler == UniformFraction(0.25, minimum=2)
    assert strategy.min_nodes == 4
    assert strategy.weighted_by_key == ("num-examples" if "weighted_by_key" in refused else "num-batches")
    assert (strategy.arrayrecord_key, strategy.configrecord_key) == ("model", "settings")


def test_what_is_refused_is_told_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"fraction_train = 0\.5: BufferedAsync cannot use it; set concurrency"):
        BufferedAsync(fraction_train=0.5)
    with pytest.raises(ValueError, match=r"weighted_by_key = 'n': VirtualClients cannot use it; .* equal weights"):
        VirtualClients(sampler=IndependentDraws(2), steps=1, weighted_by_key="n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"fraction_train": 0.5, "sampler": FixedNodes(["a"])}, "fraction_train = 0.5: sampler = .* decides"),
        ({"min_evaluate_nodes": 2, "evaluate_sampler": UniformFraction()}, "min_evaluate_nodes = 2: evaluate_sampler"),
        ({"fraction_train": 1.5}, "fraction = 1.5: must be between 0 and 1"),
        ({"min_train_nodes": -1}, "min_train_nodes = -1: must be an integer of at least 0"),
        ({"min_available_nodes": 3, "min_nodes": 2}, "min_available_nodes = 3: min_nodes = 2 is set, too"),
        ({"weighted_by_key": "n", "weighting": "uniform"}, "weighted_by_key = 'n': weighting = 'uniform' ignores it"),
        ({"arrayrecord_key": "a.b"}, "arrayrecord_key = 'a.b': must be a name without a dot"),
        ({"arrayrecord_key": "config"}, "arrayrecord_key = configrecord_key = 'config': must be two names"),
        ({"arrayrecord_key": "model", "compression": Int8()}, "arrayrecord_key = 'model': compression = .* reads"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        BaseStrategy(**arguments)


def plus_index(partition: int, arrays: Any, config: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the arrays plus the node's index."""
    return {"w": arrays["w"] + partition}, {"num-examples": 1}


def weighing_app(received: list[Message]) -> ClientApp:
    """Nodes that add their index, with weights ``num-batches`` of their index plus 1, under names of their own."""
    app = ClientApp()

    def metrics(message: Message, partition: int) -> MetricRecord:
        received.append(message)
        assert message.content["settings"]["server-round"] == 1
        return MetricRecord({"num-batches": partition + 1, "loss": float(partition)})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        moved = record_of({"w": message.content["model"]["w"].numpy() + partition})
        return Message(RecordDict({"new": moved, "seen": metrics(message, partition)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        content = RecordDict({"seen": metrics(message, int(context.node_config["partition-id"]))})
        return Message(content, reply_to=message)

    return app


def test_records_weights_and_metrics_are_those_of_the_project() -> None:
    """The mean of 0, 1, 2 with weights 1, 2, 3 is 8/6."""
    received: list[Message] = []
    reports: list[RoundReport] = []
    keys = ("weighted_by_key", "arrayrecord_key", "configrecord_key", "train_metrics_aggr_fn")
    strategy = BaseStrategy(**{key: FLOWER[key] for key in keys})
    result = federate(strategy, weighing_app(received), START, num_nodes=3, num_rounds=1, on_round=reports.append)
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], 8 / 6)
    assert dict(result.train_metrics_clientapp[1]) == {"largest": 2.0, "weights": 6}
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(8 / 6), "weighted by the same key"
    assert "num-batches" not in result.evaluate_metrics_clientapp[1], "Flower leaves it out, too"
    assert [node.num_examples for node in reports[0].nodes if node.phase == "train"] == [1, 2, 3]
    assert {name for message in received for name in message.content} == {"model", "settings"}


def test_a_reply_without_the_key_of_the_weights_is_refused_by_this_name() -> None:
    reports: list[RoundReport] = []
    strategy = BaseStrategy(weighted_by_key="num-batches", min_replies=0)
    app = arithmetic_app(plus_index)
    federate(strategy, app, START, num_nodes=1, num_rounds=1, on_round=reports.append)
    missing = "num-batches is missing; the metrics are num-examples"
    assert [refusal.reason for refusal in reports[0].refused] == [
        f"{missing} (weighted_by_key can name one)",
        f"{missing}, loss (weighted_by_key can name one)",
    ]


def test_the_function_of_metrics_gets_no_arrays_and_any_value_that_nodes_send() -> None:
    contents: list[RecordDict] = []

    def keep(replies: list[RecordDict], key: str) -> MetricRecord:
        contents.extend(replies)
        return MetricRecord({"count": len(replies)})

    app = arithmetic_app(lambda k, arrays, config: (arrays, {"num-examples": 1, "loss": inf}))
    strategy = BaseStrategy(train_metrics_aggr_fn=keep)
    result = federate(strategy, app, START, num_nodes=2, num_rounds=1)
    assert [set(content) for content in contents] == [{"metrics"}] * 2
    assert [content["metrics"]["loss"] for content in contents] == [inf, inf]
    assert dict(result.train_metrics_clientapp[1]) == {"count": 2}


@pytest.mark.parametrize(("phase", "kinds"), [("train", {"evaluate"}), ("evaluate", {"train"})])
def test_a_fraction_of_0_leaves_out_the_phase(phase: str, kinds: set[str]) -> None:
    seen: list[Message] = []
    strategy = BaseStrategy(**{f"fraction_{phase}": 0.0, f"min_{phase}_nodes": 2})
    result = federate(strategy, arithmetic_app(plus_index, seen=seen), START, num_nodes=2, num_rounds=1)
    assert {message.metadata.message_type for message in seen} == kinds
    if phase == "train":
        assert same_bits(arrays_of(result.arrays), START)


# -- plain clients ---------------------------------------------------------------------------------------------

#: The line of Flower's quickstart, and what takes its place.
LINES: dict[str, Callable[[], Any]] = {
    "FedAvg": lambda: FedAvg(fraction_train=0.5, min_available_nodes=2),
    "BaseStrategy": lambda: BaseStrategy(fraction_train=0.5, min_available_nodes=2),
    "server optimizer": lambda: BaseStrategy(fraction_train=0.5, server_optimizer=SGD(0.5)),
    "Median": lambda: BaseStrategy(fraction_train=1.0, min_train_nodes=3, aggregation=Median()),
    "PartialAggregation": lambda: PartialAggregation(shared=["0.*"], fraction_train=0.5, min_available_nodes=2),
    "AdaptiveRates": lambda: AdaptiveRates(fraction_train=0.5, min_available_nodes=2),
    "BufferedAsync": lambda: BufferedAsync(buffer=2, fraction_evaluate=0.5, min_available_nodes=2),
    "ClusteredFedAvg": lambda: ClusteredFedAvg(num_clusters=2, min_train_nodes=4, min_available_nodes=4),
    "FisherExchange": lambda: FisherExchange(fraction_train=0.5, min_available_nodes=2),
    "TrainedInTurn": lambda: TrainedInTurn(still=[[]], fraction_train=0.5, min_available_nodes=2),
}


class Noting(ClientApp):
    """The clients of another app, with a mod; ``kinds`` collects the types of the messages that they get."""

    def __init__(self, app: ClientApp, mod: Mod | None = None) -> None:
        super().__init__()
        self.app, self.mod, self.kinds = app, mod, set[str]()

    def __call__(self, message: Message, context: Context) -> Message:
        self.kinds.add(message.metadata.message_type)
        return self.mod(message, context, self.app) if self.mod else self.app(message, context)


@pytest.mark.parametrize("line", LINES)
def test_the_quickstart_runs_with_its_one_line_changed_and_plain_clients_are_asked_for_nothing_else(line: str) -> None:
    app = Noting(template_app(lambda k: 8), keep_private(template_net) if line == "PartialAggregation" else None)
    initial = {name: tensor.numpy() for name, tensor in template_net().state_dict().items()}
    result = federate(LINES[line](), app, initial, num_nodes=4, num_rounds=2)
    assert app.kinds == {"train", "evaluate"}, "no query, which plain clients answer with a traceback"
    assert set(result.train_metrics_clientapp) == set(result.evaluate_metrics_clientapp) == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "asks"),
    [
        ({}, False),
        ({"fraction_train": 0.5}, False),
        ({"profiles": True}, True),
        ({"sampler": FixedNodes(["part-1"])}, True),
        ({"sampler": FixedNodes(["node-2"]), "profiles": False}, False),
    ],
)
def test_nodes_are_asked_for_profiles_where_a_part_needs_them(arguments: dict[str, Any], asks: bool) -> None:
    app, reports = Noting(arithmetic_app(plus_index)), list[RoundReport]()
    federate(BaseStrategy(**arguments), app, START, num_nodes=2, num_rounds=1, on_round=reports.append)
    assert ("query.profile" in app.kinds) == asks
    assert all(node.node.startswith("part-" if asks else "node-") for node in reports[0].nodes)
