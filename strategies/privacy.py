"""Central differential privacy: bound the influence of each node on the mean, add noise to the mean, and count ε.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018 (DP-FedAvg),
https://arxiv.org/abs/1710.06963, Algorithm 1 with FlatClip and the estimator with a fixed denominator (Section 2 and
Lemma 1). Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021,
https://arxiv.org/abs/2103.00039, define neighbours in the same way ("zero-out").

The budget (ε, δ) of Gaussian noise on clipped updates over several rounds: Balle and Wang, Improving the Gaussian
Mechanism for Differential Privacy, ICML 2018 (https://arxiv.org/abs/1805.06530), Theorem 8: the exact δ of a Gaussian
mechanism for every ε (the textbook's σ = √(2 ln(1.25/δ)) s/ε, which Flower's ``LocalDpMod`` uses, is proven only for ε
below 1). Dong, Roth and Su, Gaussian Differential Privacy, 2022 (https://arxiv.org/abs/1905.02383), Corollary 3.3: T
mechanisms of noise multiplier z together are equivalent to one of z/√T.

Under Poisson sampling: Mironov, Talwar and Zhang, Rényi Differential Privacy of the Sampled Gaussian Mechanism, 2019
(https://arxiv.org/abs/1908.10530), Section 3, the divergence of one round; Canonne, Kamath and Steinke, The Discrete
Gaussian for Differential Privacy, NeurIPS 2020 (https://arxiv.org/abs/2004.00010), Proposition 12, from Rényi
divergence to (ε, δ).

What counts is what was released. A round that a server repeats after a crash is a further release. If it draws its
nodes afresh, it is a round like any other. If it repeats the draw (a seeded sampler), sampling hides a node in all of
these releases or in none: k of them with noise z are together one of a sampled Gaussian mechanism with noise z/√k.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from math import ceil, erfc, exp, inf, isfinite, log1p, pi, sqrt
from math import log as ln
from typing import Any, Literal, get_args

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from . import wire
from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, Buffers, last_part
from .checks import require_integer, require_one_of, require_positive
from .replies import Reply

Clipping = Literal["server", "nodes"]
_NOISE = 0x6E6F697365  # the purpose in the key of these draws
_LOGGED_DELTA = 1e-5
#: Noise of this many times the norm of the mean update is a warning.
_DROWNED = 5.0


class PrivacyMechanism:
    """The part of a strategy that protects single replies; this base class protects nothing."""

    @property
    def bounds_updates(self) -> bool:
        """Whether it limits the influence of each update, so that no other bound on their sizes is needed."""
        return False

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

    def limit(self, reply: Reply, sent: Arrays, buffers: Buffers) -> Reply:
        """The reply as it enters the aggregate; ``sent`` is what its node received."""
        return reply

    def mean(self, integers: IntegerPolicy, sent: Arrays, server_round: int, buffers: Buffers) -> StreamingMean:
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

    :func:`~fedapps.strategies.privacy.epsilon` computes the guarantee. Neighbouring runs differ in whether one
    node contributes its updates: in one of them it is not asked, or it sends no usable reply. The mechanism protects
    what a node changes in the shared parameters, from everyone but the server. It protects neither the other numbers
    that nodes report (examples, losses, metrics, profiles) nor how many and which nodes reply. Every round logs ε so
    far, as if every node had taken part in every round, and the norms of the noise and of the mean update.

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
        if self.seed is not None:
            require_integer("seed", self.seed, least=0)
        require_one_of("clipping", self.clipping, get_args(Clipping))
        require_one_of("statistics", self.statistics, ("refuse", "keep"))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each value of the mean."""
        # Algorithm 1: σ = z · S_f, with the sensitivity S_f = w_max S / (q W) of the mean
        return self.noise * self.max_weight * self.clip / self.expected_weight if self.noise else 0.0

    @property
    def bounds_updates(self) -> bool:
        return self.clip < inf

    def train_config(self) -> dict[str, float]:
        return {wire.CLIPPING_NORM: float(self.clip)} if self.clipping == "nodes" else {}

    def check_arrays(self, names: Iterable[str]) -> None:
        if self.statistics == "refuse" and (reason := statistics_refusal(names)):
            raise ValueError(f"privacy = {self}: {reason}")

    def limit(self, reply: Reply, sent: Arrays, buffers: Buffers) -> Reply:
        arrays = clip_update(reply.arrays, sent, self.clip, buffers)
        return replace(reply, arrays=arrays, weight=min(reply.weight, self.max_weight))

    def mean(self, integers: IntegerPolicy, sent: Arrays, server_round: int, buffers: Buffers) -> StreamingMean:
        return _NoisyMean(self, sent, server_round, buffers)

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


