"""The node's half of secure aggregation: what it answers, and what it refuses whatever the server asks.

A ClientApp needs two lines: ``@app.train(mods=[secagg_mod])``, and ``app.query("secagg")(secagg_query)``. Its node then
takes part in secure aggregation whenever the server asks for it. The server's half is
:mod:`~fedapps.strategies.secure_aggregation`, which describes the four exchanges.

Keys and seeds stay in Flower's ``Context.state`` until the node trains, and shares until the last exchange of a round,
or until the next round. They are neither logged nor part of an error. A SuperNode saves this state after it has sent
the reply, so another worker could still read that of before. A node with the key ``state-dir`` in its config therefore
notes there, before it answers, which exchanges it has answered.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from math import floor, sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding as Form
from cryptography.hazmat.primitives.serialization import (
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from . import wire
from .arrays import shared_record, to_record, views, without
from .checks import require_one_of
from .compression import Next, declared_buffers
from .masking import SHARE_BYTES, Cohort, Encoding, mask, new_key, public_key, seal, split_secret, unseal

_STATE = "secagg.session"
#: The folder of the notes, and the seconds after which one is removed.
_NOTES, _KEPT_SECONDS = "secagg", 7 * 86_400
_ECDSA = ec.ECDSA(hashes.SHA384())
#: The least share of a node and its neighbours in the sum, where these are not all nodes. With k neighbours and a
#: threshold of t shares, different lists of who has dropped out show a single update only if t (t - 1) is at most
#: 2 k (k + 1 - t): of its t - 1 neighbours in the sum each needs t nodes that call it dropped, among 2 k in reach.
_SPARSE_SHARE = 0.75


class SecureAggregationError(RuntimeError):
    """A node refuses what a server asks. The text has numbers and keys of the node config, and no secret."""


def asked_digest(content: RecordDict, encoding: Encoding, run_config: bytes) -> bytes:
    """The digest of what a TRAIN message asks of a node: of its records but that of secure aggregation, of how updates
    become integers, and of the run config (:func:`config_digest`).
    """
    whole = hashlib.sha256(run_config + repr(sorted(encoding_record(encoding).items())).encode())
    for name, record in sorted(content.items()):
        if name == wire.SECAGG:
            continue
        whole.update(f"{name} {type(record).__name__} ".encode())
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                whole.update(repr((key, array.dtype, list(array.shape), array.stype, len(array.data))).encode())
                whole.update(array.data)
        else:
            whole.update(repr(sorted(record.items())).encode())
    return whole.digest()


def config_digest(run_config: Mapping[str, Any]) -> bytes:
    """The digest of a run config."""
    return hashlib.sha256(repr(sorted(run_config.items())).encode()).digest()


def least_threshold(share: float, neighbours: int, nodes: int) -> int:
    """The smallest number that is more than ``share`` of a node and its neighbours.

    If some of the other ``nodes`` are no neighbours, a share of 2/3 or more is raised to at least 3/4.
    """
    if neighbours < nodes - 1 and share >= 2 / 3:
        share = max(share, _SPARSE_SHARE)
    return min(floor(share * (neighbours + 1) + 1e-9), neighbours) + 1


@dataclass(frozen=True)
class SecureRules:
    """What the operator of a node demands of secure aggregation. Each field is a key of the node config.

    Parameters
    ----------
    secagg : "optional" or "required"
        With "required" the node sends no update and no metric but in a sum.
    secagg_min_cohort : int
        ≥ 3, the fewest nodes among which the node hides: itself and its neighbours.
    secagg_min_threshold : float
        At least 0.5 and below 1: more than this share of them must be in the sum. With 2/3, the default, a server that
        gives nodes different lists of who has dropped out learns no single update, if all nodes are neighbours and less
        than a third of them help it. Where a node has fewer neighbours, more than 3/4 must be in the sum unless this is
        below 2/3; the server then learns no single update, if none of them helps it.
    secagg_key : str
        The file of the node's private key (ECDSA; PEM or OpenSSH), which signs its keys of each round. It can be the
        one that its SuperNode authenticates with, which Flower does not show to a ClientApp.
    secagg_peers : str
        A file with the public keys of the nodes that may be neighbours, one a line as in ``authorized_keys``. The node
        then accepts keys that these have signed, each for itself, and no others.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    secagg: str = "optional"
    secagg_min_cohort: int = 3
    secagg_min_threshold: float = 2 / 3
    secagg_key: str = ""
    secagg_peers: str = ""

    def __post_init__(self) -> None:
        require_one_of("node config secagg", self.secagg, ("optional", "required"))
        if type(self.secagg_min_cohort) is not int or self.secagg_min_cohort < 3:
            raise ValueError(f"node config secagg-min-cohort = {self.secagg_min_cohort!r}: must be an integer from 3")
        share = self.secagg_min_threshold
        if not (isinstance(share, int | float) and 0.5 <= share < 1):
            raise ValueError(f"node config secagg-min-threshold = {share!r}: must be at least 0.5 and below 1")
        if self.secagg_peers and not self.secagg_key:
            raise ValueError("node config secagg-peers: needs secagg-key, with which this node signs its own keys")

    @classmethod
    def keys(cls) -> dict[str, str]:
        """The fields by the key of the node config."""
        return {field.name.replace("_", "-"): field.name for field in fields(cls)}

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self:
        """The rules in a node config."""
        return cls(**{name: node_config[key] for key, name in cls.keys().items() if key in node_config})

    def check_files(self) -> None:
        """Raise ``ValueError`` if a file of keys cannot be used."""
        if self.secagg_key:
            _signing_key(self.secagg_key)
        if self.secagg_peers:
            _peers(self.secagg_peers)

    @property
    def required(self) -> bool:
        """Whether nothing leaves the node but in a sum."""
        return self.secagg == "required"

    def check(self, cohort: Cohort) -> None:
        """Raise :class:`SecureAggregationError` if the cohort is too small, or too few of it must be in the sum."""
        size, nodes = cohort.neighbours + 1, len(cohort.keys)
        least = least_threshold(self.secagg_min_threshold, cohort.neighbours, nodes)
        if size < self.secagg_min_cohort:
            raise SecureAggregationError(
                f"{size} nodes share masks: this node hides among at least secagg-min-cohort = {self.secagg_min_cohort}"
            )
        if cohort.threshold < least:
            raise SecureAggregationError(
                f"threshold = {cohort.threshold} of {size}: must be at least {least}, by secagg-min-threshold = "
                f"{self.secagg_min_threshold:g}{f', in a round of {nodes} nodes' if nodes > size else ''}"
            )


