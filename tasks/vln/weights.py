"""Weights of an agent or a speaker, from the file that an earlier stage left."""

from collections.abc import Mapping
from pathlib import Path

import torch
from fedapps.tasks.base import DataError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .language_model import PretrainedVectors, language_model
from .layers import ANGLE_WIDTH
from .options import Sizes
from .speaker import Speaker

#: What names start with in a snapshot of a run: those of the model's parameters, and those of the server's state.
_SHARED, _STATE = "shared.", "state."


def load_weights(model: nn.Module, file: Path, option: str) -> None:
    """Load all weights of ``model`` from a file of its weights or from a snapshot of a run.

    Raises :class:`DataError` where the file is missing, holds a part of the weights, or does not fit.
    """
    _load(model, _read(file, option), file, option)


def load_speaker(file: Path, width: int, encoder: Path | None = None) -> Speaker:
    """The speaker of a file, whose sizes are read off its weights.

    A speaker with the frozen word vectors of a language model, which is in the folder ``encoder``, has yet to learn
    the words.

    Raises :class:`DataError` where it is no speaker's, a speaker's for features of another width than ``width``, or
    one with such vectors without a folder.
    """
    tensors = _read(file, "vln.speaker-file")
    try:
        vocabulary, hidden = tensors["decoder.output.weight"].shape
        words = tensors["decoder.lstm.weight_ih_l0"].shape[1]
        features = tensors["encoder.moves.forwards.weight_ih_l0"].shape[1] - ANGLE_WIDTH
    except KeyError as error:
        raise DataError(
            f"vln.speaker-file = {str(file)!r}: holds no {error}, so no speaker; name the file that "
            "vln.stage = 'speaker' left"
        ) from error
    if features != width:
        raise DataError(
            f"vln.speaker-file = {str(file)!r}: a speaker for {features} features per view, but vln.features has "
            f"{width}: take those that it was trained with"
        )
    pretrained = None
    if "decoder.embedding.weight" not in tensors:
        if encoder is None:
            raise DataError(
                f"vln.speaker-file = {str(file)!r}: this speaker has the word vectors of a language model; name its "
                "folder as vln.language-model"
            )
        pretrained = PretrainedVectors(language_model(encoder), vocabulary)
    sizes = Sizes(vocabulary=vocabulary, features=features, words=words, hidden=hidden)
    speaker = Speaker(sizes, drop=0, feature_drop=0, pretrained=pretrained)
    _load(speaker, tensors, file, "vln.speaker-file")
    return speaker.eval()


def _load(model: nn.Module, tensors: Mapping[str, Tensor], file: Path, option: str) -> None:
    expected = model.state_dict()
    fitting = [name for name in tensors if name in expected and tensors[name].shape == expected[name].shape]
    if len(fitting) == len(tensors) < len(expected):
        parts = ", ".join(sorted({f"{name.partition('.')[0]}.*" for name in fitting})) or "none"
        raise DataError(
            f"{option} = {str(file)!r}: holds {len(tensors)} of the model's {len(expected)} parameters ({parts}), as "
            "the snapshot of a method that keeps parameters on the nodes does; name the file of a method that averages "
            "all parameters, such as fedavg or centralized"
        )
    wrong = sorted((expected.keys() | tensors.keys()) - set(fitting))
    if wrong:
        shapes = ", ".join(
            f"{name} {_shape(tensors, name)} in the file, {_shape(expected, name)} here" for name in wrong[:3]
        )
        raise DataError(
            f"{option} = {str(file)!r}: {len(wrong)} parameters do not fit: {shapes}; set vln.hidden, vln.word-width, "
            "vln.vocabulary-size and vln.features to those that the file was trained with"
        )
    if infinite := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise DataError(
            f"{option} = {str(file)!r}: {infinite[0]} has numbers that are not finite; name the file of a run that did "
            "not diverge"
        )
    model.load_state_dict(tensors)


def _read(file: Path, option: str) -> dict[str, Tensor]:
    if not file.is_file():
        raise DataError(f"{option} = {str(file)!r}: no such file; name the safetensors file of an earlier stage")
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{option} = {str(file)!r}: cannot be read: {error}; expected a safetensors file") from error
    return {
        name.removeprefix(_SHARED): tensor.to(torch.float32)
        for name, tensor in tensors.items()
        if not name.startswith(_STATE)
    }


def _shape(tensors: Mapping[str, Tensor], name: str) -> object:
    return list(tensors[name].shape) if name in tensors else "missing"
