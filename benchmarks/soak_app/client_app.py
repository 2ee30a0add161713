"""A node whose replies depend on all of its earlier rounds, so that a lost or repeated round changes the result."""

from pathlib import Path

import numpy as np
from fedapps.clients.state import Attempts, DiskState
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("profile")
def profile(msg: Message, context: Context) -> Message:
    """Report the key of the node, which stays the same after a restart."""
    return Message(RecordDict({"profile": ConfigRecord({"key": key_of(_number(context))})}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Combine the received parameters with the private state and with random numbers of this node and round."""
    config = msg.content.config_records["config"]
    server_round, durable_round = (int(str(config[name])) for name in ("server-round", "durable-round"))
    attempts = Attempts.read(str(config["attempts"]))
    received = msg.content.array_records["arrays"]["parameters"].numpy()
    state = DiskState(Path(str(context.node_config["state-dir"])))
    kept = state.load(server_round, attempts) or {"private": np.zeros_like(received), "rounds": np.zeros(0, np.int64)}
    own = np.random.default_rng([_number(context), server_round]).normal(size=received.size)
    private = (0.9 * kept["private"] + 0.1 * received + own).astype(received.dtype)
    rounds = np.append(kept["rounds"], server_round)
    state.save(server_round, {"private": private, "rounds": rounds}, durable_round, attempts)
    arrays = ArrayRecord({"parameters": Array(0.5 * (received + private))})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Report the mean of the parameters."""
    mean = float(msg.content.array_records["arrays"]["parameters"].numpy().mean())
    return Message(RecordDict({"metrics": MetricRecord({"mean": mean, "num-examples": 1})}), reply_to=msg)


def key_of(number: int) -> str:
    """The key of the node with this partition id."""
    return f"node-{number:02d}"


def _number(context: Context) -> int:
    return int(context.node_config["partition-id"])
