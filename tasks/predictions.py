"""The predictions of a trained classifier."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """The predictions for ``n`` examples.

    Parameters
    ----------
    labels : ndarray int64 [n]
        The class with the highest probability, counted from 0.
    names : tuple of str
        The label of each example, as in the training files.
    probabilities : ndarray float32 [n, classes]
        Their sum is 1 for each example.
    """

    labels: NDArray[np.int64]
    names: tuple[str, ...]
    probabilities: NDArray[np.float32]

    @classmethod
    def of(cls, probabilities: NDArray[np.float32], classes: Sequence[str]) -> Self:
        """Return the predictions with these probabilities ``[n, classes]``; ``classes`` are the names of the labels."""
        labels = probabilities.argmax(axis=1)
        return cls(labels, tuple(classes[label] for label in labels), probabilities)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield ``label``, ``probability`` and ``probability.<label>`` of every class, for each example."""
        for label, name, shares in zip(self.labels, self.names, self.probabilities.tolist(), strict=True):
            row = {"label": name, "probability": shares[label]}
            yield row | {f"probability.{name}": share for name, share in zip(classes, shares, strict=True)}
