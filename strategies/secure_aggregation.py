"""Secure aggregation: the server learns the sum of the updates of a round, and no single one.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4; Bell et al.,
Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020 (SecAgg+, with k neighbours). A round has
four exchanges; who does not answer one of them has dropped out:

======== =============== ============================================ ==============================================
exchange message         to each node                                 its reply
======== =============== ============================================ ==============================================
keys     ``query.secagg`` the session                                 two public keys, signed if it has a signing key
shares   ``query.secagg`` the public keys of all nodes                sealed shares of its masking key and seed, for
                                                                      its neighbours
masked   TRAIN           the arrays, the shares of its neighbours     its update plus masks, modulo a power of 2
unmask   ``query.secagg`` which of its neighbours are in the sum      shares of the seeds of these, and of the masking
                                                                      keys of those that dropped out before
======== =============== ============================================ ==============================================

What the server adds are its update, masks that cancel in the sum, and a mask of its own. ``threshold`` shares give the
seed of the own mask of a node in the sum, or the key of the masks of one that is not: never both. Kairouz, Liu and
Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021
(https://arxiv.org/abs/2102.06387): the noise of all nodes together is that of a trusted server.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import INFO, WARNING
from math import sqrt
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from . import wire
from .arrays import Arrays, Buffers, views
from .checks import truncate
from .closing import REPLACES
from .mailbox import Arrival
from .masking import KEY_BYTES, SHARE_BYTES, Cohort, Encoding, agree, combine, mask, new_key, public_key
from .privacy import PrivacyMechanism
from .profiles import Profile
from .records import Exchange, LateReply, NodeReport, Refusal, TooFewRepliesError
from .replies import Reply, count_bytes, read_timings, too_few
from .samplers import UniformFraction
from .secure_node import asked_digest, encoding_record, least_threshold
from .transport import NodeFailure, clock_of

if TYPE_CHECKING:
    from .loop import RoundLoop

#: The smallest cohort: the sum of two nodes shows each of them the other.
FEWEST = 3


@dataclass(frozen=True)
class SecureAggregation:
    """The server gets the sum of the updates of a round, modulo a power of 2, and nothing else of a node.

    The mean differs from that of FedAvg by the rounding, which is below ``clip * 2**(1 - bits)`` for each value, and
    where ``clip`` shortens an update. A round needs at least three nodes.

    Parameters
    ----------
    neighbours : int
        With how many others a node exchanges masks and shares; 0 for all others. Bell et al. need about 64 for a
        thousand nodes. An odd number becomes the next even one.
    threshold : float
        From 0.5 to below 1: more than this share of a node and its neighbours must stay until the end of the round, or
        it fails. Where not all others are neighbours, a share from 2/3 on counts as at least 3/4. Nodes refuse less
        than 2/3, counted alike, unless their config says otherwise.
    clip : float
        > 0, the largest L2 norm of an update; a longer one is scaled down.
    bits : int
        From 2 to 31, of a value. ``bits + log2(total weight)`` must be at most 32: 22 for up to 1,024 nodes of equal
        weight. If at most 16, or 8, are needed, a value is sent in 2 bytes, or in 1.
    max_weight : int
        ≥ 1, with weights by examples: a node with more examples counts as one with so many. 1 weighs all nodes alike.
    buffer_clip : float
        > 0, the largest change of a value of a buffer, such as the variance of a normalisation.
    noise : float
        ≥ 0, the noise multiplier z of the sum: each node adds Gaussian noise of z clip / √(threshold), so that the
        noise of the fewest possible nodes has the deviation z clip. It covers no buffers, which then do not change.
    metrics : mapping of str to float
        The largest absolute value of each metric of training whose mean the server gets; no other leaves a node.
    evaluate : bool
        Whether nodes evaluate, although a reply to EVALUATE shows the server the metrics of one node: for simulations,
        and for nodes that withhold what is computed from their data. By default no node evaluates.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    neighbours: int = 0
    threshold: float = 2 / 3
    clip: float = 10.0
    bits: int = 22
    max_weight: int = 1
    buffer_clip: float = 10.0
    noise: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluate: bool = False

    def __post_init__(self) -> None:
        if self.neighbours == 1 or self.neighbours < 0:
            raise ValueError(f"neighbours = {self.neighbours}: must be at least 2, or 0 for all other nodes")
        if not 0.5 <= self.threshold < 1:
            raise ValueError(f"threshold = {self.threshold}: must be at least 0.5 and below 1")
        self._encoding(1)

    def _encoding(self, threshold: int) -> Encoding:
        noise = self.noise / sqrt(threshold)
        return Encoding(self.clip, self.bits, self.max_weight, self.buffer_clip, noise, self.metrics)

    def plan(self, nodes: int) -> tuple[int, int, Encoding]:
        """The neighbours, the number of shares that give a secret, and the encoding in a round of so many nodes.

        Raises
        ------
        ValueError
            The sum over so many nodes does not fit.
        """
        even = self.neighbours + self.neighbours % 2
        neighbours = even if 0 < even < nodes - 1 else nodes - 1
        threshold = least_threshold(self.threshold, neighbours, nodes)
        encoding = self._encoding(threshold)
        encoding.dtype(nodes)
        return neighbours, threshold, encoding

    def check_arrays(self, arrays: Arrays, buffers: Buffers) -> None:
        """Check before the first round that the shared arrays can be summed. Raises ``ValueError`` if one cannot."""
        self._encoding(1).check_arrays(arrays, buffers)

    def check_strategy(self, strategy: RoundLoop, gap: str) -> None:
        """Check that a strategy needs no more than the sum; ``gap`` is why its class does.

        Raises
        ------
        ValueError
            It needs more.
        """
        learns = strategy.sampler.learns
        weighs = strategy.weighting not in ("uniform", "num-examples")
        renamed = (strategy.arrayrecord_key, strategy.configrecord_key) != (wire.ARRAYS, wire.CONFIG)
        noised = type(strategy.privacy) is not PrivacyMechanism
        held_out = strategy.registry.held_out
        shows = "" if self.evaluate else "a reply shows the metrics of its node; evaluate = True allows it"
        evaluates = strategy.evaluate_sampler != UniformFraction(0.0)
        reasons = {
            "this strategy": gap,
            f"aggregation = {strategy.aggregation}": strategy.aggregation and "it compares single updates",
            f"compression = {strategy.compression}": strategy.compression and "the updates are integers already",
            f"privacy = {strategy.privacy}": noised and "it clips single updates; nodes clip and add noise (noise = z)",
            f"sampler = {strategy.sampler}": learns and "it chooses nodes by what each of them reports",
            f"weighting = {strategy.weighting}": weighs and "nodes weigh the same, or by their examples",
            "weighting = num-examples": strategy.weighting == "num-examples"
            and self.max_weight == 1
            and "it needs a max_weight above 1; with 1, set weighting = 'uniform'",
            "weighting = uniform": strategy.weighting == "uniform"
            and self.max_weight > 1
            and f"max_weight = {self.max_weight} weighs nodes by their examples",
            "closing = late 'fold'": strategy.closing.late == "fold" and "an update that is late is in no sum",
            f"closing = {strategy.closing}": self.noise and strategy.closing.early and REPLACES,
            f"evaluate_sampler = {strategy.evaluate_sampler}": evaluates and shows,
            f"held_out = {held_out}": (held_out.share or held_out.keys) and shows,
            "train_metrics_aggr_fn": strategy.train_metrics_aggr_fn and "it reads single replies",
            "arrayrecord_key, configrecord_key": renamed and "nodes read 'arrays' and 'config'",
        }
        for part, reason in reasons.items():
            if reason:
                raise ValueError(f"secure_aggregation = {self}: cannot be used with {part}, because {reason}")


