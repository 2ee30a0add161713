"""Sequences by what they look like."""

import numpy as np
from scipy.spatial.distance import cdist

from .places import Places


def track_features(places: Places, features: np.ndarray) -> np.ndarray:
    """The mean of the features of images ``[len(places), d]`` over each sequence ``[len(places.tracks), d]``.

    Sequences without a row get zeros.
    """
    sums = np.zeros((len(places.tracks), features.shape[1]))
    np.add.at(sums, places.track, features)
    counts = np.bincount(places.track, minlength=len(places.tracks))
    return sums / np.maximum(counts, 1)[:, None]


def k_means(points: np.ndarray, k: int, rng: np.random.Generator, *, max_steps: int = 100) -> np.ndarray:
    """Labels 0..k-1 int64 ``[n]`` of points ``[n, d]``: Lloyd's algorithm, begun with k-means++; 1 <= k <= n.

    A cluster that loses all its points keeps its centre, and may stay empty.
    """
    centres = points[rng.integers(len(points), size=1)]
    while len(centres) < k:
        squared = cdist(points, centres, "sqeuclidean").min(axis=1)
        total = squared.sum()
        chances = squared / total if total > 0 else None  # all points are centres already
        centres = np.concatenate([centres, points[rng.choice(len(points), size=1, p=chances)]])
    labels = np.full(len(points), -1)
    for _ in range(max_steps):
        nearest = cdist(points, centres, "sqeuclidean").argmin(axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        for label in np.unique(labels):
            centres[label] = points[labels == label].mean(axis=0)
    return labels
