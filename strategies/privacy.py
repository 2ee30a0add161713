"""Central differential privacy: bound the influence of each node on the mean, and add noise to the mean.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018 (DP-FedAvg),
https://arxiv.org/abs/1710.06963, Algorithm 1 with FlatClip; Geyer, Klein and Nabi, Differentially Private Federated
Learning, 2017, https://arxiv.org/abs/1712.07557. With the same noise the result is that of Flower's wrappers
``DifferentialPrivacyServerSideFixedClipping`` and ``...ClientSideFixedClipping`` around FedAvg, which need all
replies of a round in memory, in the order of the model's arrays, and without integer arrays.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Literal, get_args

import numpy as np

from . import wire
from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, is_float
from .replies import Reply
from .weighting import Weighting, uniform

Clipping = Literal["server", "nodes"]
_NOISE = 0x6E6F697365  # the purpose in the key of these draws


class PrivacyMechanism:
    """The part of a strategy that protects single replies; this base class protects nothing."""

    def check_strategy(self, weight_of: Weighting, privacy_gap: str) -> None:
        """Check that the mechanism protects a strategy.

        Parameters
        ----------
        weight_of : Weighting
            The strategy's weights.
        privacy_gap : str
            Why central privacy does not cover the strategy; empty if it does.

        Raises
        ------
        ValueError
            The mechanism does not protect the strategy.
        """

    def train_config(self) -> dict[str, float]:
        """Entries for the config of TRAIN messages."""
        return {}

    def clip_reply(self, reply: Reply, sent: Arrays) -> Reply:
        """The reply as it enters the aggregate; ``sent`` is what its node received."""
        return reply

    def mean(self, integers: IntegerPolicy, like: Arrays, server_round: int, label: str = "") -> StreamingMean:
        """An empty mean for the replies of a round, which have the names, shapes and dtypes of ``like``."""
        return StreamingMean(integers)


@dataclass(frozen=True)
class CentralPrivacy(PrivacyMechanism):
    """Clip every update to a norm, and add noise to their mean once, before the server's step.

    A node changes the sum of n clipped updates by at most ``clip``. The sum gets Gaussian noise of standard deviation
    ``noise * clip``, so each value of the mean gets noise of standard deviation ``noise * clip / n``, where n is the
    number of replies of the round (in :class:`~strategies.hierarchical.HierarchicalFedAvg`, of the cluster). Everything
    after it, such as the step of the server optimizer, is post-processing. Flower's wrappers add their noise after that
    step; this is equivalent for FedAvg, but too little or too much noise for FedAdam and similar optimizers. Integer
    and boolean arrays keep the values that were sent. :func:`~strategies.privacy_budget.epsilon` computes the
    guarantee.

    The mechanism protects what a node's data changes in the shared parameters, from everyone but the server. It does
    not protect the other numbers that nodes report (examples, losses, metrics).

    Parameters
    ----------
    clip : float
        > 0, the largest L2 norm of an update over all floating-point arrays; can be infinite only without noise.
        Flower's documentation uses 10, the paper 15 to 20 for models of a million parameters. A norm that is too small
        slows training down.
    noise : float
        ≥ 0, the noise multiplier z. A meaningful guarantee needs at least 1; 0 clips without noise. An infinite
        ``clip`` with ``noise`` 0 is FedAvg over the floating-point arrays, bit for bit.
    seed : int or None
        ≥ 0 makes the noise repeatable, for experiments: anyone who knows the seed can remove the noise. ``None`` draws
        noise that cannot be repeated.
    clipping : "server" or "nodes"
        "nodes" sends the norm in the key ``clipping_norm`` of the train config, where Flower's ``fixedclipping_mod``
        reads it, so that the server sees only clipped updates. The server also clips updates that are still longer:
        the bound holds for every node.

    Raises
    ------
    ValueError
        A parameter is out of range.
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
            raise ValueError(f"clip = {self.clip!r}: must be finite if noise is above 0, here {self.noise!r}")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed = {self.seed!r}: must be at least 0, or None for noise that cannot be repeated")
        if self.clipping not in get_args(Clipping):
            raise ValueError(f"clipping = {self.clipping!r}: must be 'server' or 'nodes'")

    def train_config(self) -> dict[str, float]:
        return {wire.CLIPPING_NORM: float(self.clip)} if self.clipping == "nodes" else {}

    def clip_reply(self, reply: Reply, sent: Arrays) -> Reply:
        return replace(reply, arrays=clip_update(reply.arrays, sent, self.clip))

    def mean(self, integers: IntegerPolicy, like: Arrays, server_round: int, label: str = "") -> StreamingMean:
        return _NoisyMean(self, like, self.generator(server_round, label))

    def generator(self, server_round: int, label: str) -> np.random.Generator:
        """The random generator of the noise of one mean."""
        if self.seed is None:
            return np.random.default_rng()
        return np.random.default_rng([self.seed, server_round, _NOISE, *label.encode()])

    def check_strategy(self, weight_of: Weighting, privacy_gap: str) -> None:
        if privacy_gap:
            raise ValueError(f"privacy = {self}: does not cover this strategy, because {privacy_gap}")
        if weight_of is not uniform:
            raise ValueError(
                f"privacy = {self}: needs weighting = 'uniform'; with other weights one node can have more influence "
                "on the mean than the noise hides"
            )


def clip_update(arrays: Arrays, sent: Arrays, clip: float) -> Arrays:
    """``sent`` plus the update ``arrays - sent``, scaled down to the L2 norm ``clip`` if it is longer.

    Parameters
    ----------
    arrays, sent : dict of arrays
        What a node returned and what it received: the same names, shapes and dtypes, in any order.
    clip : float
        > 0.

    Returns
    -------
    dict of arrays
        In the order of ``sent``. Floating-point arrays are float64, because rounding to fewer digits can make the
        update longer; without clipping they have the values of ``arrays``. All other arrays are those of ``sent``.
    """
    floats = {name: array for name, array in sent.items() if is_float(array)}
    values = {name: np.asarray(arrays[name], np.float64) for name in floats}
    norm = sqrt(sum(float(np.square(values[name] - sent[name]).sum()) for name in floats))
    if norm > clip:
        scale = clip / norm
        values = {name: np.asarray(sent[name] + scale * (value - sent[name])) for name, value in values.items()}
    return {name: values.get(name, array) for name, array in sent.items()}


class _NoisyMean(StreamingMean):
    """The mean of clipped replies in the dtypes of ``like``, with noise."""

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