def secagg_mod(message: Message, context: Context, call_next: Next) -> Message:
    """A Flower mod that masks the reply to a TRAIN message of secure aggregation, whose only record it then is.

    Use it as the outermost mod of ``@app.train``. Where the node config has ``secagg = "required"``, it refuses TRAIN
    messages without secure aggregation; as a mod of ``@app.evaluate`` it then withholds all metrics.

    Raises
    ------
    SecureAggregationError
        The server asks for what the node refuses.
    """
    return masked(message, context, call_next)


def secagg_query(message: Message, context: Context, folder: Path | None = None) -> Message:
    """Answer a message ``query.secagg``: one of the exchanges before and after training. Raises as the mod.

    ``folder`` is where the node notes what it has answered, in place of ``state-dir``.
    """
    node = _Node(message, context, folder)
    steps = {"keys": node.send_keys, "shares": node.send_shares, "unmask": node.unmask}
    step = node.asked.get("step")
    if not isinstance(step, str) or step not in steps:
        raise SecureAggregationError(f"step = {step!r}: must be one of {', '.join(steps)}")
    return Message(RecordDict({wire.SECAGG: ConfigRecord(steps[step]())}), reply_to=message)


def masked(
    message: Message,
    context: Context,
    call_next: Next,
    rounding: np.random.Generator | None = None,
    least_noise: float = 0.0,
    folder: Path | None = None,
) -> Message:
    """As :func:`secagg_mod`, with a generator that decides what is rounded up, and ``folder`` as :func:`secagg_query`.

    ``least_noise`` is the smallest noise multiplier of a sum in which the node takes part.
    """
    if wire.SECAGG in message.content:
        return _Node(message, context, folder).train(call_next, rounding or _new_generator(), least_noise)
    if not SecureRules.of(context.node_config).required:
        return call_next(message, context)
    if message.metadata.message_type.startswith("train"):
        raise SecureAggregationError(
            'node config secagg = "required": the server asks for an update that only it sees; it must use secure '
            "aggregation"
        )
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    return Message(RecordDict({wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: 1})}), reply_to=message)


