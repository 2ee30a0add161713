"""The ClientApp: a message comes in, the task's client does the work, a reply goes out."""

from functools import partial
from logging import INFO

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import Client, ClientApp
from flwr.common.logger import log

from fedapps.base.errors import DataError
from fedapps.clients.data import is_simulated
from fedapps.clients.rules import RulesError
from fedapps.registry.methods import queries
from fedapps.strategies.wire import KEY, NO_DATA, NUM_EXAMPLES, OWN_DATA, PROFILE, PROFILE_QUERY

from .disclosure import Disclosure, reported, run_config_of
from .mods import (
    compressed_reply,
    disclosed_reply,
    hidden_divergence,
    limited_work,
    private_reply,
    report_errors,
    timed_reply,
)
from .node import Node

app = ClientApp(mods=[report_errors, limited_work])


@app.query(PROFILE_QUERY.removeprefix("query."))
def profile(message: Message, context: Context) -> Message:
    """The node's stable key, its number of training examples and its groups."""
    return Message(RecordDict({PROFILE: profile_record(context)}), reply_to=message)


def profile_record(context: Context) -> ConfigRecord:
    """The answer to the profile query (:mod:`fedapps.strategies.profiles`).

    It has the node's stable key, its number of training examples and its groups. No model is built, no picture decoded.
    A deployed node whose data is missing or cannot be read says so: why in its log, and to the server that it has none,
    which then asks it nothing more. So does a node whose operator demands more privacy than the run has, or whose
    budget is spent. The first method of the run decides how the data are read.
    """
    config = run_config_of(context)
    try:
        disclosure = Disclosure(context)
        disclosure.check_budget()
        task = config.task_of(next(iter(config.methods.values())))
        source = config.run.source(task, context.node_config)
        profile = source.profile(task)
        if source.partition is None and (line := task.describe_data(source.folder, own=True)):
            log(INFO, "data: %s", line)
    except (DataError, RulesError, OSError) as error:
        if is_simulated(context.node_config):
            raise
        why = reported(error, "the profile: this node takes no part in the run, which", context.node_config)
        return ConfigRecord({KEY: f"no-data-{context.node_id}", NUM_EXAMPLES: 0, NO_DATA: why})
    own = {OWN_DATA: True} if source.partition is None else {}
    return ConfigRecord({KEY: profile.key, **own, **disclosure.profile(profile.num_examples, profile.groups)})


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
