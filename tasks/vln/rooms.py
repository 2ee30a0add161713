"""Which room a viewpoint is in, judged by the objects around it.

A multinomial logistic regression learns from the labels in ``rooms.csv`` whose column ``split`` is ``train``. The room
that a viewpoint really has is never a feature: unseen houses have no labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedapps.tasks.tables import read_table

from .files import find_file

ROOMS_FILE = "rooms.csv"
ROOMS = (
    "office", "lounge", "familyroom", "entryway", "dining_room", "living_room", "stairs", "kitchen", "porch",
    "bathroom", "bedroom", "hallway",
)  # fmt: skip
RIDGE = 3e-3  # times the squared weights, added to the mean cross-entropy
ITERATIONS = 60


def read_rooms(folder: Path) -> dict[str, int]:
    """The room, by its number in :data:`ROOMS`, of viewpoints ``<scan>_<viewpoint>`` of training houses.

    Raises :class:`DataError` where the file is malformed; without it there are no rooms.
    """
    path = find_file(folder, ROOMS_FILE)
    if path is None:
        return {}
    table = read_table(path, ("scan", "viewpoint", "label_name_inferred", "split"))
    rooms = table.words("label_name_inferred", {name: number for number, name in enumerate(ROOMS)}).tolist()
    rows = zip(table.texts("scan"), table.texts("viewpoint"), table.texts("split"), rooms, strict=True)
    return {f"{scan}_{viewpoint}": room for scan, viewpoint, split, room in rows if split == "train"}


@dataclass(frozen=True, eq=False)
class RoomClassifier:
    """Probabilities of the rooms given how much of each label is around a viewpoint.

    ``labels`` maps a label to its row of ``weight [L, 12]``; labels that the training houses lack count for nothing.
    """

    labels: Mapping[str, int]
    weight: np.ndarray
    bias: np.ndarray

    def posterior(self, amounts: Sequence[Mapping[str, float]]) -> np.ndarray:
        """Probabilities ``[N, 12]`` at N viewpoints, given the amount of each label around them."""
        logits = _table(amounts, self.labels) @ self.weight + self.bias
        logits -= logits.max(axis=1, keepdims=True)
        odds: np.ndarray = np.exp(logits)
        posterior: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
        return posterior


def train_classifier(amounts: Sequence[Mapping[str, float]], rooms: Sequence[int]) -> RoomClassifier:
    """Fit the classifier by L-BFGS from zero weights, which draws no random number."""
    from scipy.optimize import minimize  # slow to import, and a profile needs only the options
    from scipy.special import logsumexp

    labels = {label: row for row, label in enumerate(sorted({label for each in amounts for label in each}))}
    shape = len(labels) + 1, len(ROOMS)  # the last row is the bias
    inputs = np.hstack([_table(amounts, labels), np.ones((len(amounts), 1))])
    targets = np.eye(len(ROOMS))[list(rooms)]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight = flat.reshape(shape)
        logits = inputs @ weight
        log_posterior = logits - logsumexp(logits, axis=1, keepdims=True)
        penalised = np.vstack([weight[:-1], np.zeros((1, len(ROOMS)))])
        gradient = inputs.T @ (np.exp(log_posterior) - targets) / len(targets) + 2 * RIDGE * penalised
        return float(RIDGE * (penalised**2).sum() - (targets * log_posterior).sum() / len(targets)), gradient.ravel()

    fitted = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    weight = fitted.x.reshape(shape)
    return RoomClassifier(labels, weight[:-1], weight[-1])


def _table(amounts: Sequence[Mapping[str, float]], labels: Mapping[str, int]) -> np.ndarray:
    table = np.zeros((len(amounts), len(labels)))
    for row, each in enumerate(amounts):
        for label, amount in each.items():
            if label in labels:
                table[row, labels[label]] = amount
    return table
