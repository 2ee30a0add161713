"""Partial aggregation for ClientApps that load and return whole models, as a Flower mod.

A ClientApp like that of Flower's PyTorch template calls ``model.load_state_dict`` on the received arrays and returns
the whole ``model.state_dict()``. Under partial aggregation the first call would fail, and the reply would contain the
private parameters. With ``ClientApp(mods=[keep_private(Net)])`` the client works on whole models, and the server sees
the shared parameters only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedapps.sim.seeding import torch_seed
from fedapps.strategies.wire import ARRAYS, ATTEMPTS, DURABLE_ROUND, SERVER_ROUND
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from .attempts import Attempts
from .guard import Guard
from .named_arrays import Arrays, load_arrays, private_names
from .state import ContextState

_SCOPE = "keep-private"


def keep_private(make_model: Callable[[], nn.Module], seed: int = 0, *, private: Sequence[str] = ()) -> Mod:
    """Return a Flower mod that adds the private parameters to messages and removes them from replies.

    In TRAIN and EVALUATE messages the mod adds the parameters that are missing in the record ``arrays``, with the
    values that this node trained last; the initial values are those of ``make_model()``. It removes these parameters
    from every ArrayRecord of a reply. Those of a TRAIN reply are kept in ``Context.state``, by round, so a repeated
    round starts from the same values. Metrics and other records are sent as they are.

    A server must not decide alone what is private: a message that asks for a parameter of the patterns ``private``, or
    of the key ``private`` of the node config, is refused before the client sees it.

    Parameters
    ----------
    make_model : callable
        Builds the model that the client loads, such as its class ``Net``.
    seed : int
        The seed of the initial private parameters, which are the same on every node. Torch's random state is
        unchanged.
    private : sequence of str
        Glob patterns of the parameters that never leave the node, such as ``["head.*"]``; without patterns, those that
        the server does not ask for.

    Returns
    -------
    Mod
        On the node it raises :class:`~fedapps.clients.guard.PrivateParametersError` if the message asks for a private
        parameter, and ``ValueError`` if a pattern matches no parameter, if the message has no ``arrays`` or no round
        number (the strategies of Flower and of this project send one), if a received parameter does not fit the model,
        or if a TRAIN reply lacks private parameters.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.partition(".")[0]
        if kind not in ("train", "evaluate"):
            return call_next(message, context)
        received = _received(message)
        rounds = _Rounds.of(message)
        guard = Guard.of(context.node_config, also=private)
        guard.check_names(received)
        state = ContextState(context.state, scope=_SCOPE)
        with torch_seed(seed, "model"):
            model = make_model()
        guard.check_model(model, received)
        staying = private_names(model, received)
        before = rounds.server_round if kind == "train" else rounds.server_round + 1
        load_arrays(model, state.load(before, rounds.attempts) or {})
        load_arrays(model, received)
        message.content[ARRAYS] = ArrayRecord(model.state_dict())
        reply = call_next(message, context)
        if reply.has_content():
            taken = _taken_out(reply, staying)
            guard.check_records(reply.content.array_records)
            if kind == "train":
                if missing := [name for name in staying if name not in taken]:
                    raise ValueError(f"the client did not return {', '.join(missing)}: it must return its whole model")
                kept = {name: array.numpy() for name, array in taken.items()}
                state.save(rounds.server_round, kept, rounds.durable_round, rounds.attempts)
        return reply

    return mod


def _received(message: Message) -> Arrays:
    record = message.content.get(ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"the message has no ArrayRecord {ARRAYS!r}, only: {', '.join(message.content) or 'none'}")
    return {name: array.numpy() for name, array in record.items()}


@dataclass(frozen=True)
class _Rounds:
    """The round of a message, the last round that the server can go back to, and the attempts of the run."""

    server_round: int
    durable_round: int
    attempts: Attempts

    @classmethod
    def of(cls, message: Message) -> "_Rounds":
        for config in message.content.config_records.values():
            server_round = config.get(SERVER_ROUND)
            if isinstance(server_round, int):
                durable_round = int(str(config.get(DURABLE_ROUND, server_round - 1)))
                return cls(server_round, durable_round, Attempts.read(str(config.get(ATTEMPTS, ""))))
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
