"""fedcurv-toy: linear regression on made-up data of nodes that each see one feature well."""

import numpy as np

TRUTH = np.array([1.0, -2.0, 3.0])


def load_data(partition_id: int):
    """The training data of a node: nothing is downloaded, they are drawn here.

    y = x · TRUTH + noise of variance 1. On node k feature k (of three) varies a lot and the others hardly, so that it
    learns next to nothing about those: the plain average of all nodes is spoiled by what they do not know.
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
    """How far the parameters are from the truth."""
    return float(np.sum((theta - TRUTH) ** 2))
