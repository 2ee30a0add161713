"""Published weights of backbones, from a file on disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import DataError

from .options import require_weights

_KEY = "vpr.weights"
#: Counters that nothing uses.
_COUNTER = ".num_batches_tracked"
_NAMED = 3  # tensors that a line of an error lists


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors in a state dictionary of torch (``.pth``, ``.pt``), a ``.safetensors`` or an ``.npz`` file.

    Nothing in the file is executed. Raises :class:`DataError` when it is missing or is something else.
    """
    require_weights(path)
    readers = {".pth": _read_torch, ".pt": _read_torch, ".safetensors": _read_safetensors, ".npz": _read_npz}
    if path.suffix not in readers:
        raise DataError(f"{_KEY} = '{path}': weights are read from {', '.join(readers)}, not from {path.suffix!r}")
    try:
        tensors = readers[path.suffix](path)
    except Exception as error:
        # Each library has errors of its own for a file that is cut short or of another kind.
        raise DataError(f"{_KEY} = '{path}': cannot be read as a {path.suffix} file of tensors ({error})") from error
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"{_KEY} = '{path}': is not a dictionary of tensors; save the model's state_dict()")
    return dict(tensors)


def fitted(
    parts: Sequence[nn.Module], weights: Mapping[str, Tensor], *, unused: Sequence[str], renamed: Mapping[str, str]
) -> tuple[dict[str, Tensor], list[str]]:
    """``weights`` by the names that the modules ``parts`` of one network have together, and why they do not fit.

    ``unused`` are prefixes of names that the network may have beyond these parts, ``renamed`` parts of names that
    weights may have in place of the network's. Of what is missing, unexpected or of another shape there is a line
    each, with the first by name; no line where the weights fit.
    """
    wanted: dict[str, Tensor] = {}
    for part in parts:
        wanted |= part.state_dict()
    given = {
        name: tensor
        for name, tensor in ((_renamed(name, renamed), tensor) for name, tensor in weights.items())
        if name in wanted or not (name.startswith(tuple(unused)) or name.endswith(_COUNTER))
    }
    reshaped = [name for name, tensor in given.items() if name in wanted and tensor.shape != wanted[name].shape]
    problems = {
        "missing": [_named(name, tensor) for name, tensor in wanted.items() if name not in given],
        "unexpected": [_named(name, tensor) for name, tensor in given.items() if name not in wanted],
        "of another shape": [f"{_named(name, given[name])}, not {tuple(wanted[name].shape)}" for name in reshaped],
    }
    return given, [f"{kind}: {_short(names)}" for kind, names in problems.items() if names]


def _named(name: str, tensor: Tensor) -> str:
    return f"{name} {tuple(tensor.shape)}"


def _short(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return "; ".join([*names[:_NAMED], *more])


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    for given, own in renamed.items():
        name = name.replace(given, own)
    return name


def _read_torch(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
