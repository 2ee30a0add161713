"""What surrounds the work of a message on a node: errors, limits, timings, the reply's compression, and its noise."""

import time
from functools import cache
from logging import WARNING

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.logger import log

from fedapps.base.errors import DivergedError, accept_all_text
from fedapps.clients.limits import NodeLimits
from fedapps.clients.settings import RoundSettings
from fedapps.clients.state import Attempts, PrivateState
from fedapps.strategies.compression import ErrorMemory, compressed
from fedapps.strategies.stopwatch import measured, timed
from fedapps.strategies.wire import CONFIG, METRICS, NUM_EXAMPLES, TIMINGS, TIMINGS_WANTED

from .disclosure import Disclosure, Handler, NodeFailedError, reported, run_config_of
from .node import Node
from .privacy import hiding_outcome, node_mod

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
    with NodeLimits.of(context.node_config).applied():
        return call_next(message, context)


def disclosed_reply(message: Message, context: Context, call_next: Handler) -> Message:
    """Let only those parts of the reply leave that the run's privacy and the node's rules allow."""
    disclosure = Disclosure(context)
    if message.metadata.message_type.startswith("train"):
        disclosure.check_budget()
    reply = call_next(message, context)
    if reply.has_content():
        disclosure.reply(reply)
    return reply


def hidden_divergence(message: Message, context: Context, call_next: Handler) -> Message:
    """Under local privacy, reply to EVALUATE as always where training before the evaluation diverges."""
    disclosure = Disclosure(context)
    if not disclosure.hides or disclosure.simulated:
        return call_next(message, context)
    try:
        return call_next(message, context)
    except DivergedError as error:
        log(WARNING, "%s: this node was not evaluated", error)
        return Message(RecordDict({METRICS: MetricRecord({NUM_EXAMPLES: 1})}), reply_to=message)


def timed_reply(message: Message, context: Context, call_next: Handler) -> Message:
    """Add the record ``timings`` to the reply if the message asks for it: the seconds of each phase of the work."""
    config = message.content.get(CONFIG)
    wanted = isinstance(config, ConfigRecord) and bool(config.get(TIMINGS_WANTED))
    begun = time.perf_counter()
    with measured() as watch:  # also where it is not wanted: a server in this process measures its own phases only
        reply = call_next(message, context)
    if wanted and reply.has_content():
        rest = time.perf_counter() - begun - sum(watch.seconds.values())
        reply.content[TIMINGS] = ConfigRecord({**watch.seconds, "other": max(rest, 0.0)})
    return reply


def compressed_reply(message: Message, context: Context, call_next: Handler) -> Message:
    """Compress the reply as the message asks, after the noise of local privacy."""
    with timed("encode"):
        return compressed(message, context, call_next, _error_memory)


def private_reply(message: Message, context: Context, call_next: Handler) -> Message:
    """Clip the reply and add noise as the run config's ``dp`` says, or the message's ``clipping_norm``."""
    run = run_config_of(context).run
    mod = node_mod(run, message, context)
    if mod is None:
        return call_next(message, context)
    if run.dp != "local":
        return mod(message, context, call_next)
    disclosure = Disclosure(context)
    reply = mod(message, context, call_next if disclosure.simulated else hiding_outcome(call_next))
    if reply.has_content():
        disclosure.count(message)
    return reply


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
        return self._state.load(self._settings.server_round, self._attempts) or {}

    def save(self, error: dict[str, np.ndarray]) -> None:
        self._state.save(self._settings.server_round, error, self._settings.durable_round, self._attempts)


def _error_memory(message: Message, context: Context) -> ErrorMemory:
    node = Node(message, context)
    return StateMemory(node.compression_state(), node.settings)
