"""The seconds that a node takes for the phases of its work, in its reply."""

import time

from flwr.app import ConfigRecord, Context, Message

from fedapps.strategies.stopwatch import measured
from fedapps.strategies.wire import CONFIG, TIMINGS, TIMINGS_WANTED

from .errors import Handler


def timed_reply(message: Message, context: Context, call_next: Handler) -> Message:
    """A mod that adds the record ``timings`` to the reply if the message asks for it. Use it as the outermost one."""
    config = message.content.get(CONFIG)
    wanted = isinstance(config, ConfigRecord) and bool(config.get(TIMINGS_WANTED))
    begun = time.perf_counter()
    with measured() as watch:  # also where it is not wanted: a server in this process measures its own phases only
        reply = call_next(message, context)
    if wanted and reply.has_content():
        rest = time.perf_counter() - begun - sum(watch.seconds.values())
        reply.content[TIMINGS] = ConfigRecord({**watch.seconds, "other": max(rest, 0.0)})
    return reply
