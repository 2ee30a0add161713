"""The parameters that stay on a node, whatever a message asks for.

What a server sends is what it asks back. A node does not leave that choice to the server: it holds every message
against its own method and against the patterns that its operator set, and refuses one that names a private parameter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedapps.strategies.wire import ARRAYS, BUFFERS, CONFIG, DURABLE_ROUND, LAST_ROUND, SERVER_ROUND, names_in
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from fedapps.base.options import option
from fedapps.base.seeding import torch_seed

from .arrays import load_arrays, matches, private_names
from .rules import PRIVATE, NodeRules
from .settings import received_arrays, with_config
from .state import Attempts, ContextState, DiskState, PrivateState


class PrivateParametersError(ValueError):
    """A message asks for parameters that stay on this node. The error names them as the message did, without shapes."""


@dataclass(frozen=True)
class Guard:
    """What a node keeps to itself.

    Parameters
    ----------
    methods : tuple of tuples of str
        The glob patterns of the private parameters of each method that the message can be meant for. A parameter that
        one of these methods shares may leave the node.
    node : tuple of str
        The patterns of the node's operator. They hold for every method, and no message can change them. Each must match
        a parameter of the model, because a misspelt pattern would protect nothing.
    rules : NodeRules
        Which records may leave beside the shared arrays, and how many examples a mean must have. Without a list of
        records, a node whose operator keeps every parameter sends none, because they are computed from parameters.
    """

    methods: tuple[tuple[str, ...], ...] = ((),)
    node: tuple[str, ...] = ()
    rules: NodeRules = field(default_factory=lambda: NodeRules(min_count=1))

    @classmethod
    def of(
        cls, node_config: Mapping[str, Any], methods: Iterable[tuple[str, ...]] = ((),), also: Sequence[str] = ()
    ) -> "Guard":
        """The guard of a node: the patterns in the key ``private`` of its node config, those in ``also``, its rules."""
        patterns = (pattern.strip() for pattern in str(node_config.get(PRIVATE, "")).split(","))
        own = (*also, *(pattern for pattern in patterns if pattern))
        return cls(tuple(methods), own, NodeRules.of(node_config))

    @cached_property
    def _keeps_nothing(self) -> bool:
        return not self.node and not all(self.methods)

    def stays(self, name: str) -> bool:
        """Whether a parameter of this name never leaves the node."""
        return matches(name, self.node) or all(matches(name, patterns) for patterns in self.methods)

    def check_names(self, names: Iterable[str]) -> None:
        """Check the names of a message, or of a reply.

        Raises
        ------
        PrivateParametersError
            Some of the names stay on this node.
        """
        if self._keeps_nothing:
            return
        if private := [name for name in names if self.stays(name)]:
            raise PrivateParametersError(f"{', '.join(private)}: private on this node, and neither received nor sent")

    def check_model(self, model: nn.Module, names: Iterable[str]) -> None:
        """Check that the patterns fit the model, and that no name stands for a private tensor.

        Raises
        ------
        PrivateParametersError
            One of the names is a second name of a private tensor, such as that of tied weights.
        ValueError
            A pattern in ``node`` matches no parameter.
        """
        if self._keeps_nothing:
            return
        state = model.state_dict()
        if idle := [pattern for pattern in self.node if not any(matches(name, [pattern]) for name in state)]:
            raise ValueError(
                f"{PRIVATE} = {', '.join(idle)}: no parameter of the model matches; it has {', '.join(state)}"
            )
        private = {tensor.data_ptr() for name, tensor in state.items() if tensor.numel() and self.stays(name)}
        if tied := [name for name in names if name in state and state[name].data_ptr() in private]:
            raise PrivateParametersError(f"{', '.join(tied)}: the same numbers as a private parameter of this node")

    def check_records(
        self, records: Mapping[str, ArrayRecord], make_model: Callable[[], nn.Module] | None = None
    ) -> None:
        """Check the records that are to leave the node.

        Parameters
        ----------
        records : mapping of names to ArrayRecords
        make_model : callable, optional
            Builds the node's model, to see whether its operator keeps all of it.

        Raises
        ------
        PrivateParametersError
            A record has parameters that stay, or may not leave. In a record that the operator lists, names that no
            parameter of the model has, such as ``counts``, match no pattern.
        """
        parameters = set(make_model().state_dict()) if records and self.node and make_model else set()
        keeps_all = bool(parameters) and all(matches(name, self.node) for name in parameters)
        for name, record in records.items():
            listed = self.rules.lets_out(name, otherwise=False)
            self.check_names(parameters.intersection(record) if listed and parameters else record)
            if name != ARRAYS and not self.rules.lets_out(name, otherwise=not keeps_all):
                raise PrivateParametersError(
                    f"{name}: may not leave this node, by the keys private and may-leave of its node config"
                )


_SCOPE = "keep-private"


def keep_private(make_model: Callable[[], nn.Module], seed: int = 0, *, private: Sequence[str] = ()) -> Mod:
    """Return a Flower mod that adds the private parameters to messages and removes them from replies.

    In TRAIN and EVALUATE messages the mod adds the parameters that are missing in the record ``arrays``, with the
    values that this node trained last; the initial values are those of ``make_model()``. It removes these parameters
    from every ArrayRecord of a reply. Those of a TRAIN reply are kept by round, so a repeated round starts from the
    same values: in ``Context.state``, which ends with the process of the SuperNode, or, if the node config has
    ``state-dir``, a folder of this node alone, in ``keep-private/RUN/round-N.safetensors`` there. Metrics and other
    records are sent as they are.

    A server must not decide alone what is private: a message that asks for a parameter of the patterns ``private``, or
    of the key ``private`` of the node config, is refused before the client sees it.

    Other mods can come before or after it, but those that mask updates come before:
    ``@app.train(mods=[secagg_mod, keep_private(Net)])``.

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
        received = received_arrays(message)
        rounds = _Rounds.of(message)
        guard = Guard.of(context.node_config, also=private)
        guard.check_names(received)
        state = _kept(context)
        with torch_seed(seed, "model"):
            model = make_model()
        guard.check_model(model, received)
        staying = private_names(model, received)
        before = rounds.server_round + (kind == "evaluate" or rounds.repeat > 0)
        attempts = Attempts.read(rounds.attempts)
        load_arrays(model, state.load(before, attempts) or {})
        load_arrays(model, received)
        message.content[ARRAYS] = ArrayRecord(model.state_dict())
        if staying and isinstance(config := message.content.get(CONFIG), ConfigRecord):
            config[BUFFERS] = [*names_in(config, BUFFERS), *staying]  # which compression_mod leaves as they are
        reply = call_next(message, context)
        if reply.has_content():
            taken = _taken_out(reply, staying)
            guard.check_records(reply.content.array_records)
            if kind == "train":
                if missing := [name for name in staying if name not in taken]:
                    raise ValueError(
                        f"the client did not return {', '.join(missing)}: it must return its whole model, and "
                        "secagg_mod comes before keep_private"
                    )
                kept = {name: array.numpy() for name, array in taken.items()}
                state.save(rounds.server_round, kept, rounds.durable_round, attempts)
        return reply

    return mod


def _kept(context: Context) -> PrivateState:
    if folder := str(context.node_config.get("state-dir") or ""):
        return DiskState.of(Path(folder).expanduser(), _SCOPE, str(context.run_id))
    return ContextState(context.state, scope=_SCOPE)


@dataclass(frozen=True)
class _Rounds:
    """The round of a message, the last round that the server can go back to, and the attempts of the run."""

    server_round: int = option(1, "the round", minimum=1, maximum=LAST_ROUND)
    repeat: int = option(0, "how often the node has trained in this round before", minimum=0, maximum=LAST_ROUND)
    durable_round: int = option(0, "the last round that the server can go back to", minimum=0, maximum=LAST_ROUND)
    attempts: str = ""

    @classmethod
    def of(cls, message: Message) -> "_Rounds":
        for config in message.content.config_records.values():
            if isinstance(config.get(SERVER_ROUND), int):
                rounds = with_config(cls(), config)
                return rounds if DURABLE_ROUND in config else replace(rounds, durable_round=rounds.server_round - 1)
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
