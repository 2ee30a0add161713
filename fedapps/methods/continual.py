"""Methods of continual learning: nodes that keep something of their earlier stages, under FedAvg, FedProx or alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.app import ArrayRecord

from fedapps.base.options import option
from fedapps.base.search import Around, Range
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role, Round, Scalar
from .local import EVERYTHING

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FederationOptions:
    """How the nodes of a method of continual learning come together."""

    mu: float = option(0.0, "weight µ of FedProx's proximal term; 0 = FedAvg", minimum=0)
    local: bool = option(False, "train every node alone, without a federation")


class ContinualMethod(Method):
    """A method with :class:`FederationOptions`, for nodes that keep something of their earlier stages."""

    needs_stages = True

    @property
    def role(self) -> Role:
        return "alone" if self.options.local else "federated"

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return EVERYTHING if self.options.local else PrivateParameters()

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if self.options.local and self.options.mu:
            yield {"methods"}, f"{self.name}: mu = {self.options.mu:g} must be 0 with local = true: nothing is shared"

    def proximal_config(self, server_round: Round) -> Mapping[str, Scalar]:
        """The key of the proximal term in the config of this round's messages, where there is one."""
        return {"proximal": self.options.mu} if self.options.mu and server_round.message == "train" else {}

    def proximal(self) -> "list[LocalPart]":
        """The proximal term, where there is one."""
        from fedapps.clients.parts.proximal import Proximal

        return [Proximal()] if self.options.mu else []


def estimator_option() -> Any:
    """The option ``estimator`` of the methods that use the Fisher information."""
    return option(
        "per-sample",
        "Fisher information from gradients of single examples, of batches, or of batches times the batch size",
        choices=["per-sample", "per-batch", "per-batch-scaled"],
    )


@dataclass(frozen=True)
class EwcOptions(FederationOptions):
    """The options of EWC."""

    lambda_: float = option(0.05, "weight λ of a node's earlier stages", minimum=0, search=Range(1e-4, 100, log=True))
    anchors: str = option(
        "separate",
        "earlier stages: each at its own solution, or all at the newest one (Online-EWC)",
        choices=["separate", "online"],
    )
    estimator: str = estimator_option()


class Ewc(ContinualMethod):
    """The Fisher information of earlier stages weighs how far each parameter may move.

    λ weighs the earlier stages against the training loss, so its scale is that of the loss. Where the loss is T times a
    negative log-likelihood, λ = T is Bayes' rule for an earlier stage with as many examples: λ = 1 for a cross-entropy,
    λ = 2σ² for a mean squared error with noise of variance σ² (about 0.06 for SocNav1, with σ² ≈ 0.03). A λ for squared
    gradients of the squared error itself must be multiplied by 4σ⁴ (about 0.0036 there).
    """

    name = "ewc"
    line = "EWC: nodes are held near their earlier stages by their Fisher information"
    citation = (
        "Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017, "
        "https://arxiv.org/abs/1612.00796"
    )
    keeps = "earlier solution, its Fisher"
    work = "+ Fisher estimate"
    helps = "stages; forgetting matters"
    aliases: ClassVar = {"fedavg-ewc": "ewc(mu=0)", "local-ewc": "ewc(local=true)", "fedprox-ewc": "ewc(mu=0.05)"}
    Options = EwcOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {
            **self.proximal_config(server_round),
            "ewc": self.options.lambda_,
            "ewc-anchors": self.options.anchors,
            "fisher-estimator": self.options.estimator,
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.earlier_stages import Ewc as EwcPart

        return [*self.proximal(), EwcPart()]


@dataclass(frozen=True)
class L2TransferOptions(FederationOptions):
    """The options of L2 transfer."""

    lambda_: float = option(
        0.05,
        "weight λ of the pull to the last stage",
        minimum=0,
        search=Range(1e-4, 100, log=True),
    )


class L2Transfer(ContinualMethod):
    """A penalty on the squared distance to the last stage's parameters."""

    name = "l2-transfer"
    line = "L2 transfer: nodes are held near the parameters of their last stage"
    citation = "Li and Hoiem, Learning without Forgetting, 2017, Section 4, https://arxiv.org/abs/1606.09282"
    keeps = "earlier solution"
    helps = "stages; a simple anchor"
    aliases: ClassVar = {"fedavg-l2t": "l2-transfer(mu=0)", "local-l2t": "l2-transfer(local=true)"}
    Options = L2TransferOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {**self.proximal_config(server_round), "l2-transfer": self.options.lambda_}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.earlier_stages import L2Transfer as L2TransferPart

        return [*self.proximal(), L2TransferPart()]


def weights_only(arrays: ArrayRecord) -> ArrayRecord:
    """The arrays of two or more dimensions; all others are specific to a stage and stay on the node."""
    return ArrayRecord({name: array for name, array in arrays.items() if len(array.shape) > 1})


@dataclass(frozen=True)
class ApdOptions(FederationOptions):
    """The options of APD."""

    l1: float = option(1e-4, "weight of the adaptive parameters' absolute values", minimum=0, search=Around(10))
    drift: float = option(1e-4, "weight of changes to earlier stages' parameters", minimum=0, search=Around(10))


class Apd(ContinualMethod):
    """Additive parameter decomposition; the shared base is averaged, or stays on the node."""

    name = "apd"
    line = "APD: each stage adds sparse parameters to shared ones"
    citation = (
        "Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition, ICLR 2020, "
        "https://arxiv.org/abs/1902.09432"
    )
    keeps = "parameters of its stages"
    helps = "stages with little forgetting"
    aliases: ClassVar = {"fedavg-apd": "apd(mu=0)", "local-apd": "apd(local=true)", "fedprox-apd": "apd(mu=0.05)"}
    Options = ApdOptions

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        return weights_only(arrays)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {
            **self.proximal_config(server_round),
            "decomposition": "apd",
            "l1-adaptive": self.options.l1,
            "drift": self.options.drift,
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.decomposition import Decomposition

        return [Decomposition(), *self.proximal()]
