"""Evaluation of the model of all clusters, beside that of the node's own cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from fedapps.strategies.wire import HIERARCHICAL_SHARED
from flwr.app import RecordDict

from .arrays import Arrays
from .local_part import LocalPart
from .messages import read_arrays


@dataclass(frozen=True)
class SharedEvaluation(LocalPart):
    """Evaluate the model that all clusters share, too, if the message brings it; its metrics start with ``shared.``.

    Parameters
    ----------
    shared : dict of arrays, or None
        The model of all clusters.
    """

    shared: Arrays | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(HIERARCHICAL_SHARED)
        return self if record is None else replace(self, shared=read_arrays(HIERARCHICAL_SHARED, record))

    def also_evaluated(self) -> Mapping[str, Arrays]:
        return {} if self.shared is None else {"shared": self.shared}
