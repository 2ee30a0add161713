"""Privacy budget (ε, δ) of Gaussian noise on clipped updates over several rounds.

Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, ICML 2018
(https://arxiv.org/abs/1805.06530), Theorem 8: the exact δ of a Gaussian mechanism for every ε (the textbook's
σ = √(2 ln(1.25/δ)) s/ε, which Flower's ``LocalDpMod`` uses, is proven only for ε below 1). Dong, Roth and Su, Gaussian
Differential Privacy, 2022 (https://arxiv.org/abs/1905.02383), Corollary 3.3: T mechanisms of noise multiplier z
together are equivalent to one of z/√T.
"""

from math import erfc, exp, inf, isfinite, log, pi, sqrt

from .privacy_amplification import sampled_epsilon

_STEPS = 200


def epsilon(
    noise: float, rounds: int, delta: float, sensitivity: float = 1.0, sampling_probability: float = 1.0
) -> float:
    """An ε for which ``rounds`` releases together are (ε, δ)-differentially private.

    It is the smallest one if every node takes part in every round. Under Poisson sampling it is an upper bound: the
    smaller one of that ε and :func:`~fedapps.strategies.privacy_amplification.sampled_epsilon`.

    Parameters
    ----------
    noise : float
        ≥ 0, standard deviation of the noise on a sum of updates, in units of the clipping norm; 0 gives ``inf``.
    rounds : int
        ≥ 0, the number of rounds in which one node can have taken part.
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
    if rounds < 0 or not sensitivity > 0:
        raise ValueError(f"rounds = {rounds!r}, sensitivity = {sensitivity!r}: must be at least 0, and above 0")
    if not 0 < sampling_probability <= 1:
        raise ValueError(f"sampling_probability = {sampling_probability!r}: must be above 0 and at most 1")
    if rounds == 0:
        return 0.0
    if noise == 0:
        return inf
    smallest = _unsampled(sqrt(rounds) * sensitivity / noise, delta)
    if sampling_probability == 1:
        return smallest
    return min(smallest, sampled_epsilon(noise / sensitivity, rounds, delta, sampling_probability))


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
