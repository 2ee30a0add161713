"""FedSGD: one gradient step on all examples of a node per round."""

from dataclasses import replace

from fedapps.clients.settings import LocalTraining

from .base import Method

#: More examples than any node has, so that all of them are one batch.
ALL_EXAMPLES = 2**31 - 1


class FedSgd(Method):
    """The baseline of the paper of FedAvg: with weights by examples, a round is one step of centralised SGD."""

    name = "fedsgd"
    summary = "FedSGD: one SGD step on all examples of a node per round"
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "Section 2, https://arxiv.org/abs/1602.05629"
    )
    work = "one step"
    good_for = "fast links; exact gradients"

    def training(self, training: LocalTraining) -> LocalTraining:
        return replace(training, epochs=1, steps=1, batch_size=ALL_EXAMPLES, optimizer="sgd")
