"""The ClientApp: a message comes in, the task's client does the work, a reply goes out.

Around the work are, from the outside in: errors, limits, packed arrays, what may leave, timings, compression of the
reply, and noise.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, ClientApp
from flwr.common import log

from fedapps.base.errors import DataError, DivergedError, accept_all_text
from fedapps.base.seeding import derive_seed
from fedapps.clients.rules import NodeLimits, RulesError, is_simulated
from fedapps.clients.settings import RoundSettings
from fedapps.clients.state import Attempts, PrivateState
from fedapps.config.run_config import secure_aggregation_of
from fedapps.registry.methods import queries
from fedapps.strategies import SecureAggregationError, secagg_query, wire
from fedapps.strategies.arrays import is_float, shared_record, to_record, views, without
from fedapps.strategies.compression import compressed
from fedapps.strategies.packing import packing_mod
from fedapps.strategies.secure_aggregation import FEWEST
from fedapps.strategies.secure_node import encoding_of, masked
from fedapps.strategies.stopwatch import measured, timed

from .disclosure import Disclosure, Handler, NodeFailedError, registry_label, reported, run_config_of
from .node import Node
from .privacy import hiding_outcome, protected

#: The phase of all work that is in no other.
_OTHER = "other"
_accept_all_text_once = cache(accept_all_text)


def report_errors(message: Message, context: Context, call_next: Handler) -> Message:
    """A mod that raises :class:`NodeFailedError` for every error, with the text that Flower sends to the server."""
    _accept_all_text_once()
    try:
        return call_next(message, context)
    except Exception as error:
        what = f"the {message.metadata.message_type} message"
        raise NodeFailedError(reported(error, what, context.node_config)) from None


def limited_work(message: Message, context: Context, call_next: Handler) -> Message:
    """Work within the limits of the node config."""
    with _limits_of(tuple(context.node_config.items())).applied():
        return call_next(message, context)


@lru_cache(maxsize=4096)  # of the nodes of a process
def _limits_of(node_config: tuple[tuple[str, Any], ...]) -> NodeLimits:
    return NodeLimits.of(dict(node_config))


class StateMemory:
    """The error of the last compression, a version per round as all private state (``ErrorMemory``).

    Parameters
    ----------
    state : PrivateState
        Of the errors alone.
    settings : RoundSettings
        Those of the message.
    """

    def __init__(self, state: PrivateState, settings: RoundSettings) -> None:
        self._state = state
        self._settings = settings
        self._attempts = Attempts.read(settings.attempts)

    def load(self) -> dict[str, np.ndarray]:
        # a message that repeats a version goes on with the error of the one before it
        before = self._settings.server_round + bool(self._settings.repeat)
        return self._state.load(before, self._attempts) or {}

    def save(self, error: dict[str, np.ndarray]) -> None:
        settings = self._settings
        self._state.save(
            settings.server_round, error, settings.durable_round, self._attempts, best_round=settings.best_round
        )


app = ClientApp(mods=[report_errors, limited_work, packing_mod])


@app.query(wire.PROFILE_QUERY.removeprefix("query."))
def profile(message: Message, context: Context) -> Message:
    """The node's stable key, its number of training examples and its groups."""
    return Message(RecordDict({wire.PROFILE: profile_record(context)}), reply_to=message)


def profile_record(context: Context) -> ConfigRecord:
    """The answer to the profile query (:mod:`fedapps.strategies.profiles`).

    It has the node's stable key, its number of training examples and its groups. No model is built, no picture decoded.
    A deployed node whose data is missing or cannot be read says so: why in its log, and to the server that it has none,
    which then asks it nothing more. So does a node whose operator demands more privacy than the run has, or whose
    budget is spent. A node that may not work now by its own rules says so, too, and is asked again before each round.

    The first method of the run decides how the data are read.
    """
    config = run_config_of(context)
    try:
        disclosure = Disclosure.of(context)
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
        return ConfigRecord({wire.KEY: f"no-data-{context.node_id}", wire.NUM_EXAMPLES: 0, wire.NO_DATA: why})
    taken = disclosure.taken(profile.key, disclosure.trained(profile.num_examples))
    of_data: dict[str, bool | str] = {wire.OWN_DATA: True} if source.partition is None else {}
    if source.partition is None and (metric := config.unreported(source.folder)):
        of_data[wire.UNREPORTED] = metric
    if (reason := disclosure.rules.ineligible()) is not None:
        of_data[wire.INELIGIBLE] = reason
    return ConfigRecord({wire.KEY: profile.key, **of_data, **disclosure.profile(taken, profile.groups)})


