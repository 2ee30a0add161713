"""The files of a model folder: weights, and a ``config.json`` with the task, its options, facts and origin.

A model folder may come from anybody. What is read is checked against its declared types and ranges, and the weights are
compared with the model before memory is taken for either.
"""

import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fedapps.base.atomic import entries
from fedapps.base.errors import DataError, listed
from fedapps.base.options import option_fields, parse_options, with_values
from fedapps.base.text_files import read_json, shown

from .profiles import PrivateParameters

if TYPE_CHECKING:
    from .base import Task

#: The version of the format.
FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
#: The folder of further files of a task, such as a tokenizer.
FILES = "files"
#: The largest size of a config, in bytes: the words of the largest published vectors take 40 MB.
MAX_CONFIG = 1 << 26
#: How deeply values of a config may be nested, and between which limits its whole numbers are.
_DEEPEST, _WHOLE = 20, 2**63
#: The largest whole number of an option but a seed: sizes of tensors, whose products must not overflow.
_LARGEST_OPTION = 2**27
#: Parameters of a model for each tensor in its file, and beside them: parts of a network are built and replaced.
_PARAMETERS, _MORE_PARAMETERS = 4, 1000
#: Bytes of tensors that a model may build beside those in its file, such as tables of positions.
_UNSTORED = 256 << 20
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
_INSTEAD = "other programs read it: load the run, or an export in the format 'safetensors'"
_LISTED = 3  # tensors or keys that a message lists


class ModelFolderError(DataError):
    """A model folder is malformed, damaged or of another version. The message names the file."""


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
        What a classifier adds for its node's label shares (:mod:`fedapps.tasks.partitioners`); empty for other models.
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
            why = why_no_model(folder) or f"it has no {CONFIG} and no {WEIGHTS}"
            raise ModelFolderError(f"{folder} is no model folder: {why}")
        with problems_of(path):
            check_regular(path, MAX_CONFIG)
            check_regular(folder / WEIGHTS)
            config = read_json(path, constants=True)
            check_value(config)
            if isinstance(config, dict) and "model_type" in config and "format" not in config:
                raise ValueError(f"it is a model of the library transformers; {_INSTEAD}")
            version = field_of(config, "format", int)
            if version != FORMAT:
                raise ValueError(f"format = {version!r}; this version of fedapps reads format {FORMAT}")
            private = field_of(config, "private", dict)
            return cls(
                field_of(config, "task", str),
                field_of(config, "options", dict),
                PrivateParameters(texts_of(private, "patterns"), field_of(private, "own_start", bool)),
                field_of(config, "facts", dict),
                field_of(config, "origin", dict),
                numbers_of(config, "added-logits"),
            )

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
        known = option_fields(kind.Options)
        further = [key for key in self.options if key not in known][1:]  # the error for the first one lists those known
        others = set(further)  # a stranger's folder may have a million
        given = {key: value for key, value in self.options.items() if key not in others}
        values, errors = parse_options(kind.Options, given, f"{self.name}.")
        if further:
            errors.append(f"{listed([f'{self.name}.{key}' for key in further], _LISTED - 1)}: unknown, too")
        errors += [
            f"{self.name}.{key} = {value}: at most {_LARGEST_OPTION} in a model folder"
            for key, value in self.options.items()
            if type(value) is int and value > _LARGEST_OPTION and not key.endswith("seed")
        ]
        if errors:
            raise ValueError("; ".join(errors))
        return kind(with_values(kind.Options(), values)).under(self.private)


@contextmanager
def problems_of(path: Path) -> Iterator[None]:
    """Let errors about what a file of a model folder holds name that file, unless they name another one in it."""
    try:
        yield
    except ValueError as error:
        named = str(error).startswith(str(path.parent))
        raise ModelFolderError(str(error) if named else f"{path}: {error}") from error


# -- the files ----------------------------------------------------------------------------------------------------


def why_no_model(folder: Path) -> str:
    """Why a folder is no model folder, if it has a part of one or is an export in another format; otherwise empty."""
    if not (folder / CONFIG).is_file():
        return f"it has {WEIGHTS}, but no {CONFIG}" if (folder / WEIGHTS).is_file() else ""
    with suppress(ValueError, OSError):
        check_regular(folder / CONFIG, MAX_CONFIG)
        config = read_json(folder / CONFIG, constants=True)
        if isinstance(config, dict) and isinstance(config.get("format"), str):
            return f"it is an export in the format {shown(config['format'])}; {_INSTEAD}"
    return "" if (folder / WEIGHTS).is_file() else f"it has {CONFIG}, but no {WEIGHTS}"


