"""Padding of batches to equal shapes."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from .node_data import Batch


def zero_padded(batches: Sequence[Batch]) -> list[Batch]:
    """Pad the tensors of batches with zeros at their ends to the largest size of each dimension.

    Parameters
    ----------
    batches : sequence of mappings of names to tensors
        With the same names and numbers of dimensions.
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
