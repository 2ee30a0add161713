"""Arrays on a node that change only if the server counts the reply (:mod:`fedapps.strategies.nodes.counted`)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from fedapps.strategies.wire import COUNTED, COUNTED_ROUND
from flwr.app import ConfigRecord, RecordDict

from .arrays import Arrays


@dataclass(frozen=True)
class Counted:
    """Arrays in the memory of a node, as its last round left them and as they were before.

    Parameters
    ----------
    name : str
        ``NAME.<array>`` are the arrays after the last round, ``NAME-before.<array>`` those before it, and
        ``NAME-round`` is its number.
    """

    name: str

    def start(self, memory: Mapping[str, np.ndarray], counted: int | None) -> Arrays:
        """The arrays that a round starts from; empty before the first.

        Parameters
        ----------
        memory : mapping
            The node's memory.
        counted : int or None
            The round of the last reply of the node that the server has counted, 0 for none; ``None`` if the message
            does not say so, and every reply counts.
        """
        last = int(memory.get(f"{self.name}-round", 0))
        prefix = f"{self.name}." if counted is None or counted >= last else f"{self.name}-before."
        return {name.removeprefix(prefix): array for name, array in memory.items() if name.startswith(prefix)}

    def after(self, server_round: int, before: Arrays, trained: Arrays) -> Arrays:
        """What to remember of a round that started from ``before``, zeros if empty, and ended with ``trained``."""
        started = {name: before.get(name, np.zeros_like(array)) for name, array in trained.items()}
        return {
            **{f"{self.name}.{name}": array for name, array in trained.items()},
            **{f"{self.name}-before.{name}": array for name, array in started.items()},
            f"{self.name}-round": np.array(server_round),
        }

    def of(self, memory: Mapping[str, np.ndarray]) -> Arrays:
        """What :meth:`after` has put into a memory."""
        starts = (f"{self.name}.", f"{self.name}-before.", f"{self.name}-round")
        return {name: array for name, array in memory.items() if name.startswith(starts)}


def counted_round(content: RecordDict) -> int | None:
    """The round in the record ``counted`` of a TRAIN message; ``None`` without the record.

    Raises
    ------
    ValueError
        It is no integer of at least 0.
    """
    record = content.get(COUNTED)
    if not isinstance(record, ConfigRecord):
        return None
    counted = record.get(COUNTED_ROUND)
    if not isinstance(counted, int) or isinstance(counted, bool) or counted < 0:
        raise ValueError(f"{COUNTED} {COUNTED_ROUND} = {counted!r}: must be an integer of at least 0")
    return counted
