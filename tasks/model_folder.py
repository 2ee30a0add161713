"""The files of a model folder: weights, and a ``config.json`` with the task, its options, facts and origin."""

import json
import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedapps.base.atomic import entries
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
#: The largest size of a config, which has the words of a vocabulary, in bytes.
MAX_CONFIG = 1 << 26


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
        check_regular(path, MAX_CONFIG)
        check_regular(folder / WEIGHTS)
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


def check_regular(path: Path, most: float = inf) -> None:
    """Check that a file of a model folder is a regular file of at most ``most`` bytes.

    A link could lead to a file of the user, whose content would be in each copy of the model.

    Raises
    ------
    ValueError
        It is a link, a folder or a special file, or it is larger.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise ValueError(f"{path} is {kind}: a model folder has regular files only; put a copy of the file here")
    if found.st_size > most:
        raise ValueError(f"{path} has {found.st_size:,} bytes: must have at most {most:,.0f}")


def further_files(folder: Path, known: Mapping[str, int]) -> Path | None:
    """The folder :data:`FILES` of a model folder, if it has one.

    Parameters
    ----------
    folder : Path
    known : mapping of str to int
        The largest sizes in bytes of the files that the task knows, by name.

    Raises
    ------
    ValueError
        In it is a link, a folder or a special file, or a file that is larger. The message names it.
    """
    files = folder / FILES
    if not os.path.lexists(files):
        return None
    if files.is_symlink() or not files.is_dir():
        raise ValueError(f"{files} is no folder: export the model again")
    for name in entries(files):
        check_regular(files / name, known.get(name, inf))
    return files


def foreign_names(folder: Path, known: Collection[str]) -> list[str]:
    """The names of what in a folder is not from a model folder of fedapps whose further files have the names ``known``.

    In a model of another library, which may have a ``config.json`` and a ``model.safetensors`` as well, that is all.
    """
    if not _is_config(folder / CONFIG):
        return entries(folder)
    ours = {name for name in (CONFIG, WEIGHTS) if _is_regular(folder / name)}
    files = folder / FILES
    inner = [] if files.is_symlink() or not files.is_dir() else entries(files)
    return [name for name in entries(folder) if name not in ours and not (name == FILES and inner)] + [
        f"{FILES}/{name}" for name in inner if name not in known or not _is_regular(files / name)
    ]


def _is_config(path: Path) -> bool:
    """Whether a file is a config that :meth:`StoredModel.write` wrote."""
    if not _is_regular(path) or path.stat().st_size > MAX_CONFIG:
        return False
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(config, dict) and {"format", "task", "options", "private", "facts", "origin"} <= config.keys()


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def load_weights(folder: Path, module: nn.Module) -> None:
    """Load the weights of a model folder. Raise ``ValueError`` if they are damaged or do not fit."""
    path = folder / WEIGHTS
    try:
        module.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or of another model ({error}): export the model again") from error
