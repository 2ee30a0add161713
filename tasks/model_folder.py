"""The files of a model folder: weights, and a ``config.json`` with the task, its options, facts and origin."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedapps.base.options import parse_options, with_values

from .profiles import PrivateParameters

if TYPE_CHECKING:
    from .base import Task

#: The version of the format.
FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
#: The folder of further files of a task, such as a tokenizer.
FILES = "files"


@dataclass(frozen=True)
class StoredModel:
    """The config of a model folder.

    Parameters
    ----------
    name : str
        Of the task.
    options : mapping of str to object
        The task's options by key.
    private : PrivateParameters
        What the method kept on the nodes.
    facts, origin : mapping
        As in :class:`~fedapps.tasks.trained.TrainedModel`.
    added_logits : tuple of float
        What a classifier adds for its node's label shares (:mod:`fedapps.tasks.label_shares`); empty for other models.
    """

    name: str
    options: Mapping[str, Any]
    private: PrivateParameters
    facts: Mapping[str, Any]
    origin: Mapping[str, Any]
    added_logits: tuple[float, ...] = ()

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a folder is a model folder."""
        return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the config of a model folder.

        Raises
        ------
        ValueError
            There is none, or it is damaged or of another version. The message names the file.
        """
        path = folder / CONFIG
        if not cls.is_in(folder):
            raise ValueError(f"{folder} is no model folder: it has no {CONFIG} or no {WEIGHTS}")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            found = config["format"]
            if found == FORMAT:
                private = PrivateParameters(tuple(config["private"]["patterns"]), bool(config["private"]["own_start"]))
                added = tuple(map(float, config["added-logits"]))
                return cls(config["task"], config["options"], private, config["facts"], config["origin"], added)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): export the model again") from error
        raise ValueError(f"{path}: format = {found!r}; this version of fedapps reads format {FORMAT}")

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the config and the weights into a folder, which exists."""
        config = {
            "format": FORMAT,
            "task": self.name,
            "options": dict(self.options),
            "private": asdict(self.private),
            "added-logits": list(self.added_logits),
            "origin": dict(self.origin),
            "facts": dict(self.facts),
        }
        # tensors that share memory are stored twice: the file then needs no knowledge of the module
        separate = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
        try:
            save_file(separate, folder / WEIGHTS)
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")

    def task(self, find_task: "Callable[[str], type[Task]]") -> "Task":
        """The task as the nodes of the method saw it. Raise ``ValueError`` for an unknown task, or for options of
        another version.
        """
        kind = find_task(self.name)
        values, errors = parse_options(kind.Options, dict(self.options), f"{self.name}.")
        if errors:
            raise ValueError(f"{CONFIG} of the model: " + "; ".join(errors))
        return kind(with_values(kind.Options(), values)).under(self.private)


def load_weights(folder: Path, module: nn.Module) -> None:
    """Load the weights of a model folder. Raise ``ValueError`` if they are damaged or do not fit."""
    path = folder / WEIGHTS
    try:
        module.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or of another model ({error}): export the model again") from error
