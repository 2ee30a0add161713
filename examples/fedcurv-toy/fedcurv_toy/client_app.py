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
    """Tell the server a name that lasts, under which it keeps what this node publishes."""
    record = ConfigRecord({"key": f"sensor-{context.node_config['partition-id']}"})
    return Message(RecordDict({"profile": record}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context):
    """Train near what the others are sure of; say how sure this node is."""
    x, y = load_data(context.node_config["partition-id"])
    theta = msg.content["arrays"]["theta"].numpy()
    # What the other nodes published, summed up by the server: not there in the first round, nor where others-now is 0
    precision = linear = 0.0
    if "fisher.prior-precision" in msg.content:
        precision = msg.content["fisher.prior-precision"]["theta"].numpy()
        linear = msg.content["fisher.prior-linear"]["theta"].numpy()
    steps, lr = context.run_config["local-steps"], context.run_config["learning-rate"]
    theta = train_fn(theta, x, y, precision, linear, steps, lr)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord({"theta": Array(theta)}), "metrics": metrics})
    if "fisher" in msg.content:  # its estimator is "per-sample", unless the strategy is told otherwise
        content["fisher.precision"] = ArrayRecord({"theta": Array(fisher(theta, x, y))})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the parameters; on made-up data the truth is known."""
    metrics = {"eval_error": test_fn(msg.content["arrays"]["theta"].numpy()), "num-examples": 1}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
