"""VirtualClients (FedVC): nodes of different sizes take part as virtual clients of equal size.

Hsu, Qi and Brown, Federated Visual Classification with Real-World Data Distribution, ECCV 2020
(https://arxiv.org/abs/2003.08082), the algorithm FedVC: a node with many examples stands for several virtual clients, a
node with few for a fraction of one. The data are not split; larger nodes are drawn more often.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from .. import wire
from ..arrays import Arrays
from ..base import BaseStrategy
from ..checks import require_integer
from ..privacy import CentralPrivacy
from ..profiles import Profile, in_key_order
from ..records import RoundStep
from ..samplers import ProportionalToSize, Sampler, draw_generator, sizes_of


class VirtualClients(BaseStrategy):
    """FedAvg over nodes drawn in proportion to their size, with equal work and equal weights.

    The weighting is uniform, because weights by ``num-examples`` would count sizes twice. If all nodes have the same
    size and take part, this is FedAvg, bit for bit.

    The config of a TRAIN message states the work of the node; a node that ignores it trains as in FedAvg:

    ``virtual-examples`` : int
        Train on exactly this number of examples in one pass. Draw them without replacement, or with replacement if the
        node has fewer.
    ``steps`` : int
        Instead, take exactly this number of optimizer steps, with as many passes over the data as needed.
    ``virtual-draw`` : int
        Index of the virtual client among those of the node in this round, ≥ 0. A node that was drawn several times gets
        as many messages and should draw different examples for each of them. A node of Flower handles one message after
        the other, so ``timeout`` must allow for several trainings.

    Parameters
    ----------
    sampler : Sampler
        :class:`IndependentDraws` draws virtual clients independently and in exact proportion to the sizes of their
        nodes, so a node can be several of them. ``ProportionalToSize(count)`` draws distinct nodes: large nodes are
        drawn more often than small ones, but less than in proportion to their size. Dutto et al. (FedVPR, section 5.4)
        do not state which of the two they use.
    examples, steps : int
        The work of a virtual client: one of the two is at least 1, the other 0. ``examples`` is N_VC in the paper.
    **base
        As in :class:`BaseStrategy`. ``weighting`` is "uniform".

    Raises
    ------
    ValueError
        A parameter is out of range or excluded by another.
    """

    flower_gaps: ClassVar[Mapping[str, str]] = {
        "fraction_train": "the count of its sampler is the number of virtual clients of a round",
        "min_train_nodes": "the count of its sampler is the number of virtual clients of a round",
        "weighted_by_key": "virtual clients all have equal weights, remove it",
    }

    equal_weights: ClassVar[str] = "virtual clients all have equal weights"

    def __init__(self, *, sampler: Sampler, examples: int = 0, steps: int = 0, **base: Any) -> None:
        for name, value in (("examples", examples), ("steps", steps)):
            require_integer(name, value, least=0)
        if (examples > 0) == (steps > 0):
            raise ValueError(f"examples = {examples}, steps = {steps}: exactly one of them must be above 0")
        super().__init__(sampler=sampler, **base)
        self.example_limits = replace(self.example_limits, drawn=examples)
        if isinstance(sampler, IndependentDraws):
            self._check_distinct()
        self._drawn: Counter[int] = Counter()  # messages of the round by node
        self.work = {wire.VIRTUAL_EXAMPLES: examples} if examples else {wire.VIRTUAL_STEPS: steps}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        """Begin to count the virtual clients of each node.

        Raises
        ------
        ValueError
            The config states other work than the parameters of the strategy.
        """
        for key, value in self.work.items():
            if config.get(key, value) != value:
                raise ValueError(f"train_config has {key} = {config[key]!r}, but the strategy sets it to {value}")
        self._drawn.clear()

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        """One message per virtual client states its work."""
        if phase == "train":
            config = content.config_records[wire.CONFIG]
            config.update({**self.work, wire.VIRTUAL_DRAW: self._drawn[profile.node_id]})
            self._drawn[profile.node_id] += 1

    def _check_distinct(self) -> None:
        """Raise ``ValueError`` for a part that bounds what one node changes by one reply of it."""
        distinct = "needs a sampler of distinct nodes such as ProportionalToSize"
        if isinstance(self.privacy, CentralPrivacy):
            raise ValueError(
                f"privacy = {self.privacy}: {distinct}; a node that is drawn twice changes the sum by twice the "
                "clipping norm"
            )
        if self.compression:
            raise ValueError(
                f"compression = {self.compression}: {distinct}; a node that is drawn twice has one compression error "
                "for two replies"
            )

    def round_info(self) -> dict[str, Any]:
        """The numbers of virtual clients and of nodes in the round, and the work of a virtual client."""
        trained = [node.node for node in self.report.nodes if node.phase == "train"]
        return {"virtual-clients": len(trained), "nodes": len(set(trained)), **self.work}


@dataclass(frozen=True)
class IndependentDraws(ProportionalToSize):
    """Nodes drawn with replacement, with probabilities n_k / Σ n proportional to their numbers of examples.

    Unlike other samplers, this one can return a node several times, in consecutive positions. It is for strategies that
    send one message per draw, such as :class:`VirtualClients`. The expected share of a node in the draws is exactly its
    share of the examples. Unknown sizes and sizes of 0 are treated as in
    :class:`~fedapps.strategies.samplers.ProportionalToSize`.

    Parameters
    ----------
    count : int
        ≥ 1, the number of draws in each round.
    seed : int
        ≥ 0.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        ordered = in_key_order(profiles)
        sizes = np.array(sizes_of(ordered), np.float64)
        if not sizes.sum():
            return []
        generator = draw_generator(self.seed, purpose, server_round)
        drawn = generator.choice(len(ordered), size=self.count, p=sizes / sizes.sum())
        return [ordered[index] for index in sorted(drawn.tolist())]
