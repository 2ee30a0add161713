"""Groups sequences by their image features."""

import numpy as np
from scipy.spatial.distance import cdist

from .places import Places


def track_features(places: Places, features: np.ndarray) -> np.ndarray:
    """Return the mean features of every sequence.

    Parameters
    ----------
    places : Places
        n images of m sequences.
    features : ndarray [n, d]
        Features of the images.

    Returns
    -------
    ndarray [m, d]
        Mean features; zeros for sequences without images.
    """
    sums = np.zeros((len(places.tracks), features.shape[1]))
    np.add.at(sums, places.track, features)
    counts = np.bincount(places.track, minlength=len(places.tracks))
    return sums / np.maximum(counts, 1)[:, None]


def k_means(points: np.ndarray, k: int, rng: np.random.Generator, *, max_steps: int = 100) -> np.ndarray:
    """Cluster points with Lloyd's algorithm and k-means++ initialisation.

    Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, SODA 2007. The draws differ from those of
    ``scipy.cluster.vq.kmeans2``, whose clients would differ from the published ones.

    Parameters
    ----------
    points : ndarray [n, d]
        The points.
    k : int
        The number of clusters, 1 to n.
    rng : Generator
        Draws the initial centres.
    max_steps : int
        The maximum number of iterations.

    Returns
    -------
    ndarray [n]
        Labels 0 to k-1, int64. A cluster that loses all its points keeps its centre and may stay empty.
    """
    centres = points[rng.integers(len(points), size=1)]
    while len(centres) < k:
        squared = cdist(points, centres, "sqeuclidean").min(axis=1)
        total = squared.sum()
        chances = squared / total if total > 0 else None  # uniform if all points are centres already
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
