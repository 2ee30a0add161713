"""fedcurv-toy: linear regression on generated data; each node observes one feature well."""

import numpy as np

TRUTH = np.array([1.0, -2.0, 3.0])


def load_data(partition_id: int):
    """Generate the training data of a node; nothing is downloaded.

    y = x · TRUTH + noise of variance 1. On node k, feature k (of three) varies strongly and the others hardly, so the
    node learns little about the other parameters, and its estimates of them degrade the plain average.
    """
    rng = np.random.default_rng([0, partition_id])
    spread = np.where(np.arange(len(TRUTH)) == partition_id % len(TRUTH), 2.0, 0.2)
    x = rng.normal(size=(20, len(TRUTH))) * spread
    return x, x @ TRUTH + rng.normal(size=20)


def train(theta, x, y, precision, linear, steps: int, lr: float):
    """Gradient descent on the negative log-likelihood ½ mean (y - x · theta)² with the prior ½ θᵀPθ - Lᵀθ."""
    for _ in range(steps):
        theta = theta - lr * (x.T @ (x @ theta - y) / len(y) + precision * theta - linear)
    return theta


def fisher(theta, x, y):
    """The diagonal of the Fisher information: the mean squared gradient of single examples."""
    return np.mean((x * (x @ theta - y)[:, None]) ** 2, axis=0)


def test(theta) -> float:
    """The squared distance of the parameters from the true ones."""
    return float(np.sum((theta - TRUTH) ** 2))
