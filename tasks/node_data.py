"""The data of a node, as a task gives them to training and evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedapps.base.errors import DataError

from .profiles import NodeProfile
from .tensors import Batch


@dataclass(frozen=True)
class NodeData:
    """The data of one node for a task. It never leaves the node.

    Attributes
    ----------
    key : str
        The node's key, the same in every run.
    splits : mapping of str to Batch
        ``"train"``, ``"validation"`` and ``"test"``, as far as they exist. The tensors of a split share their first
        dimension, the examples. In a task with several stages these are the splits of the first stage.
    groups : mapping of str to str
        Labels of the node for sampling and reports, for example its city.
    extra : mapping of str to object
        Whatever else the task needs, for example the initial states of simulated sessions.
    stages : sequence of mappings of str to Batch
        The splits of each stage in a task of continual learning, otherwise empty.
    """

    key: str
    splits: Mapping[str, Batch]
    groups: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Batch]] = ()

    def at(self, stage: int) -> "NodeData":
        """Return the data of one stage, counted from 0.

        Raises
        ------
        DataError
            The node does not have this stage.
        """
        if not 0 <= stage < len(self.stages):
            raise DataError(f"node {self.key} has {len(self.stages)} stages of data: there is no stage {stage + 1}")
        return replace(self, splits=self.stages[stage], stages=())

    def count(self, split: str) -> int:
        """Return the number of examples of a split, 0 if the split does not exist."""
        tensors = self.splits.get(split)
        return 0 if not tensors else len(next(iter(tensors.values())))

    def profile(self) -> NodeProfile:
        """Return the profile of the node: its key, its number of training examples and its labels."""
        return NodeProfile(self.key, self.count("train"), self.groups)
