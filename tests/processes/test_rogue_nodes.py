"""Rogue nodes in a real federation: a SuperLink, SuperNodes, and an app whose nodes are as bad as their config says."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rogue
from toys import same_bits

from fedapps.deployment.superlink import deployment

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROJECT = """
[project]
name = "rogue-nodes"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "rogue_nodes.server_app:app"
clientapp = "rogue_nodes.client_app:app"

[tool.flwr.app.config]
folder = ""
num-nodes = 1
"""
SERVER = """
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.strategies import BaseStrategy, Each
from fedapps.strategies import ExampleLimits

app = ServerApp()


@app.main()
def main(grid, context):
    reports, folder = [], Path(context.run_config["folder"])
    limits = ExampleLimits(maximum=1000, may_grow=False)
    strategy = BaseStrategy(min_nodes=context.run_config["num-nodes"], example_limits=limits)
    initial = ArrayRecord([np.zeros((3, 2)), np.ones(2, np.float32)])
    record = Each(lambda report: reports.append(asdict(report)))
    result = strategy.start(grid, initial, num_rounds=1, callbacks=[record])
    np.savez(folder / "arrays.npz", **{name: array.numpy() for name, array in result.arrays.items()})
    (folder / "reports.json").write_text(json.dumps(reports, allow_nan=False))
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from rogue_nodes.rogue import METRIC_FAULTS, TRAIN_FAULTS

app = ClientApp()


def answer(message, context, content, faults):
    fault = context.node_config.get(message.metadata.message_type)
    return Message(faults[fault][0](content) if fault else content, reply_to=message)


@app.query("profile")
def profile(message, context):
    liar = context.node_config.get("lies")
    key, examples = ("x" * 1_000_000 + "\\n/..", 10**9) if liar else (f"house-{context.node_config['number']}", 5)
    return Message(RecordDict({"profile": ConfigRecord({"key": key, "num-examples": examples})}), reply_to=message)


@app.train()
def train(message, context):
    step = 0.1 * (1 + context.node_config["number"])
    arrays = {name: Array(a.numpy() + a.numpy().dtype.type(step)) for name, a in message.content["arrays"].items()}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 5, "loss": step})})
    return answer(message, context, content, TRAIN_FAULTS)


@app.evaluate()
def evaluate(message, context):
    content = RecordDict({"metrics": MetricRecord({"num-examples": 5, "loss": 0.5})})
    return answer(message, context, content, METRIC_FAULTS)
"""
HONEST = [{"number": 0}, {"number": 1}]
ROGUES = [
    {"number": 2, "train": "a crash", "evaluate": "count beyond counting"},
    {"number": 3, "train": "huge arrays", "evaluate": "thousands of metrics"},
    {"number": 4, "train": "bomb", "evaluate": "no metrics", "lies": 1},
]


def expected() -> dict[str, np.ndarray]:
    """What the honest nodes alone come to: the mean of their two steps."""
    start = {"0": np.zeros((3, 2)), "1": np.ones(2, np.float32)}
    mean = {}
    for name, array in start.items():
        first, second = (array + array.dtype.type(step) for step in (0.1, 0.2))
        wide = first.astype(np.float64)
        mean[name] = (wide + 0.5 * (second.astype(np.float64) - wide)).astype(array.dtype)
    return mean


def test_rogue_nodes_are_refused_and_named(tmp_path: Path) -> None:
    app, lines = tmp_path / "app", []
    package = app / "rogue_nodes"
    package.mkdir(parents=True)
    for path, text in (("__init__.py", ""), ("server_app.py", SERVER), ("client_app.py", CLIENT)):
        (package / path).write_text(text)
    (app / "pyproject.toml").write_text(PROJECT)
    shutil.copy(rogue.__file__, package)
    nodes = [*HONEST, *ROGUES]
    with deployment(tmp_path / "fleet", libraries=()) as fleet:
        fleet.start_superlink()
        fleet.start_supernodes(nodes)
        fleet.run(app, {"folder": str(tmp_path), "num-nodes": len(nodes)}, lines.append)
    log = "\n".join(lines)
    assert (tmp_path / "reports.json").exists(), log[-5000:]

    with np.load(tmp_path / "arrays.npz") as arrays:
        # The server optimizer's step, θ − (θ − mean), is the mean to the last bit at rate 1.
        assert same_bits(dict(arrays), expected())
    (report,) = json.loads((tmp_path / "reports.json").read_text())
    assert report["replies"] == 2
    assert report["evaluate"] == {"loss": 0.5, "num-examples": 10}
    for phase, faults in (("train", rogue.TRAIN_FAULTS), ("evaluate", rogue.METRIC_FAULTS)):
        refused = [(refusal["node"], refusal["reason"]) for refusal in report["refused"] if refusal["phase"] == phase]
        assert len(refused) == len(ROGUES)
        for (name, reason), node in zip(sorted(refused), ROGUES, strict=True):  # in the order of their keys
            assert name.startswith("node-") if "lies" in node else name == f"house-{node['number']}"
            assert faults[node[phase]][1] in reason
    assert len(json.dumps(report)) < 20_000
    assert max(map(len, lines)) < 10_000
