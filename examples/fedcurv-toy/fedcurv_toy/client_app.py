"""fedcurv-toy: A Flower / NumPy app."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcurv_toy.task import fisher, load_data
from fedcurv_toy.task import test as test_fn
from fedcurv_toy.task import train as train_fn

# Flower ClientApp
app = ClientApp()


@app.query("profile")
def profile(msg: Message, context: Context):
    """Report a persistent key, under which the server stores what this node publishes."""
    record = ConfigRecord({"key": f"sensor-{context.node_config['partition-id']}"})
    return Message(RecordDict({"profile": record}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context):
    """Train with the other nodes' posteriors as a prior; return the Fisher information of this node."""
    x, y = load_data(context.node_config["partition-id"])
    theta = msg.content["arrays"]["theta"].numpy()
    # The server's sum over the other nodes; absent in the first round and if others-now is 0
    precision = linear = 0.0
    if "fisher.prior-precision" in msg.content:
        precision = msg.content["fisher.prior-precision"]["theta"].numpy()
        linear = msg.content["fisher.prior-linear"]["theta"].numpy()
    steps, lr = context.run_config["local-steps"], context.run_config["learning-rate"]
    theta = train_fn(theta, x, y, precision, linear, steps, lr)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord({"theta": Array(theta)}), "metrics": metrics})
    if "fisher" in msg.content:  # the default estimator is "per-sample"
        content["fisher.precision"] = ArrayRecord({"theta": Array(fisher(theta, x, y))})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the parameters; the true ones are known, because the data are generated."""
    metrics = {"eval_error": test_fn(msg.content["arrays"]["theta"].numpy()), "num-examples": 1}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
