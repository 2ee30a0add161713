"""A learning rate that falls when the validation loss stops falling, and remembers where it was between rounds.

The schedule of Guerdan & Gunes (Decentralized Robot Learning for Personalization and Privacy, Appendix A.4): halved
after every five consecutive epochs without a lower validation loss, never below a floor, no early stop. A node's
round is often one epoch long, so the count has to go on from round to round.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from .named_arrays import Arrays

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

    def epoch_ended(self, validation_loss: float) -> None:
        """Take in the loss after one more epoch. A loss that is not a number counts as no improvement."""
        if validation_loss < self.best:
            self.best, self.stale = validation_loss, 0
            return
        self.stale += 1
        if self.stale >= self.patience:
            self.learning_rate, self.stale = max(self.learning_rate * self.factor, self.minimum), 0

    def arrays(self) -> Arrays:
        """What a later round goes on from."""
        return {_NAME: np.array([self.learning_rate, self.best, self.stale])}

    def resume(self, memory: Arrays) -> None:
        """Go on from :meth:`arrays`; stays as it is where there are none."""
        if _NAME in memory:
            rate, best, stale = memory[_NAME].tolist()
            self.learning_rate, self.best, self.stale = rate, best, int(stale)
