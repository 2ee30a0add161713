"""The ClientApp: a message comes in, the task's client does the work, a reply goes out.

This module imports no torch, so that a worker that only answers a profile query starts quickly; :mod:`fedapps.app.node`
has the part that trains.
"""

from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.client import Client, ClientApp

from fedapps.registry.methods import queries
from fedapps.strategies.compression import ErrorMemory, compressed
from fedapps.strategies.stopwatch import timed
from fedapps.strategies.wire import PROFILE, PROFILE_QUERY

from .errors import Handler, with_reported_errors
from .profile_query import profile_record
from .timings import timed_reply

app = ClientApp()


@app.query(PROFILE_QUERY.removeprefix("query."))
@with_reported_errors
def profile(message: Message, context: Context) -> Message:
    """The node's stable key, its number of training examples and its groups."""
    return Message(RecordDict({PROFILE: profile_record(context)}), reply_to=message)


def private_training(message: Message, context: Context, call_next: Handler) -> Message:
    """Clip the reply and add noise as the run config's ``dp`` says, or the message's ``clipping_norm``."""

    def guarded(message: Message, context: Context) -> Message:
        from .node import run_config_of
        from .privacy import node_mod

        mod = node_mod(run_config_of(context).run, message, context)
        return mod(message, context, call_next) if mod else call_next(message, context)

    return with_reported_errors(guarded)(message, context)


def compressed_training(message: Message, context: Context, call_next: Handler) -> Message:
    """Compress the reply as the message asks, after the noise of local privacy."""

    def memory(message: Message, context: Context) -> ErrorMemory:
        from .compression_memory import StateMemory

        return StateMemory.of(message, context)

    def handle(message: Message, context: Context) -> Message:
        with timed("encode"):
            return compressed(message, context, call_next, memory)

    return with_reported_errors(handle)(message, context)


@app.train(mods=[timed_reply, compressed_training, private_training])
@with_reported_errors
def train(message: Message, context: Context) -> Message:
    """Train on this node's data and give back the names that came."""
    with timed("import"):
        from .node import Node

    return Node(message, context).train()


@app.evaluate(mods=[timed_reply])
@with_reported_errors
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on this node's data, after what the method trains before an evaluation."""
    with timed("import"):
        from .node import Node

    return Node(message, context).evaluate()


def answer(query: str, message: Message, context: Context) -> Message:
    """Answer a QUERY message of the node's method."""
    from .node import Node

    return Node(message, context).answer(query)


for _query in queries():
    app.query(_query)(with_reported_errors(partial(answer, _query)))


def client_fn(context: Context) -> Client:
    """The same node as Flower's ``NumPyClient``: ``ClientApp(client_fn=client_fn)``."""
    from .node import Node

    return Node(Message(RecordDict(), dst_node_id=0, message_type="train"), context).client().to_client()
