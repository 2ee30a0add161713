"""A project of Flower under ``flwr run`` whose ``FedAvg`` became a strategy of this project, with its clients as they
are: nothing in the log looks broken.
"""

from pathlib import Path

import pytest
from example_apps import told
from flower_runs import Fleet, flower_run

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROJECT = """
[project]
name = "plain-clients"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "plain_clients.server_app:app"
clientapp = "plain_clients.client_app:app"

[tool.flwr.app.config]
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedapps.strategies import BaseStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = BaseStrategy(fraction_train=0.5, min_train_nodes=2, min_available_nodes=3)
    strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3)
"""
CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    (array,) = message.content["arrays"].to_numpy_ndarrays()
    content = RecordDict({"arrays": ArrayRecord([array + 1]), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    (array,) = message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": 1, "loss": float(array.mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


def test_plain_clients_are_asked_nothing_that_they_cannot_answer(tmp_path: Path) -> None:
    package = tmp_path / "app" / "plain_clients"
    package.mkdir(parents=True)
    (tmp_path / "app" / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__.py": "", "server_app.py": SERVER, "client_app.py": CLIENT}.items():
        (package / name).write_text(text)
    lines: list[str] = []
    flower_run(tmp_path / "app", {}, Fleet(num_nodes=3), home=tmp_path / "flwr", show=lines.append)
    log = "\n".join(lines)
    assert told(log, "loss") == [1, 2, 3], log
    for alarm in ("Traceback", "No query function", "ERROR", "takes part under its node id"):
        assert alarm not in log, log