def _new_generator() -> np.random.Generator:
    return np.random.default_rng(secrets.randbits(256))


class _Node:
    """A node that works on one message of secure aggregation."""

    def __init__(self, message: Message, context: Context, folder: Path | None) -> None:
        self.message, self.context = message, context
        stated = str(context.node_config.get("state-dir") or "")
        self.folder = Path(stated).expanduser() if stated and folder is None else folder
        self.rules = SecureRules.of(context.node_config)
        asked, config = message.content.get(wire.SECAGG), message.content.get(wire.CONFIG)
        if not isinstance(asked, ConfigRecord) or not isinstance(config, ConfigRecord):
            raise SecureAggregationError(f"the message needs the ConfigRecords {wire.SECAGG!r} and {wire.CONFIG!r}")
        self.asked = asked
        server_round, attempts = config.get(wire.SERVER_ROUND), config.get(wire.ATTEMPTS, "")
        if type(server_round) is not int or not isinstance(attempts, str):
            raise SecureAggregationError(f"{wire.SERVER_ROUND} = {server_round!r}: must be an integer")
        self.round: int = server_round
        self.attempts: str = attempts

    # -- the exchanges ----------------------------------------------------------------------------------------------

    def send_keys(self) -> dict[str, Any]:
        """Draw two keys for a round that is later than the last one of this attempt."""
        last = self._state()
        if last and last["attempts"] == self.attempts and self.round <= int(str(last["round"])):
            raise SecureAggregationError(f"round {self.round}: this node has already taken part in {last['round']!r}")
        session = _bytes(self.asked, "session")
        sealing, masking = new_key(), new_key()
        self._keep(step="keys", session=session, sealing=sealing, masking=masking)
        keys = public_key(sealing) + public_key(masking)
        config = config_digest(self.context.run_config)
        return {"keys": keys, "config": config, **_signed(self.rules, self._statement(session, keys))}

    def send_shares(self) -> dict[str, Any]:
        """Share the masking key and a new seed with the neighbours, after a look at who they are."""
        state = self._session("keys")
        try:
            listed = _bytes(self.asked, "keys")
            facts = {"neighbours": _int(self.asked, "neighbours"), "threshold": _int(self.asked, "threshold")}
            cohort = _cohort({"session": state["session"], "keys": listed, **facts})
        except ValueError as error:
            raise SecureAggregationError(str(error)) from None
        own_keys = public_key(_bytes(state, "sealing")) + public_key(_bytes(state, "masking"))
        if own_keys not in cohort.keys:
            raise SecureAggregationError("the keys of this node are not among those of the round")
        self.rules.check(cohort)
        number = cohort.keys.index(own_keys)
        neighbours = cohort.neighbours_of(number)
        self._check_signatures(cohort, neighbours)
        # Bonawitz et al., Figure 4, round 1: shares of the masking key and of the seed, each at the node's number
        seed, points = new_key(), [other + 1 for other in (number, *neighbours)]
        both = [split_secret(secret, cohort.threshold, points) for secret in (_bytes(state, "masking"), seed)]
        own_shares, *others = [first + second for first, second in zip(*both, strict=True)]
        sealed = []
        for other, shares in zip(neighbours, others, strict=True):
            key, bound = cohort.sealing_key(_bytes(state, "sealing"), cohort.keys[other], number, other)
            sealed.append(seal(key, shares, bound))
        self._keep(state, step="shares", seed=seed, own=own_shares, keys=listed, number=number, **facts)
        return {"shares": sealed}

    def train(self, call_next: Next, rounding: np.random.Generator, least_noise: float) -> Message:
        """Open the shares of the neighbours, train, and mask the update. Once for each session."""
        state = self._session("shares")
        cohort, number = _cohort(state), _int(state, "number")
        senders, sealed = _ints(self.asked, "senders"), _list(self.asked, "shares")
        neighbours = cohort.neighbours_of(number)
        if sorted(set(senders)) != senders or not set(senders) <= set(neighbours) or len(sealed) != len(senders):
            raise SecureAggregationError("the shares of a node are not those of its neighbours, one of each")
        if len(senders) + 1 < cohort.threshold:
            raise SecureAggregationError(
                f"{len(senders) + 1} nodes are left of {cohort.neighbours + 1}: {cohort.threshold} are needed"
            )
        held, members = [_bytes(state, "own")], [number, *senders]
        for sender, text in zip(senders, sealed, strict=True):
            key, bound = cohort.sealing_key(_bytes(state, "sealing"), cohort.keys[sender], sender, number)
            try:
                held.append(unseal(key, text, bound))
            except ValueError as error:
                raise SecureAggregationError(f"node {sender}: {error}") from None
        encoding = encoding_of(self.asked)
        if encoding.noise * sqrt(cohort.threshold) < least_noise * (1 - 1e-9):
            raise SecureAggregationError(
                f"noise = {encoding.noise:g} of each node: the run promises {least_noise:g} of the sum"
            )
        dtype = encoding.dtype(len(cohort.keys))
        untrained = wire.names_in(self.message.content.get(wire.CONFIG), wire.UNTRAINED)
        received = without(views(shared_record(self.message.content)), untrained)
        buffers = declared_buffers(self.message)
        encoding.check_arrays(received, buffers)
        asked = asked_digest(self.message.content, encoding, config_digest(self.context.run_config))
        # One vector leaves for these masks: from here on, a second message is refused, whatever becomes of this one.
        session, threshold = cohort.session, cohort.threshold
        self._keep(step="masked", session=session, number=number, threshold=threshold, members=members, held=held)
        del self.message.content[wire.SECAGG]
        reply = call_next(self.message, self.context)
        if reply.has_error():
            return reply
        trained, metrics = views(shared_record(reply.content)), _metrics(reply)
        if {n: a.shape for n, a in trained.items()} != {n: a.shape for n, a in received.items()}:
            raise SecureAggregationError("the arrays of the reply differ from those received")
        weight = max(1, int(metrics.get(wire.NUM_EXAMPLES, 1)))
        numbers = encoding.encode(received, trained, buffers, weight, metrics, rounding, _new_generator())
        # Round 2: y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) - Σ_{v < u} PRG(s_uv)
        total = numbers.astype(dtype)
        total += mask(_bytes(state, "seed"), total.size, dtype)
        for sender in senders:
            total += cohort.pair_mask(_bytes(state, "masking"), number, sender, total.size, dtype, asked)
        return Message(RecordDict({wire.SECAGG_MASKED: to_record({"sum": total})}), reply_to=self.message)

    def unmask(self) -> dict[str, Any]:
        """Give of each survivor the share of its seed, of each other node that of its key; then forget all."""
        state = self._session("masked")
        members, number = _ints(state, "members"), _int(state, "number")
        survivors, dropped = _ints(self.asked, "survivors"), _ints(self.asked, "dropped")
        # Both secrets of one node would take off all its masks: Bonawitz et al., Section 6.
        if set(survivors) & set(dropped) or number not in survivors:
            raise SecureAggregationError("a node is in both lists, or this node is among those that dropped out")
        if sorted(survivors + dropped) != sorted(members):
            raise SecureAggregationError("the lists must have the nodes that this one shares masks with, each once")
        if len(survivors) < _int(state, "threshold"):
            raise SecureAggregationError(
                f"{len(survivors)} nodes are in the sum: at least {_int(state, 'threshold')} must be"
            )
        held = dict(zip(members, _list(state, "held"), strict=True))
        self._keep(step="done")  # no more of a session than when it was
        seeds = [held[node][SHARE_BYTES:] for node in survivors]
        return {"of-survivors": seeds, "of-dropped": [held[node][:SHARE_BYTES] for node in dropped]}

    # -- what is kept -----------------------------------------------------------------------------------------------

    def _state(self) -> ConfigRecord | None:
        state = self.context.state.get(_STATE)
        return state if isinstance(state, ConfigRecord) else None

    def _session(self, step: str) -> ConfigRecord:
        """The session that the message belongs to, if it has come this far and no further."""
        state = self._state()
        if state is None or state.get("step") != step or state.get("session") != self.asked.get("session"):
            raise SecureAggregationError("the message does not continue the session of this node: it answers each once")
        if (state["round"], state["attempts"]) != (self.round, self.attempts):
            raise SecureAggregationError(f"round {self.round}: the session of this node is that of another round")
        if self.folder is not None:
            self._note(self.folder / _NOTES, step)
        return state

    def _note(self, folder: Path, step: str) -> None:
        """Note that the node answers what follows this step of its session. Raises if it has done so."""
        name = hashlib.sha256(f"{self.context.run_id} {step} ".encode() + _bytes(self.asked, "session")).hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("xb"):
                pass
        except FileExistsError:
            raise SecureAggregationError("the message does not continue the session: it was answered before") from None
        except OSError as error:
            raise SecureAggregationError(
                f"the node cannot note in its state folder what it answers ({error.strerror}), so it does not answer"
            ) from None
        for note in folder.iterdir():
            with suppress(OSError):  # another worker may remove it, too
                if note.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    note.unlink()

    def _keep(self, state: Mapping[str, Any] | None = None, **changes: Any) -> None:
        facts = {"round": self.round, "attempts": self.attempts, **changes}
        self.context.state[_STATE] = ConfigRecord({**(state or {}), **facts})

    # -- signatures -------------------------------------------------------------------------------------------------

    def _statement(self, session: bytes, keys: bytes) -> bytes:
        """What a node signs: its keys, for one attempt of one round of one run."""
        where = f"fedapps secure aggregation {self.context.run_id} {self.round} {self.attempts} ".encode()
        return where + session + keys

    def _check_signatures(self, cohort: Cohort, neighbours: Sequence[int]) -> None:
        if not self.rules.secagg_peers:
            return
        peers, signers = _peers(self.rules.secagg_peers), {_signed(self.rules, b"")["signer"]}
        stated, signatures = _list(self.asked, "signers"), _list(self.asked, "signatures")
        if not len(stated) == len(signatures) == len(neighbours):
            raise SecureAggregationError("node config secagg-peers: the keys of the neighbours are not signed")
        for number, signer, signature in zip(neighbours, stated, signatures, strict=True):
            if signer not in peers or signer in signers:
                raise SecureAggregationError(
                    f"node {number}: its keys are signed by nobody in secagg-peers, or by another node"
                )
            signers.add(signer)
            try:
                peers[signer].verify(signature, self._statement(cohort.session, cohort.keys[number]), _ECDSA)
            except InvalidSignature:
                raise SecureAggregationError(f"node {number}: the signature of its keys is wrong") from None


