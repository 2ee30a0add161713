"""numpy-hierarchy: linear regression on generated data."""

import numpy as np

CITIES = ("oslo", "rome")
FEATURES = 5


def load_data(partition_id: int):
    """Generate the city, the training data and the test data of a node; nothing is downloaded.

    y = x · slopes + noise, with slopes that differ between the cities. The data depend only on the partition id.
    """
    city = partition_id % len(CITIES)
    slopes = 1 + np.random.default_rng([1, city]).normal(scale=0.5, size=FEATURES)
    rng = np.random.default_rng([2, partition_id])
    x = rng.normal(size=(60, FEATURES))
    y = x @ slopes + rng.normal(scale=0.1, size=60)
    return CITIES[city], (x[:40], y[:40]), (x[40:], y[40:])


def train(weights, data, steps: int, lr: float):
    """Take gradient descent steps on the mean squared error."""
    x, y = data
    for _ in range(steps):
        weights = weights - lr * 2 * x.T @ (x @ weights - y) / len(y)
    return weights


def test(weights, data) -> float:
    """The mean squared error."""
    x, y = data
    return float(np.mean((x @ weights - y) ** 2))
