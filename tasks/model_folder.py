"""The files of a model folder: weights, and a ``config.json`` with the task, its options, facts and origin."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .options import option_values, parse_options, with_values
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
    """What a model folder has, before its model is built.

    Parameters
    ----------
    folder : Path
    name : str
        Of the task.
    options : mapping of str to object
        The task's options by key.
    private : PrivateParameters
        What the method kept on the nodes.
    facts, origin : mapping
    """

    folder: Path
    name: str
    options: Mapping[str, Any]
    private: PrivateParameters
    facts: Mapping[str, Any]
    origin: Mapping[str, Any]

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a folder is a model folder."""
        return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()

    def task(self, find_task: Callable[[str], "type[Task]"]) -> "Task":
        """The task as the nodes of the method saw it. Raise ``ValueError`` for an unknown task, or options of another
        version.
        """
        kind = find_task(self.name)
        values, errors = parse_options(kind.Options, dict(self.options), f"{self.name}.")
        if errors:
            raise ValueError(f"{self.folder / CONFIG}: " + "; ".join(errors))
        return kind(with_values(kind.Options(), values)).under(self.private)

    def load_into(self, module: nn.Module) -> None:
        """Load the weights. Raise ``ValueError`` if they are damaged or do not fit."""
        path = self.folder / WEIGHTS
        try:
            module.load_state_dict(load_file(path))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged or of another model ({error}): export the model again") from error


def write_folder(
    folder: Path,
    task: "Task",
    private: PrivateParameters,
    weights: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    origin: Mapping[str, Any],
) -> None:
    """Write the weights and the config into a folder, which exists."""
    config = {
        "format": FORMAT,
        "task": task.name,
        "options": option_values(task.options),
        "private": asdict(private),
        "facts": dict(facts),
        "origin": dict(origin),
    }
    # tensors that share memory are stored twice: the file then needs no knowledge of the module
    separate = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    try:
        save_file(separate, folder / WEIGHTS)
    except SafetensorError as error:  # a full disk
        raise OSError(str(error)) from error
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_folder(folder: Path) -> StoredModel:
    """Read the config of a model folder.

    Raises
    ------
    ValueError
        There is none, or it is damaged or of another version. The message names the file.
    """
    path = folder / CONFIG
    if not StoredModel.is_in(folder):
        raise ValueError(f"{folder} is no model folder: it has no {CONFIG} or no {WEIGHTS}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["format"] != FORMAT:
            raise ValueError(f"{path}: format {config['format']}; this version of fedapps reads format {FORMAT}")
        private = PrivateParameters(tuple(config["private"]["patterns"]), bool(config["private"]["own_start"]))
        return StoredModel(folder, config["task"], config["options"], private, config["facts"], config["origin"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): export the model again") from error
