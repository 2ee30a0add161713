"""The primitives of secure aggregation: keys, masks, secret sharing, sealed shares, and sums of integers.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4 (the masks);
Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020, Algorithm 2 (a node has k
neighbours). Shamir, How to Share a Secret, 1979. X25519: RFC 7748. ChaCha20 and Poly1305: RFC 8439. HKDF: RFC 5869.

All keys, seeds and coefficients come from the operating system, none from the seed of a run. What rounds a value up or
down need not be secret.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, inf, isfinite, log2, sqrt
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from .arrays import Arrays, Buffers, is_float, last_part
from .checks import require_positive
from .wire import RUNNING_VARIANCE, STATISTICS

#: The field of the shares: a Mersenne prime above all secrets of 32 bytes.
PRIME = 2**521 - 1
KEY_BYTES, SHARE_BYTES = 32, 66


# -- keys and masks --------------------------------------------------------------------------------------------------


def new_key() -> bytes:
    """A secret X25519 key."""
    return secrets.token_bytes(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """The public key of a secret one."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes, purpose: bytes) -> bytes:
    """The 32 bytes that two nodes agree on for a purpose, each with its secret key and the other's public one.

    Raises
    ------
    ValueError
        The public key is one of those that give the same result with every secret key.
    """
    shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), KEY_BYTES, None, purpose).derive(shared)


def mask(seed: bytes, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """``size`` unsigned integers, uniform over all values of ``dtype``: the key stream of ChaCha20 from a seed."""
    stream = Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(size * dtype.itemsize))
    return np.frombuffer(stream, dtype.newbyteorder("<"))


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate a text, with a key that is used once."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The text of :func:`seal`. Raises ``ValueError`` if another key or context sealed it, or it was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, context)
    except InvalidTag:
        raise ValueError("a share was not sealed by its node for this one in this round") from None


# -- secret sharing --------------------------------------------------------------------------------------------------


def polynomial(coefficients: Sequence[int], point: int, prime: int = PRIME) -> int:
    """The value of a polynomial, whose constant coefficient comes first, at a point, modulo ``prime``."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % prime
    return value


def split_secret(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """Shares of a secret of 32 bytes at distinct points above 0, of which ``threshold`` give it and fewer nothing."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [polynomial(coefficients, point).to_bytes(SHARE_BYTES) for point in points]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of the first ``threshold`` shares, by their points.

    Raises
    ------
    ValueError
        There are fewer shares, or they are not shares of one secret of 32 bytes.
    """
    points = tuple(sorted(shares))[:threshold]
    if len(points) < threshold:
        raise ValueError(f"{len(points)} shares of a secret: {threshold} are needed")
    values = [int.from_bytes(shares[point]) for point in points]
    secret = sum(map(int.__mul__, values, lagrange(points))) % PRIME
    if secret >> 8 * KEY_BYTES:
        raise ValueError("the shares of a secret do not belong together: a node sent a wrong one")
    return secret.to_bytes(KEY_BYTES)


@lru_cache(maxsize=4096)  # nodes that all have the same neighbours need them once
def lagrange(points: tuple[int, ...], prime: int = PRIME) -> tuple[int, ...]:
    """The weights of the values at these points in the value at 0, modulo ``prime``."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * other % prime, below * (other - point) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return tuple(weights)


