"""Batches of tensors, padded to equal shapes; and a hash that tells tensors apart."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor
from torch.nn.functional import pad

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
