"""secure-sum: A Flower / NumPy app."""

from fedapps.strategies import secagg_mod, secagg_query
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from secure_sum.task import load_data
from secure_sum.task import test as test_fn
from secure_sum.task import train as train_fn

# Flower ClientApp
app = ClientApp()
app.query("secagg")(secagg_query)


@app.train(mods=[secagg_mod])
def train(msg: Message, context: Context):
    """Train the model on local data."""
    (weights,) = msg.content["arrays"].to_numpy_ndarrays()
    data = load_data(context.node_config["partition-id"])
    weights = train_fn(weights, data, context.run_config["learning-rate"])
    metrics = MetricRecord({"train_loss": test_fn(weights, data), "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=msg)