# -- the nodes of a round --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cohort:
    """The nodes of a round of secure aggregation, which all see the same.

    A node has the number of its keys in ``keys``. Who is whose neighbour follows from the set of all keys, whatever
    their order.

    Parameters
    ----------
    session : bytes
        16 bytes that the server has drawn for this attempt of the round.
    keys : tuple of bytes
        The public keys of each node, 64 bytes: that for sealing shares, then that for masks.
    neighbours : int
        With how many others a node exchanges masks and shares: an even number, or all others.
    threshold : int
        How many shares give a secret, of ``neighbours + 1``.

    Raises
    ------
    ValueError
        A key is repeated or has another length, or a number is impossible.
    """

    session: bytes
    keys: tuple[bytes, ...]
    neighbours: int
    threshold: int

    def __post_init__(self) -> None:
        halves = [half for keys in self.keys for half in (keys[:KEY_BYTES], keys[KEY_BYTES:])]
        if len(set(halves)) < len(halves) or any(len(half) != KEY_BYTES for half in halves):
            raise ValueError("the public keys of the nodes of a round must be distinct, and have 32 bytes each")
        others = len(self.keys) - 1
        if not 2 <= self.neighbours <= others or (self.neighbours % 2 and self.neighbours < others):
            raise ValueError(f"neighbours = {self.neighbours}: must be all {others} others, or an even number from 2")
        if not self.neighbours + 1 < 2 * self.threshold <= 2 * (self.neighbours + 1):
            raise ValueError(
                f"threshold = {self.threshold}: must be above half of {self.neighbours + 1}, a node and its neighbours"
            )

    @cached_property
    def digest(self) -> bytes:
        """What the nodes of the round have in common; part of all that they derive and seal."""
        numbers = b"".join(number.to_bytes(4) for number in (self.neighbours, self.threshold))
        keys = b"".join(sorted(self.keys))
        return hashlib.sha256(b"fedapps secure aggregation" + self.session + numbers + keys).digest()

    @cached_property
    def _ring(self) -> list[int]:
        return sorted(range(len(self.keys)), key=lambda node: hashlib.sha256(self.digest + self.keys[node]).digest())

    def neighbours_of(self, node: int) -> list[int]:
        """The numbers of a node's neighbours, ascending: the next k/2 on both sides of a ring (Bell et al., Sec. 3)."""
        if self.neighbours == len(self.keys) - 1:
            return [other for other in range(len(self.keys)) if other != node]
        position, half = self._positions[node], self.neighbours // 2
        steps = (step for step in range(-half, half + 1) if step)
        return sorted(self._ring[(position + step) % len(self._ring)] for step in steps)

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {node: position for position, node in enumerate(self._ring)}

    def sealing_key(self, secret: bytes, public: bytes, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """The key for the shares from one node to another, and the context that is authenticated with them."""
        context = self.digest + sender.to_bytes(4) + receiver.to_bytes(4)
        return agree(secret, public[:KEY_BYTES], b"shares" + context), context

    def pair_mask(
        self, secret: bytes, node: int, other: int, size: int, dtype: np.dtype[Any], asked: bytes
    ) -> NDArray[Any]:
        """What ``node``, with its secret key for masks, adds for its neighbour, who adds the negative of it.

        It does if it was asked the same: ``asked`` is the digest of what the node was asked. Else a server that asks
        one node for an update and the others for nothing would learn that update from the sum (Pasquini, Francati and
        Ateniese, Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022).
        """
        stream = mask(agree(secret, self.keys[other][KEY_BYTES:], b"mask" + self.digest + asked), size, dtype)
        return stream if node < other else -stream


# -- sums of integers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoding:
    """How updates become integers whose sum, modulo a power of 2, is that of the updates.

    Parameters
    ----------
    clip : float
        > 0, the largest L2 norm of an update over all parameters. A value is rounded at random to one of the two
        nearest multiples of ``clip * 2**(1 - bits)``, so that it is exact on average.
    bits : int
        From 2 to 31. ``bits + log2(total weight)`` must be at most 32.
    max_weight : int
        ≥ 1, the largest weight of a node; 1 for a mean of nodes, more for one of examples.
    buffer_clip : float
        > 0, the largest change of a value of a buffer.
    noise : float
        ≥ 0, the standard deviation of the Gaussian noise that each node adds to each value, in units of ``clip``.
    metrics : mapping of str to float
        The largest absolute value of each metric whose mean the server gets; all others stay on the nodes.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    clip: float = 10.0
    bits: int = 22
    max_weight: int = 1
    buffer_clip: float = 10.0
    noise: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("buffer_clip", self.buffer_clip), *self.metrics.items()):
            require_positive(name, value)
        if not 2 <= self.bits <= 31:
            raise ValueError(f"bits = {self.bits}: must be from 2 to 31")
        if self.max_weight < 1:
            raise ValueError(f"max_weight = {self.max_weight}: must be at least 1")
        if not (isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"noise = {self.noise}: must be finite and at least 0")
        if self.noise and (self.max_weight > 1 or self.metrics):
            raise ValueError("noise: covers neither weights nor metrics; use max_weight = 1 and no metrics")

    def dtype(self, nodes: int) -> np.dtype[Any]:
        """The smallest unsigned integers in which the sum over so many nodes fits.

        Raises
        ------
        ValueError
            It does not fit in 32 bits.
        """
        # The sum of values is at most 2^(bits-1) times the total weight; six deviations of the noise come on top.
        total = self.max_weight * nodes + 6 * self.noise * sqrt(nodes)
        needed = self.bits + max(0, ceil(log2(total) - 1e-9))
        if needed > 32:
            raise ValueError(
                f"bits = {self.bits}: a sum over {nodes} nodes of weight up to {self.max_weight} needs {needed} bits; "
                f"at most 32 are there, so take bits = {self.bits - needed + 32}, or smaller weights"
            )
        return np.dtype(np.uint8 if needed <= 8 else np.uint16 if needed <= 16 else np.uint32)

    def size(self, sent: Arrays, buffers: Buffers) -> int:
        """How many integers an update of these arrays becomes."""
        return sum(sent[name].size for name in self._names(sent, buffers)) + 1 + 2 * len(self.metrics)

    def check_arrays(self, sent: Arrays, buffers: Buffers) -> None:
        """Check that the arrays can be summed.

        Raises
        ------
        ValueError
            An array is of integers or booleans, and no counter of a normalisation, or with noise the steps are too
            coarse for so many values.
        """
        for name, array in sent.items():
            if not is_float(array) and last_part(name) not in STATISTICS:
                raise ValueError(f"array {name!r} is {array.dtype}: secure aggregation sums floating-point numbers")
        self._bound(sum(array.size for array in buffers.parameters(sent).values()))

    def _names(self, sent: Arrays, buffers: Buffers) -> list[str]:
        """The arrays that are summed: with noise, which does not cover them, no buffers."""
        return list(buffers.parameters(sent)) if self.noise else [name for name in sent if is_float(sent[name])]

    def _bound(self, count: int) -> float:
        """The norm to which an update is clipped, so that with noise also the rounded one is within ``clip``."""
        if not self.noise:
            return self.clip
        bound = self.clip - self._step(self.clip) * sqrt(count)  # rounding moves each value by less than a step
        if bound < self.clip / 2:
            raise ValueError(f"bits = {self.bits}: too few for {count} values with noise; take more")
        return bound

    def _step(self, largest: float) -> float:
        return largest * 2.0 ** (1 - self.bits)

    def encode(
        self,
        sent: Arrays,
        trained: Arrays,
        buffers: Buffers,
        weight: int,
        metrics: Mapping[str, float],
        rounding: np.random.Generator,
        noise: np.random.Generator,
    ) -> NDArray[np.int64]:
        """The integers of a node. An update that is not finite counts as none, which nobody learns.

        Parameters
        ----------
        sent, trained : dict of arrays
            What the node received and what it has trained: the same names and shapes.
        buffers : Buffers
            Which arrays are not trained.
        weight : int
            ≥ 0; above ``max_weight`` it is ``max_weight``.
        metrics : mapping of str to float
        rounding, noise : numpy.random.Generator
            Decide what is rounded up, and draw the noise.
        """
        weight = min(weight, self.max_weight)
        names = self._names(sent, buffers)
        changes = {name: np.subtract(trained[name], sent[name], dtype=np.float64) for name in names}
        parameters = buffers.parameters(sent).keys()
        norm = sqrt(sum(float(np.square(changes[name]).sum()) for name in parameters))
        finite = isfinite(norm) and all(np.isfinite(changes[name]).all() for name in names)
        if not finite:
            changes, weight = {name: np.zeros(sent[name].shape) for name in names}, int(self.noise > 0)
        bound = self._bound(sum(sent[name].size for name in parameters))
        scale = bound / norm if finite and norm > bound else 1.0
        parts = []
        for name, change in changes.items():
            if name in parameters:
                integers = self._integers(scale * change, self.clip, weight, rounding)
                if self.noise:
                    deviation = self.noise * self.clip / self._step(self.clip)
                    integers += np.rint(noise.normal(0.0, deviation, change.shape)).astype(np.int64)
            else:
                integers = self._integers(change, self.buffer_clip, weight, rounding)
            parts.append(integers.reshape(-1))
        known = {name: metrics.get(name, inf) for name in self.metrics}
        for name, largest in self.metrics.items():
            has = weight * (finite and isfinite(known[name]))
            value = np.array([known[name] if has else 0.0])
            parts += [self._integers(value, largest, has, rounding), np.array([has])]
        return np.concatenate([*parts, np.array([weight])])

    def _integers(
        self, values: NDArray[Any], largest: float, weight: int, rounding: np.random.Generator
    ) -> NDArray[np.int64]:
        """``weight`` times the clipped values, in steps, each rounded up with the probability of its fraction."""
        most = weight * 2.0 ** (self.bits - 1)
        rounded = np.floor(values * (weight / self._step(largest)) + rounding.random(values.shape))
        # The largest value itself is one too many where all nodes have it: the sum would be negative.
        return np.asarray(np.clip(rounded, -most, max(most - 1, 0)), np.int64)

    def decode(self, total: NDArray[Any], sent: Arrays, buffers: Buffers) -> tuple[Arrays, dict[str, float], int]:
        """The mean of the nodes' arrays, in the dtypes of ``sent``, the means of their metrics, and the total weight.

        A mean update that is longer than ``clip`` and what rounding and noise can add is scaled down to this length,
        so that a node that sends larger integers moves the mean no further than all nodes together may. The mean of a
        metric is within its largest absolute value.

        Parameters
        ----------
        total : array of unsigned integers
            The sum of what :meth:`encode` returned, in the dtype of :meth:`dtype`.
        sent : dict of arrays
        buffers : Buffers
        """
        signed = total.view(np.dtype(f"i{total.itemsize}")).astype(np.float64)
        weight = int(total[-1])
        mean, changes = dict(sent), {}
        begin = 0
        parameters = buffers.parameters(sent).keys()
        for name in self._names(sent, buffers):
            array, largest = sent[name], self.clip if name in parameters else self.buffer_clip
            change = signed[begin : begin + array.size].reshape(array.shape) * (self._step(largest) / max(weight, 1))
            changes[name] = change if name in parameters else np.clip(change, -largest, largest)
            begin += array.size
        moved = [changes[name] for name in changes if name in parameters]
        norm, most = sqrt(sum(float(np.square(change).sum()) for change in moved)), self._longest(moved, weight)
        for name, change in changes.items():
            array, scale = sent[name], most / norm if name in parameters and norm > most else 1.0
            least = 0.0 if last_part(name) == RUNNING_VARIANCE else -inf  # rounding can make a variance negative
            mean[name] = np.asarray(np.maximum(array + scale * change, least), array.dtype)
        metrics = {}
        for name, largest in self.metrics.items():
            value, count = signed[begin], int(total[begin + 1])
            if count:
                metrics[name] = float(np.clip(value * self._step(largest) / count, -largest, largest))
            begin += 2
        return mean, metrics, weight

    def _longest(self, changes: Sequence[NDArray[Any]], weight: int) -> float:
        """The largest length that the mean update of honest nodes has; with noise, of one in a million it is larger.

        Rounding moves each value by less than a step. The length of Gaussian noise on d values exceeds √d + t
        deviations with a probability of at most exp(-t²/2) (Boucheron, Lugosi and Massart, Concentration Inequalities,
        2013, Theorem 5.6).
        """
        root = sqrt(sum(change.size for change in changes))
        noise = self.noise * self.clip / sqrt(max(weight, 1)) * (root + 5.3)
        return self.clip + self._step(self.clip) * root + noise
