"""FedSGD: one gradient step on all examples of a node per round."""

from collections.abc import Mapping

from .base import Method, Round, Scalar

#: More examples than any node has, so that all of them are one batch.
ALL_EXAMPLES = 2**31 - 1


class FedSgd(Method):
    """The baseline of the paper of FedAvg: with weights by examples, a round is one step of centralised SGD."""

    name = "fedsgd"
    line = "FedSGD: one SGD step on all examples of a node per round"
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "Section 2, https://arxiv.org/abs/1602.05629"
    )
    work = "one step"
    helps = "fast links; exact gradients"

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message == "evaluate":
            return {}
        return {"epochs": 1, "steps": 1, "batch-size": ALL_EXAMPLES, "optimizer": "sgd"}
