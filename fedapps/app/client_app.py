"""The ClientApp: a message comes in, the task's client does the work, a reply goes out."""

from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.client import Client, ClientApp

from fedapps.registry.methods import queries
from fedapps.strategies.wire import PROFILE, PROFILE_QUERY

from .errors import report_errors
from .mods import compressed_reply, disclosed_reply, hidden_divergence, limited_work, private_reply, timed_reply
from .node import Node
from .profile_query import profile_record

app = ClientApp(mods=[report_errors, limited_work])


@app.query(PROFILE_QUERY.removeprefix("query."))
def profile(message: Message, context: Context) -> Message:
    """The node's stable key, its number of training examples and its groups."""
    return Message(RecordDict({PROFILE: profile_record(context)}), reply_to=message)


@app.train(mods=[disclosed_reply, timed_reply, compressed_reply, private_reply])
def train(message: Message, context: Context) -> Message:
    """Train on this node's data and give back the names that came."""
    return Node(message, context).train()


@app.evaluate(mods=[disclosed_reply, timed_reply, hidden_divergence])
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on this node's data, after what the method trains before an evaluation."""
    return Node(message, context).evaluate()


def answer(query: str, message: Message, context: Context) -> Message:
    """Answer a QUERY message of the node's method."""
    return Node(message, context).answer(query)


for _query in queries():
    app.query(_query, mods=[disclosed_reply])(partial(answer, _query))


def client_fn(context: Context) -> Client:
    """The same node as Flower's ``NumPyClient``: ``ClientApp(client_fn=client_fn)``."""
    return Node(Message(RecordDict(), dst_node_id=0, message_type="train"), context).numpy_client().to_client()