def identity(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when another model takes the place of a model folder or of its files: of each the device, the inode
    and the time of change in ns; ``None`` for what is missing.
    """
    return tuple(_identity(path) for path in (folder, folder / CONFIG, folder / WEIGHTS))


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def check_regular(path: Path, most: float = inf) -> None:
    """Check that a file of a model folder is a regular file of at most ``most`` bytes.

    A link could lead to a file of the user, whose content would be in each copy of the model.

    Raises
    ------
    ValueError
        It is a link, a folder or a special file, or it is larger.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        raise ValueError(f"{path} is {kind}: a model folder has regular files only; put a copy of the file here")
    if status.st_size > most:
        raise ValueError(f"{path} has {status.st_size:,} bytes: must have at most {most:,.0f}")


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


# -- the values of a config --------------------------------------------------------------------------------------


def check_value(value: object, depth: int = 0) -> None:
    """Raise ``ValueError`` for values of JSON that are nested too deeply, or whole numbers of more than 64 bits."""
    if depth > _DEEPEST:
        raise ValueError(f"values are nested in more than {_DEEPEST} others")
    if isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
        raise ValueError("a whole number has more than 64 bits")
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_value(member, depth + 1)


def field_of(table: object, name: str, kind: type) -> Any:
    """Return a value of a table. Raise ``ValueError`` if it is missing or of another type than ``kind``."""
    if not isinstance(table, Mapping) or name not in table:
        raise ValueError(f"{name} is missing")
    value = table[name]
    if type(value) is not kind:
        noun = {int: "a whole number", bool: "true or false", str: "a string", dict: "an object", list: "a list"}[kind]
        raise ValueError(f"{name} = {shown(value)}: must be {noun}")
    return value


def texts_of(table: object, name: str, *, distinct: bool = False, least: int = 0) -> tuple[str, ...]:
    """Return a list of strings of a table. Raise ``ValueError`` if it is none, or has fewer than ``least``."""
    values = field_of(table, name, list)
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise ValueError(f"{name}: {shown(wrong[0])} is no string")
    if len(values) < least:
        raise ValueError(f"{name} has {len(values)} strings: must be at least {least}")
    if distinct and len(set(values)) < len(values):
        raise ValueError(f"{name}: a string occurs twice")
    return tuple(values)


def numbers_of(table: object, name: str) -> tuple[float, ...]:
    """Return a list of finite numbers of a table. Raise ``ValueError`` if it is none."""
    values = field_of(table, name, list)
    for value in values:
        if type(value) not in (int, float) or not isfinite(value):
            raise ValueError(f"{name}: {shown(value)} is no finite number")
    return tuple(map(float, values))


# -- the weights -------------------------------------------------------------------------------------------------


@contextmanager
def without_memory(parameters: int) -> Iterator[None]:
    """Let modules be built without memory for their parameters, in the thread of the caller.

    All tensors are made on the device ``meta``. A parameter that a module makes elsewhere, as the RegNets of
    torchvision must, is moved there before it is initialised.

    Parameters
    ----------
    parameters : int
        How many parameters may be made at most.

    Raises
    ------
    ValueError
        More are made.
    """
    thread, made = get_ident(), 0

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        nonlocal made
        if parameter is None or get_ident() != thread:
            return parameter
        made += 1
        if made > parameters:
            raise ValueError(f"its options describe a model with more than {parameters} parameters")
        return parameter if parameter.is_meta else nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # may return a parameter
    try:
        with torch.device("meta"):
            yield
    finally:
        handle.remove()


def built(folder: Path, build: Callable[[], nn.Module]) -> nn.Module:
    """Return a module with the weights of a model folder.

    Parameters
    ----------
    folder : Path
    build : function
        Returns the module with any weights. It is called twice: at first without memory, to compare the shapes.

    Raises
    ------
    ModelFolderError
        The weights are damaged, not finite, or do not fit the module.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as stored:
            slices = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
            wanted = {name: (_DTYPES.get(each.get_dtype()), tuple(each.get_shape())) for name, each in slices.items()}
        with problems_of(folder / CONFIG), without_memory(_PARAMETERS * len(wanted) + _MORE_PARAMETERS):
            empty = build()
        with problems_of(path):
            _compare(empty, wanted)
        module = build()
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(f"{path} is damaged ({error}): export the model again") from error
    with problems_of(path):
        for name, tensor in weights.items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} has numbers that are not finite")
        module.load_state_dict(weights)
    return module


def _compare(empty: nn.Module, wanted: Mapping[str, tuple[torch.dtype | None, tuple[int, ...]]]) -> None:
    """Raise ``ValueError`` unless a module without memory has the names, types and shapes of its file."""
    built_tensors = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in empty.state_dict().items()}
    if wrong := sorted(
        name for name in built_tensors.keys() | wanted.keys() if built_tensors.get(name) != wanted.get(name)
    ):
        differences = [
            f"{name} is {_kind(wanted.get(name))}, not {_kind(built_tensors.get(name))}" for name in wrong[:_LISTED]
        ]
        more = f", and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise ValueError(f"it has other tensors than the model of {CONFIG}: {'; '.join(differences)}{more}")
    unstored = sum(tensor.nbytes for name, tensor in empty.named_buffers() if name not in built_tensors)
    if unstored > _UNSTORED:
        raise ValueError(f"the model of {CONFIG} has {unstored:,} bytes beside it: at most {_UNSTORED:,} are built")


def _kind(tensor: tuple[torch.dtype | None, Sequence[int]] | None) -> str:
    return "missing" if tensor is None else f"{str(tensor[0]).removeprefix('torch.')} {list(tensor[1])}"