class SecureRound:
    """The exchanges of one round in one cohort, whose sum is the one reply that the strategy gets.

    Parameters
    ----------
    part : SecureAggregation
    loop : RoundLoop
        The strategy, which sends the messages and reports the round.
    grid : Grid
    timeout : float
        > 0, seconds that a node has for each reply.
    sender : Profile
        Stands for the nodes of the cohort; its key names it.
    """

    def __init__(self, part: SecureAggregation, loop: RoundLoop, grid: Grid, timeout: float, sender: Profile) -> None:
        self._part, self._loop, self._grid, self._sender = part, loop, grid, sender
        self._timeout, self._limit = timeout, min(timeout, loop.closing.deadline)
        self._session = secrets.token_bytes(16)
        self._clock = clock_of(grid)
        self._profiles: list[Profile] = []  # of the nodes that sent keys, by their numbers
        self._start: Arrays = {}  # what the nodes train
        self._neighbours, self._threshold = 0, 0
        self.exchanges: dict[str, Exchange] = {}

    def replies(self, messages: Sequence[Message]) -> Iterator[Reply]:
        """Carry out the round with the nodes of these TRAIN messages; yield the sum, as the mean of its nodes.

        Raises
        ------
        TooFewRepliesError
            Too few nodes are left after an exchange. No share was asked for before the last one.
        ValueError
            The sum does not fit, or an array cannot be summed.
        """
        receivers = [message.metadata.dst_node_id for message in messages]
        if len(set(receivers)) < len(receivers):
            raise ValueError("secure aggregation: a node gets several messages in a round, but it has one mask")
        self._need(len(messages), FEWEST)
        self._part.plan(len(messages))
        received = views(messages[0].content.array_records[wire.ARRAYS])
        self._start = {name: received[name] for name in self._loop._returned}
        configs = [message.content.config_records[wire.CONFIG] for message in messages]
        # 1. keys: everybody draws two new keys
        answers = self._ask("keys", [(node, config, {}) for node, config in zip(receivers, configs, strict=True)])
        keys: list[bytes] = []
        known: set[bytes] = set()
        signed, trains = [], []
        configs_of = [_bytes(answer, "config") for _, answer in answers.values()]
        usual = max(configs_of, key=configs_of.count, default=b"")  # the run config of most nodes
        for message in messages:
            if message.metadata.dst_node_id not in answers:
                continue
            profile, answer = answers[message.metadata.dst_node_id]
            if not _usable(sent := _bytes(answer, "keys"), known):
                self._refuse(profile, "its keys are no two new public keys")
                continue
            if _bytes(answer, "config") != usual:
                self._refuse(profile, "its run config is not that of most nodes")
                continue
            self._profiles.append(profile)
            keys.append(sent)
            known |= {sent[:KEY_BYTES], sent[KEY_BYTES:]}
            signed.append((_bytes(answer, "signature"), _bytes(answer, "signer")))
            trains.append(message)
        self._need(len(keys), FEWEST)
        neighbours, threshold, encoding = self._part.plan(len(keys))
        cohort = Cohort(self._session, tuple(keys), neighbours, threshold)
        self._neighbours, self._threshold = neighbours, threshold
        # 2. shares: everybody shares its secrets with its neighbours
        sealed = self._share(cohort, trains, signed)
        senders = {number: [other for other in cohort.neighbours_of(number) if other in sealed] for number in sealed}
        self._need(sum(len(others) + 1 >= threshold for others in senders.values()), threshold)
        # 3. masked: who has enough neighbours left trains
        working = [number for number, others in senders.items() if len(others) + 1 >= threshold]
        question = asked_digest(messages[0].content, encoding, usual)
        for number in working:
            shares = [sealed[other][number] for other in senders[number]]
            asked: dict[str, Any] = {"session": self._session, "senders": senders[number], "shares": shares}
            trains[number].content[wire.SECAGG] = ConfigRecord({**asked, **encoding_record(encoding)})
        total, survivors = self._sum(cohort, encoding, [trains[number] for number in working])
        present = {n: [o for o in (n, *senders[n]) if o in survivors] for n in sealed}
        short = [n for n in sealed if len(present[n]) < threshold and (n in survivors or present[n])]
        if short:
            self._too_few(min(len(present[number]) for number in short), threshold)
        self._need(len(survivors), max(threshold, FEWEST, self._loop._needed))
        # 4. unmask: the survivors give of each other one of two secrets
        self._unmask(cohort, trains, senders, survivors, total, question)
        mean, metrics, weight = encoding.decode(total, self._start, self._loop.buffers)
        if not 1 <= weight <= encoding.max_weight * len(survivors):
            self._too_few(0, 1, "" if not weight else f"a node sent a wrong update: the sum has the weight {weight}")
        self._log(cohort, senders, survivors)
        record = MetricRecord({wire.NUM_EXAMPLES: weight, **metrics})
        content = RecordDict({wire.METRICS: record})
        yield Reply(self._sender, content, mean, record, weight, weight, nodes=len(survivors))

    def info(self) -> dict[str, Any]:
        """The exchanges for the records of the run."""
        facts = {"cohort": self._sender.key, "neighbours": self._neighbours, "threshold": self._threshold}
        return {**facts, "exchanges": {step: asdict(exchange) for step, exchange in self.exchanges.items()}}

    # -- the exchanges ----------------------------------------------------------------------------------------------

    def _share(
        self, cohort: Cohort, trains: Sequence[Message], signed: Sequence[tuple[bytes, bytes]]
    ) -> dict[int, dict[int, bytes]]:
        """The sealed shares of each node that sends them, by the number of the receiver."""
        common = {"keys": b"".join(cohort.keys), "neighbours": cohort.neighbours, "threshold": cohort.threshold}
        requests = []
        for number, message in enumerate(trains):
            of_neighbours = [signed[other] for other in cohort.neighbours_of(number)]
            names = {"signatures": [one for one, _ in of_neighbours], "signers": [one for _, one in of_neighbours]}
            requests.append((message.metadata.dst_node_id, message.content.config_records[wire.CONFIG], common | names))
        answers = self._ask("shares", requests)
        sealed = {}
        for number, profile in enumerate(self._profiles):
            if profile.node_id not in answers:
                continue
            shares, receivers = _byte_list(answers[profile.node_id][1], "shares"), cohort.neighbours_of(number)
            if len(shares) == len(receivers):
                sealed[number] = dict(zip(receivers, shares, strict=True))
            else:
                self._refuse(profile, "its shares are not one for each neighbour")
        return sealed

    def _sum(
        self, cohort: Cohort, encoding: Encoding, messages: Sequence[Message]
    ) -> tuple[np.ndarray[Any, Any], set[int]]:
        """The sum of the masked updates, and the numbers of their nodes."""
        loop, begun = self._loop, self._clock.now()
        dtype = encoding.dtype(len(cohort.keys))
        total = np.zeros(encoding.size(self._start, loop.buffers), dtype)
        numbers = {profile.node_id: number for number, profile in enumerate(self._profiles)}
        survivors: set[int] = set()
        uploaded = 0
        for arrival in loop._arrivals(self._grid, messages, self._timeout):
            profile, reply = arrival.flight.profile, arrival.outcome
            if isinstance(reply, NodeFailure):
                self._refuse(profile, reply.reason, answered=reply.by_node)
                continue
            loop.report.count_reply("train", size := count_bytes(reply.content))
            number = numbers.get(arrival.flight.node_id)  # none: of a cohort that has closed
            if number is None or arrival.flight.version != loop._version:
                loop.report.dropped.append(LateReply(profile.key, arrival.flight.version + 1, arrival.seconds))
                continue
            masked = _masked(reply.content, total)
            if masked is None:
                self._refuse(profile, f"its reply must be {wire.SECAGG_MASKED}: {total.size} {dtype}, and no more")
                continue
            total += masked
            survivors.add(number)
            loop._used += 1
            uploaded += size
            timings = read_timings(reply.content)
            groups, own_data = dict(profile.groups), profile.own_data
            node = NodeReport(profile.key, "train", 1.0, {}, groups, size, timings, own_data=own_data)
            loop.report.nodes.append(node)
            del arrival, reply, masked  # frees their memory while waiting for the next one
        self.exchanges["masked"] = Exchange(len(messages), len(survivors), self._clock.now() - begun, uploaded)
        return total, survivors

    def _unmask(
        self,
        cohort: Cohort,
        trains: Sequence[Message],
        senders: Mapping[int, Sequence[int]],
        survivors: set[int],
        total: np.ndarray[Any, Any],
        question: bytes,
    ) -> None:
        """Take the masks off the sum, in place."""
        requests, asked = [], {}
        for number in sorted(survivors):
            members, message = [number, *senders[number]], trains[number]
            lists = {
                "survivors": [node for node in members if node in survivors],
                "dropped": [node for node in members if node not in survivors],
            }
            asked[number] = lists
            requests.append((message.metadata.dst_node_id, message.content.config_records[wire.CONFIG], lists))
        answers = self._ask("unmask", requests)
        seeds: dict[int, dict[int, bytes]] = {}
        keys: dict[int, dict[int, bytes]] = {}
        for number, lists in asked.items():
            if self._profiles[number].node_id not in answers:
                continue
            _, answer = answers[self._profiles[number].node_id]
            for name, of_secret in (("survivors", seeds), ("dropped", keys)):
                shares = _byte_list(answer, f"of-{name}")
                if len(shares) == len(lists[name]) and all(len(share) == SHARE_BYTES for share in shares):
                    for node, share in zip(lists[name], shares, strict=True):
                        of_secret.setdefault(node, {})[number + 1] = share
        for node in survivors:
            total -= mask(self._secret(seeds.get(node, {}), cohort), total.size, total.dtype)
        for node, of_key in keys.items():
            secret = self._secret(of_key, cohort)
            if public_key(secret) != cohort.keys[node][KEY_BYTES:]:
                self._too_few(0, cohort.threshold, "the shares of a key are wrong")
            for other in senders[node]:
                if other in survivors:  # it added the negative of what the missing node would have added
                    total += cohort.pair_mask(secret, node, other, total.size, total.dtype, question)

    def _secret(self, shares: Mapping[int, bytes], cohort: Cohort) -> bytes:
        try:
            return combine(shares, cohort.threshold)
        except ValueError as error:
            self._too_few(len(shares), cohort.threshold, str(error))

    # -- messages ---------------------------------------------------------------------------------------------------

    def _ask(
        self, step: str, requests: Iterable[tuple[int, ConfigRecord, Mapping[str, Any]]]
    ) -> dict[int, tuple[Profile, ConfigRecord]]:
        """The answers of an exchange by Flower's node id; who does not answer is reported."""
        messages = []
        for node, config, entries in requests:
            named = {name: config[name] for name in (wire.SERVER_ROUND, wire.ATTEMPTS) if name in config}
            asked = ConfigRecord({"session": self._session, "step": step, **entries})
            content = RecordDict({wire.CONFIG: ConfigRecord(named), wire.SECAGG: asked})
            messages.append(Message(content, node, wire.SECAGG_QUERY))
        begun, answers, uploaded = self._clock.now(), {}, 0
        for arrival in self._loop.send(self._grid, messages, self._limit):
            if (answer := self._read(arrival)) is not None:
                answers[arrival.flight.node_id] = arrival.flight.profile, answer
                uploaded += count_bytes(RecordDict({wire.SECAGG: answer}))
        self._loop.report.bytes_up += uploaded
        self.exchanges[step] = Exchange(len(messages), len(answers), self._clock.now() - begun, uploaded)
        return answers

    def _read(self, arrival: Arrival) -> ConfigRecord | None:
        profile, reply = arrival.flight.profile, arrival.outcome
        if isinstance(reply, NodeFailure):
            self._refuse(profile, reply.reason, answered=reply.by_node)
            return None
        answer = reply.content.get(wire.SECAGG)
        if not isinstance(answer, ConfigRecord):
            self._refuse(profile, f"its answer has no ConfigRecord {wire.SECAGG!r}")
            return None
        return answer

    def _refuse(self, profile: Profile, reason: str, *, answered: bool = True) -> None:
        reason = truncate(f"secure aggregation: {reason}")
        log(WARNING, "node %s has dropped out of the round: %s", profile.key, reason)
        self._loop.report.refused.append(Refusal(profile.key, "train", reason, answered))

    def _need(self, left: int, needed: int) -> None:
        if left < needed:
            self._too_few(left, needed)

    def _too_few(self, left: int, needed: int, why: str = "") -> NoReturn:
        loop = self._loop
        facts = f"secure aggregation: {left} nodes are left, but {needed} are needed{why and f' ({why})'}. "
        raise TooFewRepliesError(facts + too_few(loop.report, left, needed, loop.registry.absent()))

    def _log(self, cohort: Cohort, senders: Mapping[int, Sequence[int]], survivors: set[int]) -> None:
        exchanges = [f"{step} {of.seconds:.2f} s, {of.bytes_up:,} B" for step, of in self.exchanges.items()]
        log(
            INFO,
            "secure aggregation%s: the sum of %s of %s nodes, each with %s neighbours, %s shares to a secret; %s "
            "dropped out after the shares; %s",
            self._sender.key and f" in {self._sender.key}",
            *(len(survivors), len(cohort.keys), cohort.neighbours, cohort.threshold),
            *(len(senders.keys() - survivors), "; ".join(exchanges)),
        )


def _masked(content: RecordDict, total: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The masked update in a reply; ``None`` if the reply has another form or more."""
    record = content.get(wire.SECAGG_MASKED)
    more = set(content) - {wire.SECAGG_MASKED, wire.TIMINGS}
    if more or not isinstance(record, ArrayRecord) or list(record) != ["sum"]:
        return None
    try:
        masked = views(record)["sum"]
    except ValueError:
        return None
    return masked if (masked.shape, masked.dtype) == (total.shape, total.dtype) else None


def _bytes(record: Mapping[str, Any], name: str) -> bytes:
    value = record.get(name)
    return value if isinstance(value, bytes) else b""


def _byte_list(record: Mapping[str, Any], name: str) -> list[bytes]:
    value = record.get(name)
    return value if isinstance(value, list) and all(isinstance(item, bytes) for item in value) else []


def _usable(keys: bytes, known: set[bytes]) -> bool:
    """Whether a node's keys are two that no other node has, with which the others can agree on secrets."""
    halves = {keys[:KEY_BYTES], keys[KEY_BYTES:]}
    try:
        for half in halves:
            agree(new_key(), half, b"")
    except ValueError:
        return False
    return len(halves) == 2 and not known & halves
