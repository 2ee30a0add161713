"""VirtualClients (FedVC): nodes of any size take part as clients of one size.

Hsu, Qi and Brown, Federated Visual Classification with Real-World Data Distribution, ECCV 2020
(https://arxiv.org/abs/2003.08082), the algorithm FedVC: a node with many examples is as good as several clients, one
with few as good as a part of one. Nothing is split: the node is drawn the more often, or the less.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from .base import BaseStrategy
from .draws import draw_generator, sizes_of
from .privacy import CentralPrivacy
from .profiles import Profile, in_key_order
from .round_records import RoundStep
from .samplers import ProportionalToSize, Sampler

EXAMPLES = "virtual-examples"
STEPS = "steps"
DRAW = "virtual-draw"


class VirtualClients(BaseStrategy):
    """FedAvg over nodes drawn in proportion to their size, which all do equal work and count alike.

    Weights by ``num-examples`` would count sizes twice, so the weighting is uniform. With nodes of one size, all
    of which take part, this is FedAvg, bit for bit.

    What a node is asked for stands in the config of its TRAIN message, and a node that ignores it trains as in FedAvg:

    ``virtual-examples`` : int
        Train on exactly so many examples: drawn without replacement where the node has as many, with replacement
        where it has fewer; in one pass, in batches as always.
    ``steps`` : int
        Or take exactly so many optimizer steps, going through the data as often as it takes.
    ``virtual-draw`` : int
        0, or counting up where a node was drawn more than once in a round: it then gets as many messages, each
        a virtual client, and should draw different examples for each.

    Parameters
    ----------
    sampler : Sampler
        ``ProportionalToSize(count)`` draws distinct nodes: the larger ones come more often, but less than in proportion
        where the cohort is a good part of the nodes. :class:`IndependentDraws` draws each virtual client for itself,
        in exact proportion, and a node may be several of them. Dutto et al. (FedVPR, section 5.4) leave open which.
    examples, steps : int
        One of the two, at least 1, the other 0. ``examples`` is the N_VC of the paper.
    **base
        As in :class:`BaseStrategy`, but ``weighting``.
    """

    def __init__(self, *, sampler: Sampler, examples: int = 0, steps: int = 0, **base: Any) -> None:
        if "weighting" in base:
            raise ValueError(f"weighting = {base['weighting']!r}: virtual clients all count alike, leave it out")
        for name, value in (("examples", examples), ("steps", steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} = {value!r}: must be an integer of at least 1, or 0 if the other is given")
        if (examples > 0) == (steps > 0):
            raise ValueError(f"examples = {examples}, steps = {steps}: exactly one of them must be above 0")
        super().__init__(sampler=sampler, weighting="uniform", **base)
        self.sizes = replace(self.sizes, drawn=examples)
        if isinstance(self.privacy, CentralPrivacy) and isinstance(sampler, IndependentDraws):
            raise ValueError(
                f"privacy = {self.privacy}: needs a sampler of distinct nodes such as ProportionalToSize; a node that "
                "is drawn twice moves the mean by twice the clipping norm"
            )
        self.work = {EXAMPLES: examples} if examples else {STEPS: steps}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One TRAIN message per virtual client. Raises ``ValueError`` if the config asks for other work."""
        for key, value in self.work.items():
            if config.get(key, value) != value:
                raise ValueError(f"train_config has {key} = {config[key]!r}, but virtual clients all do {value}")
        messages = super().configure_train(server_round, arrays, ConfigRecord({**config, **self.work}), grid)
        drawn: dict[int, int] = {}
        for message in messages:
            node = message.metadata.dst_node_id
            message.content.config_records["config"][DRAW] = drawn.setdefault(node, 0)
            drawn[node] += 1
        return messages

    def round_info(self) -> dict[str, Any]:
        """How many virtual clients the nodes of the round were, and what each of them did."""
        trained = [node.node for node in self.report.nodes if node.phase == "train"]
        return {"virtual-clients": len(trained), "nodes": len(set(trained)), **self.work}


@dataclass(frozen=True)
class IndependentDraws(Sampler):
    """Nodes drawn with replacement, each time with a probability n_k / Σ n proportional to their examples.

    Unlike other samplers it may give a node more than once, next to each other, so it is for strategies that send
    a message per draw, as :class:`VirtualClients` does. The expected share of a node is exactly its share of the
    examples. Unknown sizes and sizes of 0 are treated as by :class:`~strategies.samplers.ProportionalToSize`.

    Parameters
    ----------
    count : int
        ≥ 1 draws in each round.
    seed : int
        ≥ 0.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        ProportionalToSize(self.count, self.seed)  # refuses what is out of range

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        ordered = in_key_order(profiles)
        sizes = np.array(sizes_of(ordered), np.float64)
        if not sizes.sum():
            return []
        generator = draw_generator(self.seed, purpose, server_round)
        drawn = generator.choice(len(ordered), size=self.count, p=sizes / sizes.sum())
        return [ordered[index] for index in sorted(drawn.tolist())]
