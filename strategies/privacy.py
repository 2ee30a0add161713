"""Central differential privacy: what one node can change in the mean is bounded, and noise hides it.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018 (DP-FedAvg),
https://arxiv.org/abs/1710.06963, Algorithm 1 with FlatClip; Geyer, Klein and Nabi, Differentially Private Federated
Learning, 2017, https://arxiv.org/abs/1712.07557. On the same draws the result is that of Flower's wrappers
``DifferentialPrivacyServerSideFixedClipping`` and ``...ClientSideFixedClipping`` around FedAvg. Those want all
replies of a round in memory, in the order of the model's arrays, without integers among them.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Literal, get_args

import numpy as np

from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, is_float
from .replies import Reply
from .weighting import Weighting, uniform

#: The key under which Flower's clipping mods look for the norm in the config of a TRAIN message.
CLIPPING_NORM = "clipping_norm"
Clipping = Literal["server", "nodes"]
_NOISE = 0x6E6F697365  # keeps these draws apart from others with the same seed and round


class PrivacyMechanism:
    """The part of a strategy that guards single replies; this one lets everything through."""

    def orders(self) -> dict[str, float]:
        """What TRAIN messages tell the nodes in their config."""
        return {}

    def bounded(self, reply: Reply, sent: Arrays) -> Reply:
        """The reply as it may enter the aggregate; ``sent`` is what its node had received."""
        return reply

    def mean(self, integers: IntegerPolicy, like: Arrays, server_round: int, label: str = "") -> StreamingMean:
        """An empty mean for the replies of a round; ``like`` has their names, shapes and dtypes."""
        return StreamingMean(integers)

    def covering(self, weight_of: Weighting, beside_the_mean: str) -> "PrivacyMechanism":
        """This part, for a strategy of such weights that takes ``beside_the_mean`` from replies (empty: nothing).

        Raises ``ValueError`` where the strategy cannot be guarded.
        """
        return self


@dataclass(frozen=True)
class CentralPrivacy(PrivacyMechanism):
    """Updates are clipped to a norm one by one, and their mean gets noise once, before the server's step.

    A node changes the sum of n clipped updates by at most ``clip``; the sum gets Gaussian noise of ``noise * clip``,
    so each number of the mean one of standard deviation ``noise * clip / n``, n being the replies of the round (in
    :class:`~strategies.hierarchical.HierarchicalFedAvg`, of the cluster). All that comes after, such as the server
    optimizer's step, is post-processing. Flower's wrappers add their noise after that step instead: the same for
    FedAvg, too little or too much for FedAdam and the like. Integer and boolean arrays have no place under a norm and
    stay as they were sent. What the guarantee amounts to is told by :func:`~strategies.privacy_budget.epsilon`.

    Protected is what a node's data does to the shared parameters, from everybody but the server. The numbers that nodes
    report beside them (examples, losses, metrics) are not.

    Parameters
    ----------
    clip : float
        > 0, the largest L2 norm of an update over all floating-point arrays; infinite without noise only. Flower's
        docs try 10, the paper 15 to 20 for models of a million parameters. Too small a norm slows training down.
    noise : float
        ≥ 0, the noise multiplier z; 1 is the least for a meaningful guarantee, 0 leaves clipping alone. An infinite
        ``clip`` with ``noise`` 0 is FedAvg over the floating-point arrays, bit for bit.
    seed : int or None
        ≥ 0 repeats the noise of another run, for experiments: who knows it can take the noise off. ``None`` draws noise
        that nobody can repeat.
    clipping : "server" or "nodes"
        "nodes" tells them the norm in the key ``clipping_norm`` of the train config, where Flower's
        ``fixedclipping_mod`` finds it, so that the server sees clipped updates only. It clips again what is longer: the
        bound holds whatever a node does.
    """

    clip: float
    noise: float
    seed: int | None = None
    clipping: Clipping = "server"

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ValueError(f"clip = {self.clip!r}: must be above 0")
        if not (isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"noise = {self.noise!r}: must be finite and at least 0 (0 adds none)")
        if self.noise > 0 and self.clip == inf:
            raise ValueError(f"clip = {self.clip!r}: must be finite with noise = {self.noise!r}, which is in its units")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed = {self.seed!r}: must be at least 0, or None for noise that nobody can repeat")
        if self.clipping not in get_args(Clipping):
            raise ValueError(f"clipping = {self.clipping!r}: must be 'server' or 'nodes'")

    def orders(self) -> dict[str, float]:
        return {CLIPPING_NORM: float(self.clip)} if self.clipping == "nodes" else {}

    def bounded(self, reply: Reply, sent: Arrays) -> Reply:
        return replace(reply, arrays=clipped(reply.arrays, sent, self.clip))

    def mean(self, integers: IntegerPolicy, like: Arrays, server_round: int, label: str = "") -> StreamingMean:
        return _NoisyMean(self, like, self.generator(server_round, label))

    def generator(self, server_round: int, label: str) -> np.random.Generator:
        """Where the noise of one mean comes from."""
        if self.seed is None:
            return np.random.default_rng()
        return np.random.default_rng([self.seed, server_round, _NOISE, *label.encode()])

    def covering(self, weight_of: Weighting, beside_the_mean: str) -> PrivacyMechanism:
        if beside_the_mean:
            raise ValueError(f"privacy = {self}: does not cover this strategy, because {beside_the_mean}")
        if weight_of is not uniform:
            raise ValueError(
                f"privacy = {self}: needs weighting = 'uniform'; with other weights one node may count so much that "
                "the noise does not hide it"
            )
        return self


def clipped(arrays: Arrays, sent: Arrays, clip: float) -> Arrays:
    """``sent`` plus the update ``arrays - sent``, scaled down to the L2 norm ``clip`` where it is longer.

    The floating-point arrays come back in float64, for in less the sum would be rounded to a longer update; those that
    need no clipping hold the same values. All others are those of ``sent``. The names are those of ``sent``, in its
    order, whatever the order of ``arrays``.
    """
    floats = {name: array for name, array in sent.items() if is_float(array)}
    values = {name: np.asarray(arrays[name], np.float64) for name in floats}
    norm = sqrt(sum(float(np.square(values[name] - sent[name]).sum()) for name in floats))
    if norm > clip:
        scale = clip / norm
        values = {name: np.asarray(sent[name] + scale * (value - sent[name])) for name, value in values.items()}
    return {name: values.get(name, array) for name, array in sent.items()}


class _NoisyMean(StreamingMean):
    """The mean of clipped replies in the dtypes of ``like``, with the noise of one release."""

    def __init__(self, privacy: CentralPrivacy, like: Arrays, generator: np.random.Generator) -> None:
        super().__init__()
        self._privacy = privacy
        self._dtypes = {name: array.dtype for name, array in like.items()}
        self._generator = generator

    def result(self) -> Arrays:
        mean, noise = super().result(), self._privacy.noise
        deviation = noise * self._privacy.clip / self.count if noise else 0.0
        for name, array in mean.items():
            if deviation and is_float(array):
                mean[name] = array + self._generator.normal(0.0, deviation, array.shape)
        return {name: np.asarray(array).astype(self._dtypes[name]) for name, array in mean.items()}
