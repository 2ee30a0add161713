"""numpy-hierarchy: A Flower / NumPy app."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpy_hierarchy.task import load_data
from numpy_hierarchy.task import test as test_fn
from numpy_hierarchy.task import train as train_fn

# Flower ClientApp
app = ClientApp()


@app.query("profile")
def profile(msg: Message, context: Context):
    """Report the profile of this node: a persistent key, its number of examples and its group."""
    partition_id = context.node_config["partition-id"]
    city, (_, y), _ = load_data(partition_id)
    record = ConfigRecord({"key": f"house-{partition_id}", "num-examples": len(y), "group.city": city})
    return Message(RecordDict({"profile": record}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    (weights,) = msg.content["arrays"].to_numpy_ndarrays()
    _, data, _ = load_data(context.node_config["partition-id"])
    weights = train_fn(weights, data, context.run_config["local-steps"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": test_fn(weights, data), "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    (weights,) = msg.content["arrays"].to_numpy_ndarrays()
    _, _, data = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"eval_loss": test_fn(weights, data), "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
