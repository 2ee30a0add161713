"""FedVC: nodes of any size take part as virtual clients of one size.

Hsu, Qi and Brown, Federated Visual Classification with Real-World Data Distribution, ECCV 2020, Section 4.2,
https://arxiv.org/abs/2003.08082. The server's strategy ``VirtualClients`` sends the config keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import option
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.settings import with_config
from fedapps.clients.training import Phase
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, IndependentDraws, ProportionalToSize, Sampler, VirtualClients
from fedapps.tasks.base import NodeData, Task

from .base import Conflict, Method, StrategyParts, own_draws

_DISTINCT = "set fedvc.draws = 'without-replacement'"


@dataclass(frozen=True)
class FedVcOptions:
    """The options of FedVC."""

    examples: int = option(256, "examples that each virtual client trains on, where steps are not given", minimum=1)
    draws: str = option(
        "with-replacement",
        "how the nodes of a round are drawn: independently, so that a node can be drawn several times, or distinct, "
        "which draws large nodes less often than their size says",
        choices=["with-replacement", "without-replacement"],
    )


class FedVc(Method):
    """Nodes are drawn in proportion to their size, do equal work and have equal weights.

    Only draws with replacement give each node its share n_k / n of the draws, so they are the default. A node that is
    drawn k times in a round is k virtual clients: it gets k messages, trains k times on different examples, and its k
    replies count like those of k nodes.
    """

    name = "fedvc"
    summary = "FedVC: nodes drawn in proportion to their size, equal work, equal weights"
    citation = (
        "Hsu, Qi and Brown, Federated Visual Classification with Real-World Data Distribution, ECCV 2020, "
        "https://arxiv.org/abs/2003.08082"
    )
    work = "equal for all"
    good_for = "nodes of very different size"
    Options = FedVcOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        run = parts.run
        work = {"steps": run.training.steps} if run.training.steps else {"examples": self.options.examples}
        kind = IndependentDraws if self._repeats else ProportionalToSize
        sampler: Sampler = kind(run.training_nodes, run.seed)
        return parts.without("weighting").build(VirtualClients, sampler=sampler, **work)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        longest, patience = task.longest_epoch, run.training.plateau_patience
        if 0 < longest < self.options.examples and not run.training.steps:
            yield (
                {"methods", "steps"},
                f"fedvc.examples = {self.options.examples}: must be at most {longest}, the most examples of an epoch "
                f"of task {run.task!r} (for vpr: raise vpr.queries-per-epoch, or set it to 0)",
            )
        yield from own_draws(run, f"the method {self.name}, which draws its nodes in proportion to their size")
        if patience and self._repeats:
            yield (
                {"methods", "plateau_patience"},
                f"plateau-patience = {patience}: must be 0 with the method {self.name}, because a node "
                f"that is drawn several times in a round has no single learning rate; or {_DISTINCT}",
            )

    def privacy_conflict(self, dp: str) -> str:
        if dp == "local":
            return "it draws nodes by their numbers of examples, which do not leave them"
        if not self._repeats:
            return ""
        return (
            f"a node that is drawn several times in a round sends several updates, but epsilon counts one; {_DISTINCT}"
        )

    def secrecy_conflict(self) -> str:
        return self.privacy_conflict("local")

    def robustness_conflict(self) -> str:
        return "Byzantine nodes that state large numbers of examples are drawn in every round and can be most of it"

    def compression_conflict(self) -> str:
        if not self._repeats:
            return ""
        return (
            f"a node that is drawn several times in a round has one compression error for several replies; {_DISTINCT}"
        )

    @property
    def _repeats(self) -> bool:
        return bool(self.options.draws == "with-replacement")

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedVcPart()]


@dataclass(frozen=True)
class FedVcPart(LocalPart):
    """Draw the examples of the round. The fields are keys of the message's config, which the strategy sets.

    Parameters
    ----------
    virtual_examples : int
        Train one epoch on this many examples, drawn without replacement if the node has as many, otherwise with
        replacement; 0 = train on all examples.
    virtual_draw : int
        Counts the virtual clients that one node is in a round, from 0; each draws different examples.
    """

    virtual_examples: int = option(0, "examples to train on", minimum=0, maximum=10**8)
    virtual_draw: int = option(0, "which virtual client of the round", minimum=0)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return with_config(self, config)

    def seed_labels(self) -> tuple[int | str, ...]:
        return (self.virtual_draw,) if self.virtual_draw else ()

    def draw(self, data: NodeData, node_round: NodeRound) -> NodeData:
        return of_virtual_client(data, self.virtual_examples)

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        if not self.virtual_examples:
            return plan
        joint = plan[-1]
        return [*plan[:-1], replace(joint, training=replace(joint.training, epochs=1))]


def of_virtual_client(data: NodeData, count: int) -> NodeData:
    """Draw ``count`` training examples, with replacement only if the node has fewer; 0 = all examples, as they are."""
    held = data.count("train")
    if count == 0 or held == 0:
        return data
    rows = torch.randperm(held)[:count] if count <= held else torch.randint(held, (count,))
    train = {name: tensor[rows] for name, tensor in data.splits["train"].items()}
    return replace(data, splits={**data.splits, "train": train})
