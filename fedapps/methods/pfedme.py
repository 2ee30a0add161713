"""pFedMe: each node's personal model is the shared one after a regularised step towards its data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range

from .base import Conflict, Method, Round, Scalar, required

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class PFedMeOptions:
    """The options of pFedMe."""

    lambda_: float = option(
        15.0,
        "weight λ of the distance of a personal model θ to the node's copy x of the shared one; a step moves x by "
        "learning-rate * λ of the way to θ",
        above=0,
        search=Range(1, 15, log=True),
    )
    personal_steps: int = option(5, "steps K of θ on each batch", minimum=1)
    personal_learning_rate: float = option(
        0.0,
        "learning rate of the steps of θ; 0 = half of learning-rate",
        minimum=0,
        search=Range(0.001, 0.1, log=True),
    )


class PFedMe(Method):
    """Nodes descend the Moreau envelopes of their losses; they keep the minimisers, their personal models.

    The defaults λ = 15 and K = 5 come from the authors' runs on MNIST (https://github.com/CharlieDinh/pFedMe). These
    have a learning rate of 0.005 for x and of 0.09 or 0.1 for θ. Here, the default rate of θ is half of the run's
    learning rate, because a fixed rate diverges on tasks with steeper losses.
    """

    name = "pfedme"
    line = "pFedMe: each node fits a personal model near its copy of the shared one, and moves the copy towards it"
    citation = (
        "T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, "
        "https://arxiv.org/abs/2006.08848"
    )
    keeps = "personal model"
    work = "5 gradients a step"
    helps = "uneven data, personal evaluation"
    Options = PFedMeOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {
            "pfedme-lambda": self.options.lambda_,
            "pfedme-steps": self.options.personal_steps,
            "pfedme-learning-rate": self.options.personal_learning_rate,
        }

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        why = "its steps are plain gradient steps, on x with learning-rate, on θ with personal-learning-rate"
        yield from required(run, self.name, why, optimizer="sgd", momentum=0.0, clip_norm=0.0)
        for key, rate, fields in (
            ("learning-rate", run.training.learning_rate, {"learning_rate", "methods"}),
            (f"{self.name}.personal-learning-rate", self.options.personal_learning_rate, {"methods"}),
        ):
            if rate * self.options.lambda_ >= 2:
                yield (
                    fields,
                    f"{key} = {rate:g} and {self.name}.lambda = {self.options.lambda_:g}: their product must be below "
                    "2, or each step goes further beyond its end than it started from: lower one of them",
                )

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.moreau_envelopes import MoreauEnvelopes

        return [MoreauEnvelopes()]
