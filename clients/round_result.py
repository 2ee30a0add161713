"""What a node replies to the server after a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedapps.tasks.base import Metrics
from flwr.app import ArrayRecord

from .named_arrays import Arrays


@dataclass(frozen=True)
class RoundResult:
    """The reply to the server.

    Parameters
    ----------
    arrays : dict of arrays
        The received names after training; empty after an evaluation.
    num_examples : int
        The weight of the node in averages.
    metrics : dict
    records : mapping of names to ArrayRecords
        The records of the local parts.
    """

    arrays: Arrays
    num_examples: int
    metrics: Metrics
    records: Mapping[str, ArrayRecord] = field(default_factory=dict)
