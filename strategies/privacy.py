"""Central differential privacy: bound the influence of each node on the mean, and add noise to the mean.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018 (DP-FedAvg),
https://arxiv.org/abs/1710.06963, Algorithm 1 with FlatClip and the estimator with a fixed denominator (Section 2 and
Lemma 1). Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021,
https://arxiv.org/abs/2103.00039, define neighbours in the same way ("zero-out").
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from . import wire
from .aggregation.mean import IntegerPolicy, StreamingMean
from .arrays import Arrays, Buffers, last_part
from .checks import require_positive
from .replies import Reply

Clipping = Literal["server", "nodes"]
_NOISE = 0x6E6F697365  # the purpose in the key of these draws


class PrivacyMechanism:
    """The part of a strategy that protects single replies; this base class protects nothing."""

    def check_strategy(self, privacy_gap: str) -> None:
        """Check that the mechanism protects a strategy.

        Parameters
        ----------
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

    def check_arrays(self, names: Iterable[str]) -> None:
        """Check before the first round that the mechanism can protect the shared arrays, by their names.

        Raises
        ------
        ValueError
            It cannot.
        """

    def limit(self, reply: Reply, sent: Arrays, buffers: Buffers = Buffers()) -> Reply:  # noqa: B008 - immutable
        """The reply as it enters the aggregate; ``sent`` is what its node received."""
        return reply

    def mean(
        self,
        integers: IntegerPolicy,
        sent: Arrays,
        server_round: int,
        buffers: Buffers = Buffers(),  # noqa: B008 - immutable
    ) -> StreamingMean:
        """An empty mean for the replies of a round, whose nodes received ``sent``."""
        return StreamingMean(integers)


