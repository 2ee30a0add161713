"""vendored: A Flower / NumPy app."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

# Flower ClientApp
app = ClientApp()


def load_data(context: Context):
    """Generate 20 measurements of three quantities with the means 1, 2 and 3."""
    return np.random.default_rng(context.node_config["partition-id"]).normal(loc=[1, 2, 3], size=(20, 3))


@app.train()
def train(msg: Message, context: Context):
    """Move the parameters by a tenth of the distance to the mean of the local data."""
    (mean,) = msg.content["arrays"].to_numpy_ndarrays()
    data = load_data(context)
    mean = mean + 0.1 * (data.mean(axis=0) - mean)
    metrics = MetricRecord({"num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord([mean]), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Report the mean squared distance of the local data from the parameters."""
    (mean,) = msg.content["arrays"].to_numpy_ndarrays()
    data = load_data(context)
    metrics = {"eval_loss": float(np.mean((data - mean) ** 2)), "num-examples": len(data)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
