"""Adaptive learning rates from the deviation of parameters across nodes.

Nakanoya et al. 2021, Personalized Federated Learning of Driver Prediction Models for Autonomous Driving
(https://arxiv.org/abs/2112.00956), Algorithm 1, the updates of σ and l: when a node personalises the shared model,
parameters that differ between nodes get high learning rates and parameters on which nodes agree get low ones.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, is_float

Granularity = Literal["parameter", "tensor"]


def adaptive_rates(deviation: Arrays, granularity: Granularity = "parameter", power: float = 1.0) -> Arrays:
    """Learning rates as fractions of the base learning rate: l_i / L = (σ_i / max_j σ_j)^power.

    Parameters
    ----------
    deviation : dict of arrays
        σ, the sum of squared deviations Σ_k (θ_k − mean θ)² of every parameter: finite, ≥ 0, of any shape.
        Integer and boolean arrays are ignored.
    granularity : "parameter" or "tensor"
        One rate for every parameter, or one for each array from the mean of σ over its elements (a sum would give
        large arrays the highest rates).
    power : float
        Above 0. 1 is the published ratio of squared deviations, 0.5 the ratio of standard deviations.

    Returns
    -------
    dict of arrays
        Float64 ratios in [0, 1] for each floating-point array: in its shape for "parameter", 0-d for "tensor".
        The maximum is taken over the whole model, so at least one ratio is 1. If all deviations are 0, as with a
        single node, every ratio is 1.

    Raises
    ------
    ValueError
        The granularity is unknown, the power is not above 0, or σ is negative or not finite.
    """
    if granularity not in get_args(Granularity):
        raise ValueError(f"granularity = {granularity!r}: must be 'parameter' or 'tensor'")
    if not (np.isfinite(power) and power > 0):
        raise ValueError(f"power = {power!r}: must be finite and above 0")
    sigmas = {name: _sigma(name, array, granularity) for name, array in deviation.items() if is_float(array)}
    largest = max((float(sigma.max()) for sigma in sigmas.values() if sigma.size), default=0.0)
    if largest == 0.0:
        return {name: np.ones(sigma.shape) for name, sigma in sigmas.items()}
    return {name: np.asarray((sigma / largest) ** power) for name, sigma in sigmas.items()}


def _sigma(name: str, array: NDArray[Any], granularity: Granularity) -> NDArray[np.float64]:
    sigma = np.asarray(array, dtype=np.float64)
    if not np.all(np.isfinite(sigma) & (sigma >= 0)):
        raise ValueError(f"deviation[{name!r}]: must be finite and at least 0")
    if granularity == "parameter":
        return sigma
    return np.asarray(sigma.mean() if sigma.size else 0.0)
