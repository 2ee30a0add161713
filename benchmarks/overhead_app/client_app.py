"""A node that does almost no work, so that the benchmark measures the overhead of a round."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Halve the parameters and add a number that differs between nodes."""
    number = int(context.node_config["partition-id"]) + 1
    arrays = [array * 0.5 + 0.1 * number for array in msg.content.array_records["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"train_loss": 0.0, "num-examples": number})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Report the mean of the parameters."""
    means = [float(array.mean()) for array in msg.content.array_records["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"eval_loss": sum(means) / len(means), "num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
