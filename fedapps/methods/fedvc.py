"""FedVC: nodes of any size take part as virtual clients of one size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.strategies import BaseStrategy, IndependentDraws, ProportionalToSize, Sampler, VirtualClients

from .base import Conflict, Method
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task

_DISTINCT = "set fedvc.draws = 'without-replacement'"


@dataclass(frozen=True)
class FedVcOptions:
    """The options of FedVC."""

    examples: int = option(
        256,
        "examples that each virtual client trains on, where steps are not given",
        minimum=1,
    )
    draws: str = option(
        "with-replacement",
        "how the nodes of a round are drawn: independently, so that a node can be drawn several times, or distinct",
        choices=["with-replacement", "without-replacement"],
    )


class FedVc(Method):
    """Nodes are drawn in proportion to their size, do equal work and have equal weights.

    Only draws with replacement give each node its share n_k / n of the draws, so they are the default. A node that is
    drawn k times in a round is k virtual clients: it gets k messages, trains k times on different examples, and its k
    replies count like those of k nodes.
    """

    name = "fedvc"
    line = "FedVC: nodes drawn in proportion to their size, equal work, equal weights"
    citation = (
        "Hsu, Qi and Brown, Federated Visual Classification with Real-World Data Distribution, ECCV 2020, "
        "https://arxiv.org/abs/2003.08082"
    )
    work = "equal for all"
    helps = "nodes of very different size"
    Options = FedVcOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        run = parts.run
        work = {"steps": run.training.steps} if run.training.steps else {"examples": self.options.examples}
        kind = IndependentDraws if self._repeats else ProportionalToSize
        sampler: Sampler = kind(run.training_nodes, run.seed)
        return parts.without("weighting").build(VirtualClients, sampler=sampler, **work)

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        longest, patience = task.longest_epoch, run.training.plateau_patience
        if 0 < longest < self.options.examples and not run.training.steps:
            yield (
                {"methods", "steps"},
                f"fedvc.examples = {self.options.examples}: must be at most {longest}, the most examples of an epoch "
                f"of task {run.task!r} (for vpr: raise vpr.queries-per-epoch, or set it to 0)",
            )
        if run.sampling == "poisson":
            yield (
                {"methods", "sampling"},
                f"sampling = 'poisson': must be 'fixed' with the method {self.name}, which draws its nodes in "
                "proportion to their size",
            )
        if patience and self._repeats:
            yield (
                {"methods", "plateau_patience"},
                f"plateau-patience = {patience}: must be 0 with the method {self.name}, because a node "
                f"that is drawn several times in a round has no single learning rate; or {_DISTINCT}",
            )
        if run.drop_nodes:
            yield (
                {"methods", "drop_nodes"},
                f"drop-nodes = true: must be false with the method {self.name}, which draws its nodes itself",
            )

    def privacy_conflict(self, dp: str) -> str:
        if dp == "local":
            return "it draws nodes by their numbers of examples, which do not leave them"
        if not self._repeats:
            return ""
        return (
            f"a node that is drawn several times in a round sends several updates, but epsilon counts one; {_DISTINCT}"
        )

    def robustness_conflict(self) -> str:
        if not self._repeats:
            return ""
        return (
            "a Byzantine node that states a large number of examples is drawn several times and can send most replies "
            f"of a round; {_DISTINCT}"
        )

    def compression_conflict(self) -> str:
        if not self._repeats:
            return ""
        return (
            f"a node that is drawn several times in a round has one compression error for several replies; {_DISTINCT}"
        )

    @property
    def _repeats(self) -> bool:
        return bool(self.options.draws == "with-replacement")

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.virtual_client import VirtualClient

        return [VirtualClient()]
