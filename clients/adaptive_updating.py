"""Adaptive updating: first the private parameters catch up with the shared ones, then all are trained together.

Zhang et al., FedVocab, Section 3.3: a node that sat out some rounds has private parameters that no longer fit what it
receives. So it trains them alone for one epoch, with what it received frozen, before it trains the whole model. "It is
sufficient to reuse the same optimization method": each phase has the same optimizer with the same settings, but moments
and learning-rate decay of its own, and no gradient of one phase reaches the other. LG-FedAvg (Liang et al. 2020,
https://arxiv.org/abs/2001.01523) is the same without the first phase: ``adapt-epochs = 0``.
"""

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from .training import Phase


def adaptive_updating(joint: Phase, model: nn.Module, received: Collection[str], epochs: int) -> list[Phase]:
    """``joint`` with ``epochs`` epochs before it that train the parameters not ``received``, on the same examples.

    With 0 epochs, or where no parameter is private, it is ``joint`` alone. Frozen are parameters: buffers, such as the
    statistics of a normalisation, follow the data in both phases. A plateau gives the first phase its rate, and counts
    the epochs of ``joint`` only.
    """
    private = [name for name, _ in model.named_parameters() if name not in received]
    if epochs == 0 or not private:
        return [joint]
    return [replace(joint, epochs=epochs, steps=0, trainable=private, validation_loss=None), joint]
