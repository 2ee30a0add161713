"""numpy-hierarchy: linear regression on made-up data."""

import numpy as np

CITIES = ("oslo", "rome")
FEATURES = 5


def load_data(partition_id: int):
    """The city of a node, its training data and its test data.

    Nothing is downloaded: y = x · slopes + noise is drawn here, with slopes that differ between the cities. A node's
    draw depends on its partition id alone.
    """
    city = partition_id % len(CITIES)
    slopes = 1 + np.random.default_rng([1, city]).normal(scale=0.5, size=FEATURES)
    rng = np.random.default_rng([2, partition_id])
    x = rng.normal(size=(60, FEATURES))
    y = x @ slopes + rng.normal(scale=0.1, size=60)
    return CITIES[city], (x[:40], y[:40]), (x[40:], y[40:])


def train(weights, data, steps: int, lr: float):
    """Steps of gradient descent on the mean squared error."""
    x, y = data
    for _ in range(steps):
        weights = weights - lr * 2 * x.T @ (x @ weights - y) / len(y)
    return weights


def test(weights, data) -> float:
    """The mean squared error."""
    x, y = data
    return float(np.mean((x @ weights - y) ** 2))
