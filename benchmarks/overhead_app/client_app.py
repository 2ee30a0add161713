"""A node that does almost no work, so that the benchmark measures the overhead of a round."""

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp


def as_fedapps(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Take packed arrays apart, on our side only: the other one does not wait for the import."""
    if not context.run_config["as-fedapps"]:
        return call_next(message, context)
    from fedapps.strategies import packing_mod

    return packing_mod(message, context, call_next)


app = ClientApp(mods=[as_fedapps])


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
