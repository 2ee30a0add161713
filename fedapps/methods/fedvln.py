"""FedVLN: pre-exploration of unseen houses that shares the language encoder alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedapps.base.options import option, under_prefix
from fedapps.clients.arrays import Arrays, get_arrays, load_arrays, memory_of
from fedapps.clients.local_part import EVALUATED_MODEL, LocalPart, NodeRound, Prepared
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, PartialAggregation, StratifiedFraction
from fedapps.tasks.base import Task
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role, StrategyParts, own_draws

#: The patterns of the parameters that stay on the nodes, by what is shared.
PRIVATE = {"encoder": ("decoder.*", "critic.*"), "all": (), "none": ("*",)}


_PREFIX = "local."


@dataclass(frozen=True)
class FedVlnOptions:
    """The options of FedVLN's pre-exploration; the defaults are the paper's (Section 5.4)."""

    share: str = option(
        "encoder", "parameters that are averaged: the language encoder, all, or none", choices=tuple(PRIVATE)
    )
    seen_fraction: float = option(
        0.18, "fraction of the seen houses that train in a round, in place of fraction-train", minimum=0, maximum=1
    )
    unseen_fraction: float = option(
        0.6, "fraction of the unseen houses that train in a round, in place of fraction-train", minimum=0, maximum=1
    )


class FedVln(Method):
    """Algorithm 1 of the paper. Each house is evaluated with its own model as its last training left it."""

    name = "fedvln"
    summary = "FedVLN: pre-exploration of unseen houses with a shared language encoder"
    citation = (
        "Zhou and Wang, FedVLN: Privacy-preserving Federated Vision-and-Language Navigation, ECCV 2022, Section 4.2, "
        "https://arxiv.org/abs/2203.14936"
    )
    good_for = "new houses without instructions"
    aliases: ClassVar = {
        "fed-lan-seen": "",
        "fed-lan": "fedvln(seen-fraction=0)",
        "fed-full": "fedvln(share=all,seen-fraction=0)",
        "env-based": "fedvln(share=none,seen-fraction=0)",
    }
    task = "vln"
    Options = FedVlnOptions

    @property
    def role(self) -> Role:
        return "alone" if self.options.share == "none" else "federated"

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(PRIVATE[self.options.share])

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        # Algorithm 1, line 4: r_1 n seen and r_2 m unseen environments
        fractions = {"true": self.options.seen_fraction, "false": self.options.unseen_fraction}
        sampler = StratifiedFraction("seen", fractions, seed=parts.run.seed)
        return parts.build(PartialAggregation if self.options.share == "encoder" else BaseStrategy, sampler=sampler)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        options = self.options
        stage, houses = task.options.stage, task.options.houses
        if stage != "pre-exploration":
            yield (
                {"methods", "task"},
                f"vln.stage = {stage!r}: must be 'pre-exploration' with the method {self.name}; use fedavg or "
                "centralized in the other stages",
            )
        fractions = {"seen": options.seen_fraction, "unseen": options.unseen_fraction}
        if not any(fraction for kind, fraction in fractions.items() if houses in (kind, "all")):
            yield (
                {"methods", "task"},
                f"fedvln.seen-fraction = {options.seen_fraction:g}, fedvln.unseen-fraction = "
                f"{options.unseen_fraction:g}: no house trains with vln.houses = {houses!r}; raise a fraction or "
                "change vln.houses",
            )
        yield from own_draws(run, f"the method {self.name}, which draws its nodes itself")

    def privacy_conflict(self, dp: str) -> str:
        if dp.startswith("central"):
            return (
                "the method draws fractions of the seen and of the unseen houses, and central privacy divides by an "
                "expected number of nodes, which follows from fraction-train"
            )
        return ""

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedVlnPart()]


@dataclass(frozen=True)
class FedVlnPart(LocalPart):
    """Evaluate the node's model as its last training left it, also the shared parameters.

    The node remembers the shared parameters that it trained, and evaluates with them in place of those that it
    receives. A node that was not drawn for some rounds is therefore evaluated with its old model, and a node that never
    trained with the received parameters. Training starts from the received parameters, as without this part.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL})

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        trained = get_arrays(model, node_round.received)
        return {_PREFIX + name: array for name, array in trained.items()}

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Put the shared parameters that the node trained last into ``model``."""
        load_arrays(model, under_prefix(_PREFIX, memory_of(node_round.kept)))
        return Prepared()
