"""Reads published weights of backbones from a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import DataError

from .options import require_weights

_KEY = "vpr.weights"
#: Counters that no network uses.
_COUNTER = ".num_batches_tracked"
_NAMED = 3  # tensors that a line of an error lists


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a state dictionary of torch (``.pth``, ``.pt``), a ``.safetensors`` or an ``.npz`` file.

    Nothing in the file is executed.

    Raises
    ------
    DataError
        The file is missing or of another kind.
    """
    require_weights(path)
    readers = {".pth": _read_torch, ".pt": _read_torch, ".safetensors": _read_safetensors, ".npz": _read_npz}
    if path.suffix not in readers:
        raise DataError(f"{_KEY} = '{path}': unknown format {path.suffix!r}; expected {', '.join(readers)}")
    try:
        tensors = readers[path.suffix](path)
    except Exception as error:
        # Each library raises different errors for a file that is truncated or of another kind.
        raise DataError(f"{_KEY} = '{path}': cannot be read as a {path.suffix} file of tensors ({error})") from error
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"{_KEY} = '{path}': is not a dictionary of tensors; save the model's state_dict()")
    return dict(tensors)


def fitted(
    parts: Sequence[nn.Module], weights: Mapping[str, Tensor], *, unused: Sequence[str], renamed: Mapping[str, str]
) -> tuple[dict[str, Tensor], list[str]]:
    """Match weights to the modules of a network.

    Parameters
    ----------
    parts : sequence of Module
        The parts of one network.
    weights : mapping of str to Tensor
        The weights of a file.
    unused : sequence of str
        Prefixes of weights that these parts do not need.
    renamed : mapping of str to str
        Parts of names in files, and the network's names for them.

    Returns
    -------
    tuple of dict and list of str
        The weights by the network's names, and one line each for missing, unexpected and differently shaped tensors; no
        lines if the weights fit.
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
