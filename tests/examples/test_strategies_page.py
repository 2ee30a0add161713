"""docs/strategies.md: it has every strategy and only names that exist, and its clients run."""

import inspect
import re
from ast import literal_eval
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_apps import load_example
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import BaseStrategy, PartialAggregation, TooFewRepliesError, wire
from fedapps.tasks.lqr.task import LqrOptions, LqrTask
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn
from toys import federate

from fedapps import strategies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strategies.md").read_text()
EXAMPLE = ROOT / "examples" / "numpy-client"
PROFILE, PRIVATE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_has_every_strategy_with_its_arguments() -> None:
    kinds = [kind for name in strategies.__all__ if inspect.isclass(kind := getattr(strategies, name))]
    for kind in kinds:
        if issubclass(kind, BaseStrategy) and kind is not BaseStrategy:
            own = [p for name, p in inspect.signature(kind).parameters.items() if name not in ("base", "seed")]
            (shown,) = re.findall(rf"`{kind.__name__}\(([^`]*)\)` ?[|,]", PAGE)
            required, _, optional = shown.partition("[")
            for part, optional_part in ((required, False), (optional, True)):
                names = [p.name for p in own if (p.default is not p.empty) == optional_part]
                assert re.findall(r"\w+", part) == names


def test_arguments_and_names_of_messages_exist() -> None:
    parameters = inspect.signature(BaseStrategy).parameters
    parts = re.findall(r"\| `(\w+)`: ", PAGE)
    assert len(parts) >= 8
    assert set(parts) <= parameters.keys()
    known = {value for value in vars(wire).values() if isinstance(value, str)}
    for name in re.findall(r"`([a-z-]+\.[a-z-]+)(?:\.0|\.1)?`", PAGE):
        assert name in known or f"{name}." in known, name


def test_the_profile_of_the_page_is_read() -> None:
    names: dict[str, Any] = {"app": ClientApp(), "ConfigRecord": ConfigRecord, "Message": Message,
                             "RecordDict": RecordDict}  # fmt: skip
    exec(PROFILE, names)
    read: list[Any] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = BaseStrategy(profiles=True)
        strategy.registry.connected(grid)
        read.extend(strategy.registry.connected(grid))

    run_inprocess(server_app, names["app"], num_nodes=1)
    assert [(node.key, node.num_examples, node.groups) for node in read] == [("house-7", 120, {"city": "rome"})]


def test_the_private_head_of_the_page_stays_on_the_node() -> None:
    layers = {"body": nn.Linear(2, 3), "head": nn.Linear(3, 1)}
    names: dict[str, Any] = {"ClientApp": ClientApp, "Net": lambda: nn.Sequential(OrderedDict(layers))}
    exec(PRIVATE, names)
    seen = []

    @names["app"].train()
    @names["app"].evaluate()
    def work(message: Message, context: Context) -> Message:
        seen.append({name.partition(".")[0] for name in message.content.array_records["arrays"]})
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        if message.metadata.message_type == "train":
            content["arrays"] = message.content.array_records["arrays"]
        return Message(content, reply_to=message)

    (shared,) = re.findall(r"`PartialAggregation\(shared=(\[.*?\])\)` on the server", PAGE)
    initial = ArrayRecord(names["Net"]().state_dict())
    result = federate(PartialAggregation(shared=literal_eval(shared)), names["app"], initial, num_nodes=1, num_rounds=1)
    assert seen == [{"body", "head"}] * 2
    assert set(result.arrays) == {"body.weight", "body.bias"}


def test_a_numpy_client_needs_flowers_older_strategies() -> None:
    _, client_app, config = load_example(EXAMPLE)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        BaseStrategy().start(grid, ArrayRecord([np.zeros(2)]), num_rounds=1)

    with pytest.raises(TooFewRepliesError, match=r"KeyError: 'fitins\.parameters'"):
        run_inprocess(server_app, client_app, num_nodes=2, run_config=config, errors="reply")


def test_the_numpy_client_trains_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_app, client_app, config = load_example(EXAMPLE)
    from numpy_client.client_app import RobotClient

    evaluations: list[Any] = []
    evaluate = RobotClient.evaluate
    monkeypatch.setattr(RobotClient, "evaluate", lambda *given: evaluations.append(evaluate(*given)) or evaluations[-1])
    run_inprocess(server_app, client_app, num_nodes=2, run_config=config | {"learning-rate": 0.1})
    assert len(evaluations) == 10
    loss = [sum(loss for loss, _, _ in evaluations[k : k + 2]) for k in range(0, 10, 2)]
    assert loss == sorted(loss, reverse=True)

    LqrTask(LqrOptions(trajectories=2, horizon=5)).make_world(tmp_path, 1, seed=0)  # a robot with a file of its own
    evaluations.clear()
    run_inprocess(
        server_app,
        client_app,
        node_configs=[{"data-dir": str(tmp_path)}, {"partition-id": 0, "num-partitions": 2}],
        run_config=config | {"num-server-rounds": 1},
    )
    assert 5 in [examples for _, examples, _ in evaluations]
