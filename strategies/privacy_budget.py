"""Privacy budget (ε, δ) of Gaussian noise on clipped updates over several rounds.

Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, ICML 2018
(https://arxiv.org/abs/1805.06530), Theorem 8: the exact δ of a Gaussian mechanism for every ε (the textbook's
σ = √(2 ln(1.25/δ)) s/ε, which Flower's ``LocalDpMod`` uses, is proven only for ε below 1). Dong, Roth and Su, Gaussian
Differential Privacy, 2022 (https://arxiv.org/abs/1905.02383), Corollary 3.3: T mechanisms of noise multiplier z
together are equivalent to one of z/√T.

Under Poisson sampling: Mironov, Talwar and Zhang, Rényi Differential Privacy of the Sampled Gaussian Mechanism, 2019
(https://arxiv.org/abs/1908.10530), Section 3, the divergence of one round; Canonne, Kamath and Steinke, The Discrete
Gaussian for Differential Privacy, NeurIPS 2020 (https://arxiv.org/abs/2004.00010), Proposition 12, from Rényi
divergence to (ε, δ).

What counts is what was released. A round that a server repeats after a crash is a further release. If it draws its
nodes afresh, it is a round like any other. If it repeats the draw (a seeded sampler), sampling hides a node in all of
these releases or in none: k of them with noise z are together one of a sampled Gaussian mechanism with noise z/√k.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, erfc, exp, inf, isfinite, log, log1p, pi, sqrt

import numpy as np

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


def _unsampled(mu: float, delta: float) -> float:
    low, high = 0.0, mu * mu / 2 + mu * sqrt(2 * log(1 / delta))  # upper bound from the Rényi divergence
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
        return exp(epsilon + log(tail))
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
    noises = {noise / sqrt(size): count for size, count in draws.items() if size and count}
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
    log_ratio = np.logaddexp(log1p(-probability), log(probability) + x / noise - 1 / (2 * noise**2))
    exponent = order * log_ratio - x**2 / 2
    largest = float(exponent.max())
    log_mean = largest + log(float(np.exp(exponent - largest).sum()) * step / sqrt(2 * pi))
    return max(0.0, log_mean) / (order - 1)


def _converted(order: float, divergence: float, delta: float) -> float:
    return divergence + log1p(-1 / order) - (log(delta) + log(order)) / (order - 1)