@dataclass(frozen=True)
class CentralPrivacy(PrivacyMechanism):
    """Clip every update to a norm, and add noise to their estimated mean once, before the server's step.

    The estimate of the mean update is Σ w_k Δ_k / W: the sum of the clipped updates Δ_k with capped weights w_k,
    divided by their ``expected_weight`` W, which does not depend on who replies. A node that contributes its update
    instead of nothing changes it by at most ``max_weight * clip / expected_weight``. The standard deviation of the
    Gaussian noise on each value is ``noise`` times that. Everything after it, such as the step of the server optimizer,
    is post-processing. A round without replies adds noise alone. Buffers, integer and boolean arrays keep the values
    that were sent: they are not released.

    :func:`~fedapps.strategies.privacy_budget.epsilon` computes the guarantee. Neighbouring runs differ in whether one
    node contributes its updates: in one of them it is not asked, or it sends no usable reply. The mechanism protects
    what a node changes in the shared parameters, from everyone but the server. It protects neither the other numbers
    that nodes report (examples, losses, metrics, profiles) nor how many and which nodes reply.

    Flower's wrappers ``DifferentialPrivacyServerSideFixedClipping`` and ``...ClientSideFixedClipping`` give the same
    result around FedAvg with the same noise if as many nodes reply as expected. They divide by the number of replies,
    need all replies of a round in memory, in the order of the model's arrays and without integer arrays, and add their
    noise after the server's step, where it has the wrong scale for FedAdam and similar optimizers.

    Parameters
    ----------
    clip : float
        > 0, the largest L2 norm of an update over all parameters; can be infinite only without noise.
        Flower's documentation uses 10, the paper 15 to 20 for models of a million parameters. A norm that is too small
        slows training down.
    noise : float
        ≥ 0, the noise multiplier z. A meaningful guarantee needs at least 1; 0 clips without noise.
    expected_weight : float
        > 0, the expected total weight of the replies of a round (q W in the paper): with uniform weights, the expected
        number of nodes. It must be set without regard to the connected nodes. If it is too large, steps are too short;
        if it is too small, they are too long.
    max_weight : float
        > 0, the cap of the weight of a reply (1 in the paper). With the default, 1, replies weigh the same under
        "uniform" and "num-examples".
    seed : int or None
        ≥ 0 makes the noise repeatable, for experiments: anyone who knows the seed can remove the noise. ``None`` draws
        noise that cannot be repeated.
    clipping : "server" or "nodes"
        "nodes" sends the norm in the key ``clipping_norm`` of the train config, where Flower's ``fixedclipping_mod``
        reads it, so that the server sees only clipped updates. The server also clips updates that are still longer:
        the bound holds for every node.
    statistics : "refuse" or "keep"
        What to do if the shared arrays have a batch normalisation's running mean and variance. Their mean without noise
        would not be private, with noise a variance could be negative, and a trained model is useless without them.
        "refuse" raises an error before the first round. "keep" is for normalisations whose statistics do not change,
        such as those of a pre-trained network in evaluation mode.

    Raises
    ------
    ValueError
        A parameter is out of range.

    Notes
    -----
    An infinite ``clip`` with ``noise`` 0 is FedAvg over the parameters, bit for bit, if the weights of the replies add
    up to ``expected_weight`` and none is above ``max_weight``.
    """

    clip: float
    noise: float
    expected_weight: float
    max_weight: float = 1.0
    seed: int | None = None
    clipping: Clipping = "server"
    statistics: Literal["refuse", "keep"] = "refuse"

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ValueError(f"clip = {self.clip!r}: must be above 0")
        if not (isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"noise = {self.noise!r}: must be finite and at least 0 (0 adds none)")
        if self.noise > 0 and self.clip == inf:
            raise ValueError(f"clip = {self.clip!r}: must be finite if noise is above 0, here {self.noise!r}")
        require_positive("expected_weight", self.expected_weight)
        require_positive("max_weight", self.max_weight)
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed = {self.seed!r}: must be at least 0, or None for noise that cannot be repeated")
        if self.clipping not in get_args(Clipping):
            raise ValueError(f"clipping = {self.clipping!r}: must be 'server' or 'nodes'")
        if self.statistics not in ("refuse", "keep"):
            raise ValueError(f"statistics = {self.statistics!r}: must be 'refuse' or 'keep'")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each value of the mean."""
        # Algorithm 1: σ = z · S_f, with the sensitivity S_f = w_max S / (q W) of the mean
        return self.noise * self.max_weight * self.clip / self.expected_weight if self.noise else 0.0

    def train_config(self) -> dict[str, float]:
        return {wire.CLIPPING_NORM: float(self.clip)} if self.clipping == "nodes" else {}

    def check_arrays(self, names: Iterable[str]) -> None:
        if self.statistics == "refuse" and (reason := statistics_refusal(names)):
            raise ValueError(f"privacy = {self}: {reason}")

    def limit(self, reply: Reply, sent: Arrays, buffers: Buffers = Buffers()) -> Reply:  # noqa: B008 - immutable
        arrays = clip_update(reply.arrays, sent, self.clip, buffers)
        return replace(reply, arrays=arrays, weight=min(reply.weight, self.max_weight))

    def mean(
        self,
        integers: IntegerPolicy,
        sent: Arrays,
        server_round: int,
        buffers: Buffers = Buffers(),  # noqa: B008 - immutable
    ) -> StreamingMean:
        return _NoisyMean(self, sent, self.generator(server_round), buffers)

    def generator(self, server_round: int) -> np.random.Generator:
        """The random generator of the noise of a round."""
        return np.random.default_rng(None if self.seed is None else [self.seed, server_round, _NOISE])

    def check_strategy(self, privacy_gap: str) -> None:
        if privacy_gap:
            raise ValueError(f"privacy = {self}: does not cover this strategy, because {privacy_gap}")


def statistics_refusal(names: Iterable[str]) -> str:
    """Why differential privacy refuses arrays with these names; empty if it does not.

    The reason is the running mean and variance of a normalisation that is trained.
    """
    statistics = [name for name in names if last_part(name) in wire.STATISTICS[:2]]
    if not statistics:
        return ""
    more = f" and {len(statistics) - 1} more" if statistics[1:] else ""
    return (
        f"the model shares {statistics[0]}{more}, statistics of a normalisation over batches, which cannot be released "
        "with privacy: use nn.GroupNorm or nn.LayerNorm, or keep the statistics on the nodes"
    )


def clip_update(
    arrays: Arrays,
    sent: Arrays,
    clip: float,
    buffers: Buffers = Buffers(),  # noqa: B008 - immutable
) -> Arrays:
    """``sent`` plus the update ``arrays - sent``, scaled down to the L2 norm ``clip`` if it is longer.

    Parameters
    ----------
    arrays, sent : dict of arrays
        What a node returned and what it received: the same names, shapes and dtypes, in any order.
    clip : float
        > 0.
    buffers : Buffers
        Which arrays are not trained.

    Returns
    -------
    dict of arrays
        In the order of ``sent``. Parameters are float64, because rounding to fewer digits can make the update longer;
        without clipping they have the values of ``arrays``. All other arrays are those of ``sent``.
    """
    floats = buffers.parameters(sent)
    values = {name: np.asarray(arrays[name], np.float64) for name in floats}
    norm = sqrt(sum(float(np.square(values[name] - sent[name]).sum()) for name in floats))
    if norm > clip:
        scale = clip / norm  # Algorithm 1, FlatClip: Δ · min(1, S / ‖Δ‖)
        values = {name: np.asarray(sent[name] + scale * (value - sent[name])) for name, value in values.items()}
    return {name: values.get(name, array) for name, array in sent.items()}


class _NoisyMean(StreamingMean):
    """The estimated mean of replies that :meth:`CentralPrivacy.limit` returned, in the dtypes of ``sent``."""

    def __init__(self, privacy: CentralPrivacy, sent: Arrays, generator: np.random.Generator, buffers: Buffers) -> None:
        super().__init__()
        self._parameters = buffers.parameters(sent).keys()
        self._privacy = privacy
        self._sent = sent
        self._generator = generator

    @property
    def defined(self) -> bool:
        return True

    def result(self) -> Arrays:
        mean = super().result() if self.count else self._sent
        return {
            name: self._estimate(mean[name], sent) if name in self._parameters else sent.copy()
            for name, sent in self._sent.items()
        }

    def _estimate(self, mean: NDArray[Any], sent: NDArray[Any]) -> NDArray[Any]:
        replied = self.total_weight / self._privacy.expected_weight
        # Algorithm 1: θ + Σ w_k Δ_k / (q W) + N(0, σ²), with the expected total weight q W.
        # sent + 1 · (mean − sent) would round; FedAvg does not.
        estimate = mean if replied == 1 else sent.astype(np.float64) + replied * (mean - sent)
        if deviation := self._privacy.deviation:
            estimate = estimate + self._generator.normal(0.0, deviation, sent.shape)
        return np.asarray(estimate).astype(sent.dtype)
