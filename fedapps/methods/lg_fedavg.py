"""LG-FedAvg: the representation stays on the nodes, only the classifier is averaged."""

from .partial import PartialMethod


class LgFedAvg(PartialMethod):
    """Local representations under a global classifier."""

    name = "lg-fedavg"
    line = "LG-FedAvg: embedding and encoder stay on the nodes, only the classifier is averaged"
    citation = "Liang et al., Think Locally, Act Globally, 2020, https://arxiv.org/abs/2001.01523"
    task = "text"
    patterns = ("embedding.*", "encoder.*")
