"""A federation in one process in which some nodes are Byzantine."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedapps.sim.inprocess import InProcessGrid
from fedapps.sim.seeding import generator
from fedapps.strategies import wire
from fedapps.strategies.arrays import from_record, to_record
from flwr.app import Message

from .attacks import Attack, Knowledge


class AttackedGrid(InProcessGrid):
    """Nodes that train honestly; then the attackers replace their replies.

    All nodes of a round train when its messages are pushed, because attackers know the honest replies of the round. The
    strategy must push the messages of a round together (``in_flight=None``). Attackers evaluate honestly: what they
    report there would only spoil the measurement.

    Parameters
    ----------
    client_app, node_configs, run_config
        As in :class:`InProcessGrid`, which returns errors of nodes as replies.
    attack : Attack
    attackers : collection of int
        The partitions of the attackers.
    seed : int
        Of the attackers' draws.
    """

    def __init__(
        self,
        client_app: Any,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        *,
        attack: Attack,
        attackers: Collection[int],
        seed: int,
    ) -> None:
        super().__init__(client_app, node_configs, run_config, errors="reply")
        self.attack = attack
        self.attackers = frozenset(attackers)
        self.seed = seed
        self._answers: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Store the messages; if they are TRAIN messages, all nodes reply now."""
        sent = list(messages)
        ids = list(super().push_messages(sent))
        trained = {
            identity: (message, self._answer(self._pending.pop(identity)))
            for identity, message in zip(ids, sent, strict=True)
            if message.metadata.message_type == "train"
        }
        self._answers |= {identity: answer for identity, (_, answer) in trained.items()}
        usable = [pair for pair in trained.values() if pair[1].has_content()]
        self._forge([pair for pair in usable if self._attacks(pair[0])], [pair[1] for pair in usable])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages."""
        wanted = list(message_ids)
        ready = [self._answers.pop(identity) for identity in wanted if identity in self._answers]
        return [*ready, *super().pull_messages(wanted)]

    def _attacks(self, message: Message) -> bool:
        return self._partition(message) in self.attackers

    def _partition(self, message: Message) -> int:
        return int(str(self._contexts[message.metadata.dst_node_id].node_config["partition-id"]))

    def _forge(self, attacking: Sequence[tuple[Message, Message]], answers: Sequence[Message]) -> None:
        """Replace the arrays of the attackers' answers."""
        forged = {id(answer) for _, answer in attacking}
        # A round of attackers only has nobody to imitate but themselves.
        imitated = [answer for answer in answers if id(answer) not in forged] or answers
        honest = [from_record(answer.content.array_records[wire.ARRAYS]) for answer in imitated] if attacking else []
        for message, answer in attacking:
            arrays = answer.content.array_records[wire.ARRAYS]
            server_round = int(str(message.content.config_records[wire.CONFIG][wire.SERVER_ROUND]))
            known = Knowledge(
                sent=from_record(message.content.array_records[wire.ARRAYS]),
                trained=from_record(arrays),
                honest=honest,
                attackers=len(attacking),
                generator=generator(self.seed, "attack", server_round, self._partition(message)),
            )
            answer.content[wire.ARRAYS] = to_record(self.attack.reply(known))
