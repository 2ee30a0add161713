"""Networks that describe a place by one vector (FedVPR, Section 5.2 and Appendix B).

The names of frozen parameters begin with ``frozen.``, those of trained ones with ``trained.``, ``pooling.`` and
``projection.``. Only the latter are shared if all nodes have the same weights for the former. :func:`check_network`
checks, before training, that weights and image size fit the network. Weights are read from a file, or by their name in
torchvision.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Literal, Self, cast

import numpy as np
import torch
from fedapps.tasks.base import DataError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from .backbones import BACKBONES, POOLINGS, Backbone, backbone
from .options import Options, require_weights

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
    readers: dict[str, Callable[[Path], dict[str, Tensor]]] = {
        ".pth": _read_torch,
        ".pt": _read_torch,
        ".safetensors": load_file,
        ".npz": _read_npz,
    }
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
    parts: Sequence[nn.Module], weights: Mapping[str, Tensor], cut: Backbone
) -> tuple[dict[str, Tensor], list[str]]:
    """Match weights to the modules of a network.

    Parameters
    ----------
    parts : sequence of Module
        The parts of one network.
    weights : mapping of str to Tensor
        The weights of a file.
    cut : Backbone
        The backbone, which has the names of the whole network and those of published files.

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
        for name, tensor in ((cut.renamed(name), tensor) for name, tensor in weights.items())
        if name in wanted or not (name in cut.names or name.endswith(_COUNTER))
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


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


#: Glob pattern of the parameters that are never trained.
FROZEN = "frozen.*"
Normalisation = Literal["imagenet", "caffe", "tensorflow"]
BatchNorms = Literal["frozen", "trained"]


class Normalise(nn.Module):
    """Normalises RGB images ``[b, 3, height, width]``, uint8 or floats in [0, 1], for the first layer.

    ``imagenet``: scale to [0, 1], subtract ImageNet's mean, divide by its standard deviation. ``caffe``: scale to [0,
    255], subtract the mean, and reverse the order of the channels (BGR). ``tensorflow``: scale to [0, 255], subtract
    127, divide by 128.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, kind: Normalisation) -> None:
        super().__init__()
        self.kind = kind
        shift, scale = {
            "imagenet": ([*IMAGENET_MEAN], [0.229, 0.224, 0.225]),
            "caffe": ([123.68, 116.779, 103.939], [1.0] * 3),
            "tensorflow": ([127 / 255] * 3, [128 / 255] * 3),
        }[kind]
        # These constants belong to the weights of the first layer and never change, so they are not in the state.
        self.register_buffer("shift", torch.tensor(shift).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(scale).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images have shape {tuple(images.shape)}: must be [images, 3, height, width]")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images are of type {images.dtype}: must be torch.uint8, or floats from 0 to 1")
        whole = images.dtype == torch.uint8
        if self.kind == "caffe":
            levels = images.float() if whole else images * 255
            return (levels - self.shift).flip(1)
        return ((images.float() / 255 if whole else images) - self.shift) / self.scale


def _fast_layout(maps: Tensor) -> Tensor:
    """Put the channels last on a CPU: poolings and convolutions take less than two thirds of the time."""
    fits = maps.ndim == 4 and maps.device.type == "cpu"
    return maps.contiguous(memory_format=torch.channels_last) if fits else maps


class PlaceNetwork(nn.Module):
    """Maps images to descriptors of length 1 through frozen layers, trained layers, a pooling and a projection.

    Local features are normalised to length 1 at every position before pooling, and pooled features before the
    projection, as in the benchmark of Berton et al. The projection begins as an orthogonal matrix, so a square one
    leaves the distances between descriptors as they are.

    Parameters
    ----------
    frozen, trained : Module
        The parts of a backbone (:meth:`fedapps.tasks.vpr.backbones.Backbone.parts`).
    width : int
        The number of channels that the trained layers give.
    pooling : str
        A name in ``POOLINGS``.
    normalisation : str
        The normalisation of images (:class:`Normalise`).
    projection : int
        The width of the linear layer after the pooling; 0 for none.
    batch_norms : str
        Batch normalisation in the trained layers. ``"frozen"`` keeps statistics and scales, as small batches require,
        so that only convolutions and the pooling are trained. ``"trained"`` normalises by batch statistics and updates
        the running ones. In the frozen layers batch normalisation is always frozen.
    """

    def __init__(
        self,
        frozen: nn.Module,
        trained: nn.Module,
        width: int,
        pooling: str,
        *,
        normalisation: Normalisation,
        batch_norms: BatchNorms,
        projection: int,
    ) -> None:
        super().__init__()
        self.width = projection or width
        self.normalise = Normalise(normalisation)
        self.frozen, self.trained = frozen, trained
        self.pooling = POOLINGS[pooling]()
        self.projection = nn.Linear(width, projection, bias=False) if projection else None
        if self.projection is not None:
            nn.init.orthogonal_(self.projection.weight)
        self._kept: list[nn.Module] = [self.frozen]
        if batch_norms == "frozen":
            self._kept += [module for module in self.trained.modules() if isinstance(module, nn.BatchNorm2d)]
        for module in self._kept:
            module.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self._kept:
            module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Compute the descriptors ``[b, width]`` of uint8 images ``[b, 3, height, width]``."""
        return self.trained_part(self.frozen_part(images))

    def frozen_part(self, images: Tensor) -> Tensor:
        """Compute the maps ``[b, channels, h, w]`` of the frozen layers, which training never changes."""
        maps: Tensor = self.frozen(_fast_layout(self.normalise(images)))
        return maps

    def trained_part(self, maps: Tensor) -> Tensor:
        """Compute the descriptors ``[b, width]`` from the maps of :meth:`frozen_part`."""
        local = normalize(self.trained(_fast_layout(maps)), dim=1)
        pooled = normalize(self.pooling(local), dim=1)
        return pooled if self.projection is None else normalize(self.projection(pooled), dim=1)


