"""A learning rate that falls when the validation loss stops falling, also from round to round.

The schedule of Guerdan & Gunes (Decentralized Robot Learning for Personalization and Privacy, Appendix A.4): halved
after every five consecutive epochs without a lower validation loss, down to a minimum, without early stopping. A
node's round is often one epoch long, so the count continues from round to round.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from .named_arrays import Arrays
from .settings import LocalTraining

_NAME = "plateau"


@dataclass
class Plateau:
    """The rate of the next epoch, the lowest validation loss so far, and the epochs since it was last lowered.

    Parameters
    ----------
    patience : int
        ≥ 1; epochs in a row without a lower loss after which the rate is multiplied by ``factor``.
    factor : float
        In (0, 1).
    minimum : float
        The rate never falls below it.
    learning_rate : float
        The rate to start at.
    """

    patience: int
    factor: float
    minimum: float
    learning_rate: float
    best: float = inf
    stale: int = 0

    @classmethod
    def of(cls, training: LocalTraining, memory: Arrays) -> "Plateau | None":
        """The plateau of a round, continued from the memory; ``None`` if the settings have none."""
        if training.plateau_patience == 0:
            return None
        plateau = cls(
            training.plateau_patience, training.plateau_factor, training.min_learning_rate, training.learning_rate
        )
        plateau.resume(memory)
        return plateau

    def epoch_ended(self, validation_loss: float) -> None:
        """Update the learning rate with the loss after an epoch. A loss that is not a number is no improvement."""
        if validation_loss < self.best:
            self.best, self.stale = validation_loss, 0
            return
        self.stale += 1
        if self.stale >= self.patience:
            self.learning_rate, self.stale = max(self.learning_rate * self.factor, self.minimum), 0

    def arrays(self) -> Arrays:
        """Return the state for later rounds."""
        return {_NAME: np.array([self.learning_rate, self.best, self.stale])}

    def resume(self, memory: Arrays) -> None:
        """Continue from the result of :meth:`arrays` in the memory, if it is there."""
        if _NAME in memory:
            rate, best, stale = memory[_NAME].tolist()
            self.learning_rate, self.best, self.stale = rate, best, int(stale)


def kept_rate(memory: Arrays, learning_rate: float) -> float:
    """The rate of the plateau in the memory; ``learning_rate`` if there is none."""
    return float(memory[_NAME][0]) if _NAME in memory else learning_rate
