"""L2 Init on a node."""

from dataclasses import dataclass

from fedapps.clients.local_part import LocalPart
from fedapps.clients.penalties import QuadraticPrior
from fedapps.tasks.options import option


@dataclass(frozen=True)
class L2InitPart(LocalPart):
    """Add ½ l2_init ‖θ − θ_0‖² to the loss; θ_0 is the initial model of the run."""

    l2_init: float = option(0.0, "the weight, from the key l2-init of the message", minimum=0)

    def prior(self, shared, model, node_round):
        initial = dict(node_round.initial_model().named_parameters())
        return QuadraticPrior.around({name: initial[name].detach() for name in shared}, self.l2_init)