def normalisation_for(name: str, weights: Path | str | None) -> Normalisation:
    """The normalisation of images with which the weights of a backbone were trained.

    It is that of TensorFlow for EfficientNet-Lite, that of Caffe for an ``.npz`` file, and otherwise torchvision's.
    """
    if name.startswith("efficientnet_lite"):
        return "tensorflow"
    return "caffe" if isinstance(weights, Path) and weights.suffix == ".npz" else "imagenet"


def network_of(options: Options, normalisation: Normalisation | None = None) -> PlaceNetwork:
    """Return the network that ``options`` describe, with weights as they say, or drawn from torch's global generator.

    With the ``normalisation`` of a stored model, weights are drawn and no file of weights is read.

    Raises
    ------
    DataError
        A name is unknown, the layers do not divide the network, or the weights cannot be read or do not fit.
    """
    cut = backbone(options.backbone, options.trained_from, train_all=options.train_all)
    weights = options.given_weights if normalisation is None else None
    parts = cut.parts() if weights is None else _loaded(options.backbone, cut, weights)
    return PlaceNetwork(
        *parts,
        cut.width,
        options.pooling,
        normalisation=normalisation or normalisation_for(options.backbone, weights),
        batch_norms=cast(BatchNorms, options.batch_norms),
        projection=options.projection,
    )


def _loaded(name: str, cut: Backbone, weights: Path | str) -> tuple[nn.Module, nn.Module]:
    """The parts of a backbone with the given weights, on the default device. Nothing is drawn."""
    tensors = read_weights(weights) if isinstance(weights, Path) else published_weights(weights, cut.network)
    device = torch.get_default_device()
    with torch.device("meta"):
        parts = cut.parts()
    by_own_name, problems = fitted(parts, tensors, cut)
    if problems:
        others = [fitting for fitting, other in BACKBONES.items() if not _problems(other, tensors)]
        advice = (
            f"set vpr.backbone = {' or '.join(map(repr, others))}, which the file fits"
            if others
            else f"the file fits none of {', '.join(BACKBONES)}: use the weights of the backbone that torchvision "
            "publishes, or leave vpr.weights empty for random weights"
        )
        raise DataError(
            "\n  ".join([f"vpr.weights = '{weights}': does not fit vpr.backbone = {name!r}", *problems, advice])
        )
    for part in parts:
        wanted = part.state_dict()
        copies = {key: torch.empty_like(like, device=device).copy_(by_own_name[key]) for key, like in wanted.items()}
        part.load_state_dict(copies, assign=True)
    return parts


def _problems(cut: Backbone, tensors: Mapping[str, Tensor]) -> list[str]:
    with torch.device("meta"):
        return fitted(cut.parts(), tensors, cut)[1]


def check_network(options: Options) -> None:
    """Check the network of ``options`` without allocating it.

    Raises
    ------
    DataError
        The backbone cannot be divided, the weights do not fit it, or images are too small for it.
    """
    with torch.device("meta"):
        check_image_size(network_of(options), options)


def check_image_size(network: PlaceNetwork, options: Options) -> None:
    """Raise :class:`DataError` if images are too small for a network, which must be on the device ``meta``."""
    height, width = options.size
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, 3, height, width, dtype=torch.uint8, device="meta"))
    except RuntimeError as error:
        raise DataError(
            f"vpr.height = {height}, vpr.width = {width}: too small for vpr.backbone = {options.backbone!r}; "
            "increase them, or use a backbone with a smaller stride (squeezenet1_1-stride8)"
        ) from error
