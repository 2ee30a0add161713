"""Partial aggregation for ClientApps that load and return whole models, as a Flower mod.

A ClientApp like that of Flower's PyTorch template calls ``model.load_state_dict`` on the received arrays and returns
the whole ``model.state_dict()``. Under partial aggregation the first call would fail, and the reply would contain the
private parameters. With ``ClientApp(mods=[keep_private(Net)])`` the client works on whole models, and the server sees
the shared parameters only.
"""

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from sim.seeding import torch_seed
from strategies.wire import ARRAYS, DURABLE_ROUND, SERVER_ROUND

from .named_arrays import Arrays, load_arrays, private_names
from .state import ContextState

_SCOPE = "keep-private"


def keep_private(make_model: Callable[[], nn.Module], seed: int = 0) -> Mod:
    """Return a Flower mod that adds the private parameters to messages and removes them from replies.

    In TRAIN and EVALUATE messages the mod adds the parameters that are missing in the record ``arrays``, with the
    values that this node trained last; the initial values are those of ``make_model()``. It removes these parameters
    from every ArrayRecord of a reply. Those of a TRAIN reply are kept in ``Context.state``, by round, so a repeated
    round starts from the same values. Metrics and other records are sent as they are.

    Parameters
    ----------
    make_model : callable
        Builds the model that the client loads, such as its class ``Net``.
    seed : int
        The seed of the initial private parameters, which are the same on every node. Torch's random state is
        unchanged.

    Returns
    -------
    Mod
        On the node it raises ``ValueError`` if the message has no ``arrays`` or no round number (the strategies of
        Flower and of this project send one), if a received parameter does not fit the model, or if a TRAIN reply lacks
        private parameters.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.partition(".")[0]
        if kind not in ("train", "evaluate"):
            return call_next(message, context)
        received = _received(message)
        server_round, durable_round = _rounds(message)
        state = ContextState(context.state, scope=_SCOPE)
        with torch_seed(seed, "model"):
            model = make_model()
        private = private_names(model, received)
        load_arrays(model, state.load(server_round if kind == "train" else server_round + 1) or {})
        load_arrays(model, received)
        message.content[ARRAYS] = ArrayRecord(model.state_dict())
        reply = call_next(message, context)
        if reply.has_content():
            taken = _taken_out(reply, private)
            if kind == "train":
                if missing := [name for name in private if name not in taken]:
                    raise ValueError(f"the client did not return {', '.join(missing)}: it must return its whole model")
                state.save(server_round, {name: array.numpy() for name, array in taken.items()}, durable_round)
        return reply

    return mod


def _received(message: Message) -> Arrays:
    record = message.content.get(ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"the message has no ArrayRecord {ARRAYS!r}, only: {', '.join(message.content) or 'none'}")
    return {name: array.numpy() for name, array in record.items()}


def _rounds(message: Message) -> tuple[int, int]:
    """The round, and the last round that the server can go back to, by default the one before."""
    for config in message.content.config_records.values():
        server_round = config.get(SERVER_ROUND)
        if isinstance(server_round, int):
            durable_round = config.get(DURABLE_ROUND, server_round - 1)
            return server_round, int(str(durable_round))
    raise ValueError("the message has no server-round: use a strategy that sends it, such as PartialAggregation")


def _taken_out(reply: Message, names: list[str]) -> ArrayRecord:
    """Remove the named arrays from all ArrayRecords of a reply, and return them; the first record's value counts."""
    taken = ArrayRecord()
    for record in reply.content.array_records.values():
        for name in names:
            if name in record:
                array = record.pop(name)
                taken.setdefault(name, array)
    return taken
