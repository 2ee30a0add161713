"""The data of a node, as a task gives them to training and evaluation, and batches of tensors."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.nn.functional import pad

from fedapps.base.errors import DataError

from .profiles import NodeProfile

#: The tensors of a batch by name; they share their first dimension, the examples.
Batch = Mapping[str, Tensor]


def zero_padded(batches: Sequence[Batch]) -> list[Batch]:
    """Pad the tensors of batches with zeros at their ends to the largest size of each dimension.

    Parameters
    ----------
    batches : sequence of mappings of names to tensors
        With the same names and numbers of dimensions.

    Returns
    -------
    list of dict of str to Tensor
        One for each batch, all of the same shapes by name.
    """
    padded: list[dict[str, Tensor]] = [{} for _ in batches]
    for name in batches[0]:
        tensors = [batch[name] for batch in batches]
        largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
        for own, tensor in zip(padded, tensors, strict=True):
            missing = [most - size for most, size in zip(largest, tensor.shape, strict=True)]
            # `pad` expects the last dimension first, each with the padding before and after.
            own[name] = pad(tensor, [side for size in reversed(missing) for side in (0, size)])
    return list(padded)


def fingerprint(tensors: Iterable[Tensor]) -> bytes:
    """Return a hash of the bits, shapes, types and kinds of device of tensors, 16 bytes.

    It tells models with other weights apart, as the key of what was computed with them.

    Parameters
    ----------
    tensors : iterable of Tensor
        Such as the values of a ``state_dict``; their order counts, their names do not.
    """
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.device.type} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()


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
