"""Random draws of nodes that can be repeated.

Every draw comes from a generator keyed by (seed, purpose, round, label) and is made over the profiles in the order of
their stable keys. Cohorts therefore do not depend on Flower's node ids, on the order of calls or on earlier draws, a
resumed run draws the same cohorts as an uninterrupted one, and the nodes that evaluate are drawn independently of the
nodes that train.
"""

from collections.abc import Collection, Sequence
from math import floor
from zlib import crc32

import numpy as np

from .profiles import Profile, in_key_order
from .round_records import RoundStep


def draw_generator(seed: int, purpose: RoundStep, server_round: int, label: str = "") -> np.random.Generator:
    """The random generator of one draw.

    Parameters
    ----------
    seed : int
        ≥ 0, the sampler's seed.
    purpose : "train" or "evaluate"
        What the nodes are drawn for.
    server_round : int
        ≥ 0.
    label : str
        The group that is drawn from; empty for a draw from all nodes.
    """
    # Python's hash of a string differs between processes; the checksum does not.
    words = [seed, server_round, crc32(label.encode())]
    # Training draws have no word for their purpose: this keeps the cohorts of published results.
    return np.random.default_rng(words if purpose == "train" else [*words, crc32(purpose.encode())])


def sizes_of(profiles: Sequence[Profile]) -> list[float]:
    """Numbers of examples; a node that reports none counts as the mean of those that do, or as 1 if none does."""
    known = [profile.num_examples for profile in profiles if profile.num_examples is not None]
    mean = sum(known) / len(known) if known and sum(known) else 1.0
    return [mean if profile.num_examples is None else profile.num_examples for profile in profiles]


def draw(profiles: Collection[Profile], count: int, generator: np.random.Generator) -> list[Profile]:
    """``count`` ≥ 0 nodes drawn without replacement, in the order of their keys; all nodes if there are fewer."""
    ordered = in_key_order(profiles)
    if count >= len(ordered):
        return ordered
    chosen = generator.choice(len(ordered), size=count, replace=False)
    return [ordered[index] for index in sorted(chosen.tolist())]


def rounded_share(fraction: float, total: int) -> int:
    """``fraction`` · ``total``, halves rounded up, and at least 1 if the fraction is above 0."""
    return max(floor(fraction * total + 0.5), 1 if fraction > 0 else 0)
