"""What Gaussian noise on clipped updates guarantees, round after round, as ε and δ.

Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy, ICML 2018
(https://arxiv.org/abs/1805.06530), Theorem 8: the δ of a Gaussian mechanism, exactly and for every ε (the textbook's
σ = √(2 ln(1.25/δ)) s/ε, which Flower's ``LocalDpMod`` uses, is proven for ε below 1 only). Dong, Roth and Su, Gaussian
Differential Privacy, 2022 (https://arxiv.org/abs/1905.02383), Corollary 3.3: T mechanisms of noise multiplier z are
as one of z/√T.
"""

from math import erfc, exp, inf, isfinite, log, pi, sqrt

_STEPS = 200


def epsilon(noise: float, rounds: int, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest ε for which ``rounds`` releases together are (ε, δ)-differentially private.

    No sampling is taken into account, as if each node took part in every round: with a fraction of them the truth is
    smaller.

    Parameters
    ----------
    noise : float
        ≥ 0, standard deviation of the noise on a sum of updates, in clipping norms; 0 gives ``inf``.
    rounds : int
        ≥ 0 in which one node may have taken part.
    delta : float
        Between 0 and 1, well below one over the number of nodes.
    sensitivity : float
        How far one node's data can move that sum, in clipping norms: 1 where it takes part or does not (central
        privacy), 2 where its update may be any other (local privacy).

    Raises ``ValueError`` naming what is out of range.
    """
    if not (isfinite(noise) and noise >= 0):
        raise ValueError(f"noise = {noise!r}: must be finite and at least 0")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta!r}: must be between 0 and 1")
    if rounds < 0 or not sensitivity > 0:
        raise ValueError(f"rounds = {rounds!r}, sensitivity = {sensitivity!r}: must be at least 0, and above 0")
    if rounds == 0:
        return 0.0
    if noise == 0:
        return inf
    mu = sqrt(rounds) * sensitivity / noise
    low, high = 0.0, mu * mu / 2 + mu * sqrt(2 * log(1 / delta))  # the bound by Rényi divergence
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(mu, middle) > delta else (low, middle)
    return high


def delta_of(mu: float, epsilon: float) -> float:
    """The δ of Gaussian noise at ``epsilon`` ≥ 0, where one node moves the result by ``mu`` > 0 standard deviations."""
    # e^ε Φ(x), of which one factor may overflow where the other vanishes
    return max(0.0, _phi(mu / 2 - epsilon / mu) - _scaled_phi(-mu / 2 - epsilon / mu, epsilon))


def _phi(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


def _scaled_phi(x: float, epsilon: float) -> float:
    """e^ε Φ(x) for x < 0."""
    tail = _phi(x)
    if tail > 0:
        return exp(epsilon + log(tail))
    # the lower bound of Mills' ratio: less is subtracted from δ than could be
    return exp(epsilon - x * x / 2) * -x / ((1 + x * x) * sqrt(2 * pi))
