"""The personal models that a deployed node keeps for other programs of its machine, such as a robot's control loop.

They stay on the node: nothing here is read when a message is answered.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedapps.tasks.trained import TrainedModel

from fedapps.base.atomic import UnwritableError, naming_errors, path_name, remove_leftovers, synced, temporary_name

#: Key of the node config: whether the node keeps its personal models.
KEEP_MODEL = "keep-model"
#: The folder of the models, beside the private state of the runs.
MODELS = "models"
#: The link to the newest model.
CURRENT = "current"
#: How many models are kept.
KEPT_MODELS = 2
_PREFIX = "round-"
_KEPT = re.compile(r"round-\d{6,}-\w+(-\d+)?")


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


@dataclass(frozen=True)
class KeptModels:
    """A folder with the last two models of a node, and a link ``current`` to the newer one.

    The link always leads to a complete model, or there is none yet, also if the process is killed while it writes.

    Parameters
    ----------
    folder : Path
        Of this node alone. It is created when it is needed.
    """

    folder: Path

    @classmethod
    def of(cls, root: Path, run: str, method: str, node: str) -> Self:
        """The folder ``root / "models" / run / method / node``, below ``root`` whatever the names are.

        The name of a run, unlike the label of its private state, is known before it starts, and it stays the same when
        the run is resumed.
        """
        return cls(root.joinpath(MODELS, *map(path_name, (run, method, node))))

    def keep(self, model: TrainedModel, phase: str) -> Path:
        """Write a model, let ``current`` lead to it, and delete all models but this one and the one before.

        Parameters
        ----------
        model : TrainedModel
        phase : str
            What the node did in the round of the model, such as ``"train"``.

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
        path, before = self._unused(f"{_PREFIX}{model.origin.round:06d}-{phase}"), self._current()
        model.save(path)
        try:
            with naming_errors(self.folder / CURRENT):
                self._link(path)
        except UnwritableError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        for other in self.folder.glob(f"{_PREFIX}*"):
            if _KEPT.fullmatch(other.name) and other.name not in (path.name, before):
                shutil.rmtree(other, ignore_errors=True)
        return path

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
