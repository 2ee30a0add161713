"""L2 Init: FedAvg with a penalty on the distance from the initial parameters."""

from dataclasses import dataclass

from fedapps.tasks.options import option

from fedapps.methods.base import Method


@dataclass(frozen=True)
class L2InitOptions:
    """The options of L2 Init."""

    weight: float = option(0.01, "weight of the penalty; 0 = FedAvg", minimum=0)


class L2Init(Method):
    """The nodes are held near the initial model of the run."""

    name = "l2-init"
    line = "FedAvg with a penalty on the distance from the initial parameters"
    citation = (
        "Kumar et al., Maintaining Plasticity via Regenerative Regularization, 2023, https://arxiv.org/abs/2308.11958"
    )
    Options = L2InitOptions

    def round_config(self, server_round):
        return {"l2-init": self.options.weight} if server_round.message == "train" else {}

    def local_parts(self):
        from .l2_init_part import L2InitPart

        return [L2InitPart()]
