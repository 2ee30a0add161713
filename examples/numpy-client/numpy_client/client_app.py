"""numpy-client: the nodes, clients of Flower's older API that train a task of fedapps."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from fedapps.clients.base import FederatedClient
from fedapps.clients.numpy_client import NumPyClientAdapter
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.clients.state import ContextState
from fedapps.tasks.base import NodeData
from fedapps.tasks.lqr.task import LqrTask
from flwr.client import Client, ClientApp
from flwr.common import Context

task = LqrTask()


class RobotClient(NumPyClientAdapter):
    """Train and evaluate the task as Flower's ``NumPyClient``. Override what you like."""

    def fit(self, parameters, config):
        arrays, examples, metrics = super().fit(parameters, config)
        return arrays, examples, metrics | {"received": len(parameters)}


def load(context: Context) -> NodeData:
    """The data of this robot, ``robot-NAME.csv`` in its folder, or of a simulated one."""
    node = context.node_config
    if "data-dir" in node:
        return task.load_own(Path(str(node["data-dir"])))
    with TemporaryDirectory() as folder:
        task.make_world(Path(folder), int(node["num-partitions"]), seed=0)
        return task.load_node(Path(folder), int(node["partition-id"]), int(node["num-partitions"]))


def client_fn(context: Context) -> Client:
    """Make the client of this node."""
    training = LocalTraining(
        epochs=int(context.run_config["local-epochs"]), learning_rate=float(context.run_config["learning-rate"])
    )
    node = FederatedClient(task, load(context), ContextState(context.state), seed=0, device=torch.device("cpu"))
    return RobotClient(node, RoundSettings(training=training), memory=context.state).to_client()


app = ClientApp(client_fn=client_fn)
