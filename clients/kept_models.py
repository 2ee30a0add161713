"""The personal models that a deployed node keeps for other programs of its machine, such as a robot's control loop.

They stay on the node: nothing here is read when a message is answered.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedapps.tasks.trained import TrainedModel

from fedapps.base.atomic import (
    UnwritableError,
    naming_errors,
    path_name,
    remove_leftovers,
    synced,
    temporary_name,
    write_whole,
)

from .rules import ACCEPT_MODEL, KEEP_MODEL, RulesError, exit_status

#: The folder of the models, beside the private state of the runs.
MODELS = "models"
#: The link to the newest model.
CURRENT = "current"
#: The file with the label of the registry whose champions the models are.
_LABEL = "registry"
#: How many models are kept.
KEPT_MODELS = 2
_PREFIX = "round-"
_KEPT = re.compile(r"round-\d{6,}-\w+(-\d+)?")
_OF_GENERATION = re.compile(r"round-\d{6,}-generation(\d+)(-\d+)?")
#: In place of run and method, in the folder of the models that a fleet has in use.
CHAMPIONS = "champions"
#: Seconds after which the command is killed, which refuses the model, too.
_MOST_SECONDS = 600


def keeps_models(node_config: Mapping[str, Any]) -> bool:
    """Whether a node with this config keeps its personal models.

    Raises
    ------
    ValueError
        The key ``keep-model`` is neither true nor false.
    """
    wanted = node_config.get(KEEP_MODEL, False)
    if not isinstance(wanted, bool):
        raise ValueError(f"node config {KEEP_MODEL} = {wanted!r}: must be true or false, without quotes")
    return wanted


def check_accepted(node_config: Mapping[str, Any], model: Path) -> None:
    """Let the command ``accept-model`` of a node config see a model folder.

    Raises
    ------
    RulesError
        It refuses the model, cannot be run, or takes more than ten minutes.
    """
    if not (command := str(node_config.get(ACCEPT_MODEL, "")).strip()):
        return
    try:
        status = exit_status(command, str(model), seconds=_MOST_SECONDS)
    except RulesError as error:
        raise RulesError(f"node config {ACCEPT_MODEL}: {error}") from error
    if status:
        raise RulesError(f"node config {ACCEPT_MODEL}: the command refuses the model with exit status {status}")


def _generation(path: Path) -> int:
    """The generation of champions of a model folder, by its name; 0 for other models."""
    match = _OF_GENERATION.fullmatch(path.name)
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class KeptModels:
    """A folder with the last two models of a node, and a link ``current`` to the newer one.

    The link always leads to a complete model, or there is none yet, also if the process is killed while it writes.

    Parameters
    ----------
    folder : Path
        Of this node alone. It is created when it is needed.
    registry : str
        The label of the registry whose champions the models are; empty for those of a run.
    """

    folder: Path
    registry: str = ""

    @classmethod
    def of(cls, root: Path, run: str, method: str, node: str, registry: str = "") -> Self:
        """The folder ``root / "models" / run / method / node``, below ``root`` whatever the names are.

        The name of a run, unlike the label of its private state, is known before it starts, and it stays the same when
        the run is resumed.
        """
        return cls(root.joinpath(MODELS, *map(path_name, (run, method, node))), registry)

    def keep(self, model: TrainedModel, phase: str, check: Callable[[Path], None] | None = None) -> Path:
        """Write a model, let ``current`` lead to it, and delete all models but this one and the one before.

        Models of another registry are deleted, too.

        Parameters
        ----------
        model : TrainedModel
        phase : str
            What the node did in the round of the model, such as ``"train"``.
        check : function of the model folder
            Raises what keeps the model from being used; it sees the model before it gets its name.

        Returns
        -------
        Path
            The model folder, such as ``round-000012-train``; with a further number if there is one of that name, which
            may be in use.

        Raises
        ------
        UnwritableError
            The folder cannot be written, or its file system has no symbolic links. ``current`` is unchanged.
        """
        remove_leftovers(self.folder)
        path, known = self._unused(f"{_PREFIX}{model.origin.round:06d}-{phase}"), self._known
        before = self._current() if known else ""
        if check is None:
            model.save(path)
        else:
            self._save_checked(model, path, check)
        try:
            with naming_errors(self.folder / CURRENT):
                if not known:  # a process that is killed leaves models of no registry, and the server sends one again
                    (self.folder / _LABEL).unlink(missing_ok=True)
                self._link(path)
        except UnwritableError:
            if self._current() != path.name:
                shutil.rmtree(path, ignore_errors=True)
            raise
        for other in self.folder.glob(f"{_PREFIX}*"):
            if _KEPT.fullmatch(other.name) and other.name not in (path.name, before):
                leftover = temporary_name(other)  # a folder of this name is always whole
                with naming_errors(other):
                    other.replace(leftover)
                shutil.rmtree(leftover, ignore_errors=True)
        if not known:
            write_whole(self.folder / _LABEL, self.registry.encode(), sync=True)
        return path

    def use(self, generation: int) -> int:
        """Let ``current`` lead to the model of a generation of champions, if it is kept.

        Returns
        -------
        int
            The generation that ``current`` leads to now; 0 if there is none, or if it is one of another registry.
        """
        if not self._known:
            return 0
        kept = sorted(path for path in self.folder.glob(f"{_PREFIX}*") if generation == _generation(path) != 0)
        if kept and _generation(Path(self._current())) != generation:
            with naming_errors(self.folder / CURRENT):
                self._link(kept[-1])
        return _generation(Path(self._current()))

    @property
    def _known(self) -> bool:
        """Whether the models in the folder are champions of this registry."""
        label = self.folder / _LABEL
        return (label.read_bytes() if label.exists() else b"") == self.registry.encode()

    def _save_checked(self, model: TrainedModel, path: Path, check: Callable[[Path], None]) -> None:
        unchecked = temporary_name(path)
        try:
            check(model.save(unchecked))
            with naming_errors(path):
                unchecked.replace(path)
        finally:
            shutil.rmtree(unchecked, ignore_errors=True)

    def _current(self) -> str:
        """The name of the newest model; empty if there is none."""
        link = self.folder / CURRENT
        return Path(os.readlink(link)).name if link.is_symlink() else ""

    def _unused(self, name: str) -> Path:
        number, path = 1, self.folder / name
        while path.exists():
            number += 1
            path = self.folder / f"{name}-{number}"
        return path

    def _link(self, path: Path) -> None:
        unfinished = temporary_name(self.folder / CURRENT)
        unfinished.symlink_to(path.name, target_is_directory=True)
        unfinished.replace(self.folder / CURRENT)
        synced(self.folder)
