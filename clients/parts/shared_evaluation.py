"""Evaluation of the global model beside the model of a node's cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from fedapps.clients.local_part import LocalPart
from fedapps.clients.named_arrays import Arrays
from fedapps.strategies.wire import HIERARCHICAL_SHARED
from flwr.app import RecordDict


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
        return self if record is None else replace(self, shared={name: a.numpy() for name, a in record.items()})

    def also_evaluated(self) -> Mapping[str, Arrays]:
        return {} if self.shared is None else {"shared": self.shared}