def _signed(rules: SecureRules, statement: bytes) -> dict[str, bytes]:
    """The signature of a node with a key, and who signed."""
    if not rules.secagg_key:
        return {"signature": b"", "signer": b""}
    key = _signing_key(rules.secagg_key)
    signer = key.public_key().public_bytes(Form.OpenSSH, PublicFormat.OpenSSH)
    return {"signature": key.sign(statement, _ECDSA), "signer": signer}


@lru_cache(maxsize=64)
def _signing_key(path: str) -> ec.EllipticCurvePrivateKey:
    try:
        text = Path(path).expanduser().read_bytes()
        key = (load_ssh_private_key if b"OPENSSH" in text else load_pem_private_key)(text, None)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"node config secagg-key = {path!r}: cannot be read ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"node config secagg-key = {path!r}: must be an ECDSA key, as of SuperNodes")
    return key


@lru_cache(maxsize=64)
def _peers(path: str) -> dict[bytes, ec.EllipticCurvePublicKey]:
    """The public keys in a file, by their text without comment."""
    try:
        lines = filter(None, map(bytes.strip, Path(path).expanduser().read_bytes().splitlines()))
        keys = [load_ssh_public_key(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ValueError(f"node config secagg-peers = {path!r}: cannot be read ({error})") from None
    known = {}
    for key in keys:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"node config secagg-peers = {path!r}: all must be ECDSA keys, as of SuperNodes")
        known[key.public_bytes(Form.OpenSSH, PublicFormat.OpenSSH)] = key
    return known


# -- reading records -------------------------------------------------------------------------------------------------


def encoding_of(record: ConfigRecord) -> Encoding:
    """The encoding that a TRAIN message asks for."""
    names, largest = _list(record, "metrics", str), _list(record, "largest", float)
    floats = [record.get(name) for name in ("clip", "buffer-clip", "noise")]
    if len(names) != len(largest) or not all(isinstance(value, float) for value in floats):
        raise SecureAggregationError("the message does not say how updates become integers")
    clip, buffer_clip, noise = (float(str(value)) for value in floats)
    metrics = dict(zip(names, largest, strict=True))
    try:
        return Encoding(clip, _int(record, "bits"), _int(record, "max-weight"), buffer_clip, noise, metrics)
    except ValueError as error:
        raise SecureAggregationError(str(error)) from None


def encoding_record(encoding: Encoding) -> dict[str, Any]:
    """The entries of a TRAIN message that :func:`encoding_of` reads."""
    metrics = {"metrics": list(encoding.metrics), "largest": [float(most) for most in encoding.metrics.values()]}
    scales = {"clip": float(encoding.clip), "buffer-clip": float(encoding.buffer_clip), "noise": float(encoding.noise)}
    return {**scales, "bits": encoding.bits, "max-weight": encoding.max_weight, **metrics}


def _cohort(state: Mapping[str, Any]) -> Cohort:
    listed = _bytes(state, "keys")
    keys = tuple(listed[begin : begin + 64] for begin in range(0, len(listed), 64))
    return Cohort(_bytes(state, "session"), keys, _int(state, "neighbours"), _int(state, "threshold"))


def _metrics(reply: Message) -> dict[str, float]:
    records = [record for record in reply.content.values() if isinstance(record, MetricRecord)]
    numbers = {name: value for record in records for name, value in record.items()}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}


def _bytes(record: Mapping[str, Any], name: str) -> bytes:
    if isinstance(value := record.get(name), bytes):
        return value
    raise SecureAggregationError(f"{wire.SECAGG} {name}: must be bytes")


def _int(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is int:
        return value
    raise SecureAggregationError(f"{wire.SECAGG} {name}: must be an integer")


def _list(record: Mapping[str, Any], name: str, kind: type = bytes) -> list[Any]:
    value = record.get(name)
    if isinstance(value, list) and all(type(item) is kind for item in value):
        return value
    raise SecureAggregationError(f"{wire.SECAGG} {name}: must be a list of {kind.__name__}")


def _ints(record: Mapping[str, Any], name: str) -> list[int]:
    return _list(record, name, int)