def clip_update(arrays: Arrays, sent: Arrays, clip: float, buffers: Buffers) -> Arrays:
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

    def __init__(self, privacy: CentralPrivacy, sent: Arrays, server_round: int, buffers: Buffers) -> None:
        super().__init__()
        self._round = server_round
        self._parameters = buffers.parameters(sent).keys()
        self._privacy = privacy
        self._sent = sent
        self._generator = privacy.generator(server_round)

    @property
    def defined(self) -> bool:
        return True

    def result(self) -> Arrays:
        mean = super().result() if self.count else self._sent
        released = {
            name: self._estimate(mean[name], sent) if name in self._parameters else sent.copy()
            for name, sent in self._sent.items()
        }
        if self._privacy.noise and self._parameters:
            self._log(released)
        return released

    def _log(self, released: Arrays) -> None:
        """Log the noise beside the mean, and ε so far. All of it follows from what is released, so it costs no ε."""
        count = sum(self._sent[name].size for name in self._parameters)
        noise = self._privacy.deviation * sqrt(count)
        squares = (np.square(released[name].astype(np.float64) - self._sent[name]).sum() for name in self._parameters)
        # The mean and the noise are independent: ‖mean + noise‖² is ‖mean‖² + σ² d on average, give or take σ² √(2 d).
        mean = sqrt(max(sum(map(float, squares)) - noise**2, self._privacy.deviation**2 * sqrt(2 * count)))
        if self.count:  # every update is clipped
            mean = min(mean, self._privacy.clip * self.total_weight / self._privacy.expected_weight)
        spent = epsilon(self._privacy.noise, self._round, _LOGGED_DELTA)
        log(
            WARNING if noise > _DROWNED * mean else INFO,
            "central privacy: the noise has %.2g times the norm of the mean update (%.3g against %.3g)%s; epsilon "
            "is at most %.3g at delta %g after %s rounds, more if rounds were repeated",
            *(noise / mean, noise, mean),
            ", more than a model learns from: take more nodes per round (expected_weight), or less noise"
            if noise > _DROWNED * mean
            else "",
            *(spent, _LOGGED_DELTA, self._round),
        )

    def _estimate(self, mean: NDArray[Any], sent: NDArray[Any]) -> NDArray[Any]:
        replied = self.total_weight / self._privacy.expected_weight
        # Algorithm 1: θ + Σ w_k Δ_k / (q W) + N(0, σ²), with the expected total weight q W.
        # sent + 1 · (mean − sent) would round; FedAvg does not.
        estimate = mean if replied == 1 else sent + replied * (mean - sent)
        if deviation := self._privacy.deviation:
            estimate = estimate + self._generator.normal(0.0, deviation, sent.shape)
        return np.asarray(estimate).astype(sent.dtype)


_STEPS = 200


def epsilon(
    noise: float,
    releases: int | Sequence[int],
    delta: float,
    sensitivity: float = 1.0,
    sampling_probability: float = 1.0,
) -> float:
    """An ε for which all ``releases`` together are (ε, δ)-differentially private.

    It is the smallest one if every node takes part in every release. Under Poisson sampling it is an upper bound: the
    smaller one of that ε and :func:`sampled_epsilon`.

    Parameters
    ----------
    noise : float
        ≥ 0, standard deviation of the noise on a sum of updates, in units of the clipping norm; 0 gives ``inf``.
    releases : int or sequence of int
        ≥ 0, the number of rounds, repeated ones included, in which one node can have taken part. Under Poisson sampling
        each has its own draw; where draws were repeated, give the number of releases of each draw: ``[1, 3]`` for two
        draws, the second of which was used three times.
    delta : float
        Between 0 and 1, well below 1 / number of nodes.
    sensitivity : float
        > 0, the largest change of that sum by one node, in units of the clipping norm: 1 if the node's updates can be
        added or removed (central privacy), 2 if its update can be replaced by any other (local privacy).
    sampling_probability : float
        Above 0 and at most 1. Below 1 only for Poisson sampling with secret draws and updates that are added or
        removed: the probability with which a node takes part in a round, independently of all others.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """
    if not (isfinite(noise) and noise >= 0):
        raise ValueError(f"noise = {noise!r}: must be finite and at least 0")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta!r}: must be between 0 and 1")
    draws = Counter({1: releases} if isinstance(releases, int) else releases)
    if any(size < 0 or count < 0 for size, count in draws.items()) or not sensitivity > 0:
        raise ValueError(f"releases = {releases!r}, sensitivity = {sensitivity!r}: must be at least 0, and above 0")
    total = sum(size * count for size, count in draws.items())
    if not 0 < sampling_probability <= 1:
        raise ValueError(f"sampling_probability = {sampling_probability!r}: must be above 0 and at most 1")
    if total == 0:
        return 0.0
    if noise == 0:
        return inf
    smallest = _unsampled(sqrt(total) * sensitivity / noise, delta)
    if sampling_probability == 1:
        return smallest
    return min(smallest, sampled_epsilon(noise / sensitivity, draws, delta, sampling_probability))


