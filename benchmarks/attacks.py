"""Attacks of Byzantine nodes: what they reply in place of what they trained.

An attack replaces the floating-point arrays of a reply. It knows the honest replies of the round, the number of
attackers, and what the node received and trained. Integer and boolean arrays stay as trained. An *update* is the
difference between a reply and what the node received.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import Arrays, from_record, is_float, to_record, wire
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from fedapps.base.seeding import generator

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows when it replies.

    Parameters
    ----------
    sent : dict of arrays
        What the node received.
    trained : dict of arrays
        What the node trained on its own data.
    honest : sequence of dicts of arrays
        The replies of the honest nodes of the round, at least one.
    attackers : int
        ≥ 1, the attackers of the round.
    generator : numpy.random.Generator
        For the draws of this reply.
    message : RecordDict
        All that the node received.
    exchanges : sequence of (RecordDict, RecordDict)
        All records of the messages to the nodes of ``honest``, and of their replies.
    """

    sent: Arrays
    trained: Arrays
    honest: Sequence[Arrays]
    attackers: int
    generator: np.random.Generator
    message: RecordDict = field(default_factory=RecordDict)
    exchanges: Sequence[tuple[RecordDict, RecordDict]] = ()


class Attack(ABC):
    """One way to reply; a subclass gives the update of each array."""

    @abstractmethod
    def update(self, name: str, known: Knowledge) -> Values:
        """The update of the floating-point array ``name``, in its shape."""

    def reply(self, known: Knowledge) -> Arrays:
        """The reply of an attacker, with the names, shapes and dtypes of ``trained``."""
        arrays = dict(known.trained)
        for name, array in known.trained.items():
            if is_float(array):
                arrays[name] = np.asarray(known.sent[name] + self.update(name, known)).astype(array.dtype)
        return arrays

    def spoil(self, content: RecordDict, known: Knowledge) -> None:
        """Change the records of the attacker's reply, which it has trained honestly: here, the arrays alone."""
        content[wire.ARRAYS] = to_record(self.reply(known))


@dataclass(frozen=True)
class SignFlip(Attack):
    """The node's own update in the opposite direction, ``scale`` > 0 times as long."""

    scale: float = 4.0

    def update(self, name: str, known: Knowledge) -> Values:
        return -self.scale * (known.trained[name].astype(np.float64) - known.sent[name])


@dataclass(frozen=True)
class Gaussian(Attack):
    """Noise of standard deviation ``deviation`` > 0 as the update of every value.

    Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017, draw gradients with a deviation of 200. An update
    with a deviation of 1 already has several times the size of typical weights.
    """

    deviation: float = 1.0

    def update(self, name: str, known: Knowledge) -> Values:
        return known.generator.normal(0.0, self.deviation, known.sent[name].shape)


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """The honest mean minus z standard deviations of the honest replies, value by value.

    Baruch, Baruch and Goldberg, A Little Is Enough: Circumventing Defenses for Distributed Learning, NeurIPS 2019,
    Algorithm 3. All attackers send the same reply. It lies closer to the mean than the replies of some honest nodes, so
    that a robust aggregation prefers it to them.

    Parameters
    ----------
    z : float or None
        ≥ 0; ``None`` computes the paper's largest z from the numbers of nodes. It is 0 if the attackers need half of
        the honest nodes on their side, as in small cohorts.
    """

    z: float | None = None

    def update(self, name: str, known: Knowledge) -> Values:
        honest = _honest_updates(name, known)
        z = largest_z(len(honest) + known.attackers, known.attackers) if self.z is None else self.z
        return np.asarray(honest.mean(axis=0) - z * honest.std(axis=0))


@dataclass(frozen=True)
class InnerProduct(Attack):
    """The mean update of the honest nodes, multiplied by −``epsilon``.

    Xie, Koyejo and Gupta, Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation, UAI 2019. A
    small ε (0.5) is for robust aggregations, which then take it for an honest reply; the mean of n replies with f
    attackers only turns round if ε is above (n − f) / f.
    """

    epsilon: float = 0.5

    def update(self, name: str, known: Knowledge) -> Values:
        return np.asarray(-self.epsilon * _honest_updates(name, known).mean(axis=0))


#: The attacks of the benchmark, with their default strengths.
ATTACKS: dict[str, Callable[[], Attack]] = {
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "little-is-enough": LittleIsEnough,
    "inner-product": InnerProduct,
}


def largest_z(nodes: int, attackers: int) -> float:
    """The largest z with which the attackers still have a majority (Baruch et al., Algorithm 3, lines 2 and 3).

    With n nodes and m attackers, s = ⌊n/2 + 1⌋ − m honest ones must be further from the mean: z is the quantile of the
    standard normal distribution at (n − m − s) / (n − m), at least 0 and finite.
    """
    honest = nodes - attackers
    supporters = nodes // 2 + 1 - attackers
    share = min(max((honest - supporters) / honest, 0.5), 1 - 1e-6)
    return NormalDist().inv_cdf(share)


def _honest_updates(name: str, known: Knowledge) -> Values:
    return np.array([reply[name].astype(np.float64) - known.sent[name] for reply in known.honest])


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
        self._forge([pair for pair in usable if self._attacks(pair[0])], usable)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages."""
        wanted = list(message_ids)
        ready = [self._answers.pop(identity) for identity in wanted if identity in self._answers]
        return [*ready, *super().pull_messages(wanted)]

    def _attacks(self, message: Message) -> bool:
        return self._partition(message) in self.attackers

    def _partition(self, message: Message) -> int:
        return int(str(self.context(message.metadata.dst_node_id).node_config["partition-id"]))

    def _forge(self, attacking: Sequence[tuple[Message, Message]], answers: Sequence[tuple[Message, Message]]) -> None:
        """Replace the arrays of the attackers' answers."""
        forged = {id(answer) for _, answer in attacking}
        # A round of attackers only has nobody to imitate but themselves.
        imitated = [pair for pair in answers if id(pair[1]) not in forged] or answers
        exchanges = [(message.content, answer.content) for message, answer in imitated] if attacking else []
        honest = [from_record(content.array_records[wire.ARRAYS]) for _, content in exchanges]
        for message, answer in attacking:
            server_round = int(str(message.content.config_records[wire.CONFIG][wire.SERVER_ROUND]))
            known = Knowledge(
                sent=from_record(message.content.array_records[wire.ARRAYS]),
                trained=from_record(answer.content.array_records[wire.ARRAYS]),
                honest=honest,
                attackers=len(attacking),
                generator=generator(self.seed, "attack", server_round, self._partition(message)),
                message=message.content,
                exchanges=exchanges,
            )
            self.attack.spoil(answer.content, known)
