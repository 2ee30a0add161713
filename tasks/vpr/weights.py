"""Reads published weights of backbones from a file, or by their name in torchvision."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from fedapps.tasks.base import DataError
from safetensors.torch import load_file
from torch import Tensor, nn

from .options import require_weights

_KEY = "vpr.weights"
#: The mean of ImageNet's images, in RGB, from 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
#: Counters that no network uses.
_COUNTER = ".num_batches_tracked"
_WRAPPED = "module."  # before the names of a model trained in torch's DataParallel, which are those without it
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
    except UnpicklingError as error:
        raise DataError(
            f"{_KEY} = '{path}': cannot be read as a {path.suffix} file of tensors; it is damaged, or has a whole "
            "model, whose code is not run: save the model's state_dict()"
        ) from error
    except Exception as error:
        # Each library raises different errors for a file that is truncated or of another kind.
        raise DataError(f"{_KEY} = '{path}': cannot be read as a {path.suffix} file of tensors ({error})") from error
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"{_KEY} = '{path}': is not a dictionary of tensors; save the model's state_dict()")
    wrapped = all(name.startswith(_WRAPPED) for name in tensors)
    return {name.removeprefix(_WRAPPED): tensor for name, tensor in tensors.items()} if wrapped else dict(tensors)


def published_weights(name: str, network: str) -> dict[str, Tensor]:
    """Return weights that torchvision publishes, from torch's cache or else from the internet.

    Parameters
    ----------
    name : str
        Their name in torchvision, such as ``ResNet18_Weights.IMAGENET1K_V1``.
    network : str
        The classifier that needs them, such as ``resnet18``.

    Raises
    ------
    DataError
        The classifier has no such weights, or they cannot be downloaded.
    """
    from torchvision import models

    known = {str(weights): weights for weights in models.get_model_weights(network)}
    if name not in known:
        raise DataError(f"{_KEY} = {name!r}: torchvision publishes for {network} {', '.join(known)}; name one of them")
    weights = known[name]
    if (mean := tuple(weights.transforms().mean)) != IMAGENET_MEAN:
        raise DataError(
            f"{_KEY} = {name!r}: trained on images less {mean}, not ImageNet's mean {IMAGENET_MEAN}; choose others"
        )
    cache = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    try:
        tensors: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except Exception as error:
        # The network, the server and the file each raise errors of their own.
        raise DataError(
            f"{_KEY} = {name!r}: cannot be read from {cache}, nor downloaded from {weights.url} ({error}); copy the "
            "file there on every machine, or set vpr.weights to its path"
        ) from error
    return tensors


def fitted(
    parts: Sequence[nn.Module],
    weights: Mapping[str, Tensor],
    *,
    known: Collection[str],
    renamed: Callable[[str], str],
) -> tuple[dict[str, Tensor], list[str]]:
    """Match weights to the modules of a network.

    Parameters
    ----------
    parts : sequence of Module
        The parts of one network.
    weights : mapping of str to Tensor
        The weights of a file.
    known : collection of str
        The names in the whole network, of which these parts need some.
    renamed : callable
        Returns the network's name for a name in a file.

    Returns
    -------
    tuple of dict and list of str
        The weights by the network's names, and one line each for missing, unexpected and differently shaped tensors and
        those with numbers that are not finite; no lines if the weights fit.
    """
    wanted: dict[str, Tensor] = {}
    for part in parts:
        wanted |= part.state_dict()
    by_own_name = {
        name: tensor
        for name, tensor in ((renamed(name), tensor) for name, tensor in weights.items())
        if name in wanted or not (name in known or name.endswith(_COUNTER))
    }
    reshaped = [name for name, tensor in by_own_name.items() if name in wanted and tensor.shape != wanted[name].shape]
    infinite = [name for name, tensor in by_own_name.items() if name in wanted and not tensor.isfinite().all()]
    problems = {
        "missing": [_named(name, tensor) for name, tensor in wanted.items() if name not in by_own_name],
        "unexpected": [_named(name, tensor) for name, tensor in by_own_name.items() if name not in wanted],
        "of another shape": [
            f"{_named(name, by_own_name[name])}, not {tuple(wanted[name].shape)}" for name in reshaped
        ],
        "not finite": infinite,
    }
    return by_own_name, [f"{kind}: {_short(names)}" for kind, names in problems.items() if names]


def _named(name: str, tensor: Tensor) -> str:
    return f"{name} {tuple(tensor.shape)}"


def _short(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return "; ".join([*names[:_NAMED], *more])


def _read_torch(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    return load_file(path)


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