#: Beyond it exponents lose their digits or overflow. The upper bound is then at most a millionth too large.
_LARGEST_MU = 1e7


def _unsampled(mu: float, delta: float) -> float:
    low, high = 0.0, mu * mu / 2 + mu * sqrt(2 * ln(1 / delta))  # upper bound from the Rényi divergence
    if mu > _LARGEST_MU:
        return high
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(mu, middle) > delta else (low, middle)
    return high


def delta_of(mu: float, epsilon: float) -> float:
    """The δ of Gaussian noise at ``epsilon`` ≥ 0, if one node changes the result by ``mu`` > 0 standard deviations."""
    # e^ε Φ(x) is computed as one number: e^ε can overflow where Φ(x) underflows.
    return max(0.0, _phi(mu / 2 - epsilon / mu) - _scaled_phi(-mu / 2 - epsilon / mu, epsilon))


def _phi(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


def _scaled_phi(x: float, epsilon: float) -> float:
    """e^ε Φ(x) for x < 0."""
    tail = _phi(x)
    if tail > 0:
        return exp(epsilon + ln(tail))
    # The lower bound of Mills' ratio: the resulting δ is an upper bound.
    return exp(epsilon - x * x / 2) * -x / ((1 + x * x) * sqrt(2 * pi))


_ORDERS = 60  # in each of the two searches for the best order
_TAIL = 12.0  # standard deviations; the mass outside is below 1e-32
_LEAST_NOISE = 0.02  # with less noise, one round has an ε above 1000, and the integrals need too many points


def sampled_epsilon(noise: float, draws: Mapping[int, int], delta: float, probability: float) -> float:
    """An ε for which all releases together are (ε, δ)-differentially private, if sampling is Poisson.

    It is an upper bound, 7 to 23 % above the smallest ε in the cases of the tests; ``inf`` if the noise of a draw is
    below 0.02.

    Parameters
    ----------
    noise : float
        > 0, standard deviation of the noise on a sum of updates, in units of the largest change of that sum by one
        node.
    draws : mapping of int to int
        By a number of releases k ≥ 1, how many draws of nodes were used for k releases: ``{1: 20}`` for 20 rounds, each
        with its own draw.
    delta : float
        Between 0 and 1.
    probability : float
        Above 0 and below 1, the probability with which a node takes part in a round, independently of all others. Who
        takes part must be secret.
    """
    noises = {noise / sqrt(size): count for size, count in draws.items() if size}
    if min(noises) < _LEAST_NOISE:
        return inf
    least, most = min(noises), max(noises)
    orders = 1 + np.geomspace(0.005 * least, 50 * most * min(max(most, 1.0), 10.0), _ORDERS)
    for _ in range(2):
        spent = [sum(n * renyi_divergence(z, probability, order) for z, n in noises.items()) for order in orders]
        bounds = [_converted(order, divergence, delta) for order, divergence in zip(orders, spent, strict=True)]
        best = int(np.argmin(bounds))
        orders = np.linspace(orders[max(best - 1, 0)], orders[min(best + 1, _ORDERS - 1)], _ORDERS)
    return float(max(0.0, min(bounds)))


def renyi_divergence(noise: float, probability: float, order: float) -> float:
    """The Rényi divergence D_α((1-q) N(0, σ²) + q N(1, σ²) ‖ N(0, σ²)) of one round.

    It is not smaller than the divergence in the other direction (Mironov et al. 2019, Theorem 5), so it bounds both
    adding and removing a node.

    Parameters
    ----------
    noise : float
        σ > 0.
    probability : float
        q, above 0 and below 1.
    order : float
        α > 1.
    """
    # The trapezoidal rule for the mean of (mixture / N(0, σ²))^α under N(0, σ²). Its error decreases exponentially with
    # 1/step, because the integrand is analytic; the nearest pole is πσ standard deviations from the real axis.
    step = min(1 / 16, noise / 4)
    x = step * np.arange(ceil(-_TAIL / step), ceil((order / noise + _TAIL) / step) + 1)
    log_ratio = np.logaddexp(log1p(-probability), ln(probability) + x / noise - 1 / (2 * noise**2))
    exponent = order * log_ratio - x**2 / 2
    largest = float(exponent.max())
    log_mean = largest + ln(float(np.exp(exponent - largest).sum()) * step / sqrt(2 * pi))
    return max(0.0, log_mean) / (order - 1)


def _converted(order: float, divergence: float, delta: float) -> float:
    return divergence + log1p(-1 / order) - (ln(delta) + ln(order)) / (order - 1)