@app.query(wire.CHAMPION_QUERY.removeprefix("query."))
def champion(message: Message, context: Context) -> Message:
    """The generation of champions that the node uses, after it has changed to the one that it shall use.

    It is 0 if the node's models are those of another registry, also of one with the same name.
    """
    sent = message.content.config_records.get(wire.CONFIG, ConfigRecord())
    wanted, label = sent.get(wire.USE), registry_label(sent)
    if type(wanted) is not int or wanted < 0:
        raise ValueError(f"config {wire.USE} = {wanted!r}: must be a whole number of at least 0")
    disclosure, config = Disclosure.of(context), run_config_of(context)
    key = config.run.source(config.task, context.node_config).profile(config.task).key
    generation = disclosure.champions(key, label).use(wanted)
    return Message(RecordDict({wire.CHAMPION: ConfigRecord({wire.USE: generation})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's data and give back the names that came."""
    return _timed(message, context, _trained)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on this node's data, after what the method trains before an evaluation."""
    return _timed(message, context, _evaluated)


def answer(query: str, message: Message, context: Context) -> Message:
    """Answer a QUERY message of the node's method."""
    node = Node(message, context)
    return node.disclosure.reply(node.answer(query))


@app.query(wire.SECAGG_QUERY.removeprefix("query."))
def share_secrets(message: Message, context: Context) -> Message:
    """Take part in an exchange of secure aggregation, if the run and the node have it."""
    return secagg_query(message, context, Disclosure.of(context).notes)


for _query in queries():
    app.query(_query)(partial(answer, _query))


def _timed(message: Message, context: Context, work: Callable[[Node], Message]) -> Message:
    """The part of a reply that may leave, with the record ``timings`` if the message asks for it: the seconds of each
    phase of the work.
    """
    begun = time.perf_counter()
    with measured() as watch:  # also where it is not wanted: a server in this process measures its own phases only
        with timed("config"):
            node = Node(message, context)
        reply = work(node)
    if node.round_config.get(wire.TIMINGS_WANTED) and reply.has_content():
        seconds = {phase: spent for phase, spent in watch.seconds.items() if phase != _OTHER}
        rest = time.perf_counter() - begun - sum(seconds.values())
        reply.content[wire.TIMINGS] = ConfigRecord({**seconds, _OTHER: max(rest, 0.0)})
    return node.disclosure.reply(reply) if node.disclosure.withholds else reply


def _trained(node: Node) -> Message:
    """Train, with the noise of local privacy, and mask or compress the reply as the run or the message asks."""
    node.disclosure.check_budget()
    node.disclosure.rules.check_eligible()
    if node.config.run.secure_aggregation:
        return _masked(node)
    if wire.COMPRESSION not in node.round_config:
        return _noised(node)

    def work(*_: object) -> Message:
        with timed(_OTHER):
            return _noised(node)

    with timed("encode"):
        return compressed(
            node.message, node.context, work, lambda *_: StateMemory(node.compression_state(), node.settings)
        )


def _masked(node: Node) -> Message:
    """Train, and mask the update. Without update that is finite, the node is in the sum with none.

    Raises
    ------
    SecureAggregationError
        The message asks for an update without masks, with less noise than the run config says, or with other scales or
        metrics.
    RulesError
        A metric of the sum may not leave the node.
    """
    run, message, disclosure = node.config.run_of(str(node.round_config.get("method"))), node.message, node.disclosure
    asked, part = message.content.get(wire.SECAGG), secure_aggregation_of(run)
    if part is None or not isinstance(asked, ConfigRecord):
        raise SecureAggregationError("secure-aggregation = true: the message asks for an update without masks")
    encoding, of_run = encoding_of(asked), part.plan(FEWEST)[2]
    if replace(encoding, noise=of_run.noise) != of_run:
        raise SecureAggregationError("the message asks for other scales or metrics in the sum than the run config")
    if hidden := [name for name in encoding.metrics if not disclosure.rules.lets_out(name, otherwise=True)]:
        raise RulesError(f"{', '.join(hidden)}: the node config may-leave lets it not leave, not even in a sum")
    untrained = wire.names_in(node.round_config, wire.UNTRAINED)
    received = without(views(shared_record(message.content)), untrained)

    def work(*_: object) -> Message:
        try:
            return node.train()
        except DivergedError as error:
            log(WARNING, "%s: no update of this node is in the sum", error)
        nothing = {name: array * np.nan if is_float(array) else array for name, array in received.items()}
        return Message(RecordDict({wire.ARRAYS: to_record(nothing), wire.METRICS: MetricRecord()}), reply_to=message)

    name = str(node.context.node_config.get("partition-id", node.context.node_id))
    rounding = np.random.default_rng(derive_seed(run.seed, "rounding", name, node.settings.server_round))
    least_noise = run.dp_noise if run.dp == "distributed" else 0.0
    reply = masked(message, node.context, work, rounding, least_noise, disclosure.notes)
    if run.dp == "distributed" and reply.has_content():
        disclosure.count(message)
    return reply


def _noised(node: Node) -> Message:
    """Train, clip the reply and add noise as the run config's ``dp`` says, or the message's ``clipping_norm``."""
    run, disclosure = node.config.run, node.disclosure
    if run.dp != "local" and wire.CLIPPING_NORM not in node.round_config:
        return node.train()

    def work(message: Message, context: Context) -> Message:
        return node.train()

    hides = run.dp == "local" and not disclosure.simulated
    reply = protected(run, node.message, node.context, hiding_outcome(work) if hides else work)
    if reply.has_content():
        disclosure.count(node.message)
    return reply


def _evaluated(node: Node) -> Message:
    """Evaluate. Under local privacy, reply as always where training before the evaluation diverges.

    A node that may not work now can still be given another model to use.
    """
    if wire.PROMOTE not in node.round_config:
        node.disclosure.rules.check_eligible()
    if not node.disclosure.hides or node.disclosure.simulated:
        return node.evaluate()
    try:
        return node.evaluate()
    except DivergedError as error:
        log(WARNING, "%s: this node was not evaluated", error)
        return Message(RecordDict({wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: 1})}), reply_to=node.message)


def client_fn(context: Context) -> Client:
    """The same node as Flower's ``NumPyClient``: ``ClientApp(client_fn=client_fn)``."""
    with _limits_of(tuple(context.node_config.items())).applied():
        return Node(Message(RecordDict(), dst_node_id=0, message_type="train"), context).numpy_client().to_client()
