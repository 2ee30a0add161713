"""The models that a node keeps, as they arrive: for a program that uses them while the node trains.

It needs PyTorch and no Flower.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import torch

from fedapps.registry.tasks import task_class
from fedapps.tasks.trained import TrainedModel

logger = logging.getLogger(__name__)
#: The link to the newest model, as :class:`fedapps.clients.kept_models.KeptModels` makes it.
_CURRENT = "current"
#: The path of a model folder, its inode and its time of change in ns.
_Version = tuple[str, int, int]


def watch(folder: str | Path, poll: float = 1.0, device: str | torch.device = "cpu") -> ModelWatch:
    """Follow the models that a deployed node keeps (``keep-model = true`` in its node config).

    ``for model in watch(folder)`` waits for each model; :meth:`ModelWatch.newest` never waits,
    for a control loop. It needs no Flower and no run folder.

    Parameters
    ----------
    folder : str or Path
        ``STATE-DIR/models/RUN/METHOD/NODE``, with the name of the run; or ``STATE-DIR/models/champions/REGISTRY/NODE``,
        which ``fedapps gate`` changes. It need not exist yet.
    poll : float
        Seconds between two looks for a newer model, above 0.
    device : str or torch.device
        Where the models are put.

    Returns
    -------
    ModelWatch
        An iterator over the models as they arrive, from the one that is there on.

    Raises
    ------
    ValueError
        ``poll`` is not above 0.
    """
    return ModelWatch(Path(folder).expanduser(), poll, device)


class ModelWatch(Iterator["TrainedModel"]):
    """The models of a folder in which a node keeps them. A thread reads them; the caller never waits for a disk.

    A model that arrives before the last one was taken replaces it. A model that cannot be read is reported in the log
    once, and tried again at each poll: because it is malformed, of another version of the format or too large for the
    memory, or because a package is missing. No folder ends the watch, whatever it holds.

    Parameters
    ----------
    folder : Path
        With the link ``current``; it need not exist yet.
    poll : float
        Seconds between two looks at the link, above 0.
    device : str or torch.device
        Where the models are put.
    """

    def __init__(self, folder: Path, poll: float = 1.0, device: str | torch.device = "cpu") -> None:
        if not poll > 0:
            raise ValueError(f"poll = {poll!r}: must be above 0 seconds")
        self.folder = folder
        self.poll = poll
        self._device = device
        self._seen: _Version | None = None
        self._reported: tuple[_Version | None, str] | None = None
        self._arrived = threading.Condition()
        self._new: TrainedModel | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"models of {folder}", daemon=True)
        self._thread.start()

    def newest(self) -> TrainedModel | None:
        """Return the newest model if it was not returned before, otherwise ``None``. Never waits.

        Raises
        ------
        BaseException
            Whatever ended the thread that reads, which no model folder does.
        """
        with self._arrived:
            return self._taken()

    def __next__(self) -> TrainedModel:
        """Wait for a model that was not returned before; ``StopIteration`` after :meth:`close`."""
        with self._arrived:
            self._arrived.wait_for(self._has_something)
            if (model := self._taken()) is None:
                raise StopIteration
            return model

    def close(self) -> None:
        """Stop to look for models. A loop over them ends."""
        self._closing.set()
        with self._arrived:
            self._arrived.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has_something(self) -> bool:
        return self._new is not None or self._failure is not None or self._closing.is_set()

    def _taken(self) -> TrainedModel | None:
        if self._failure:
            raise self._failure
        model, self._new = self._new, None
        return model

    # -- the thread ------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            while not self._closing.is_set():
                self._look()
                self._closing.wait(self.poll)
        except BaseException as error:  # raised in the caller's thread, which would otherwise wait for ever
            with self._arrived:
                self._failure = error
                self._arrived.notify_all()

    def _look(self) -> None:
        """Read the newest model, if it is not the one that was read last."""
        version = self._version()
        if version is None:
            self._report(None, f"{self.folder / _CURRENT} does not exist: waiting for a model of the node")
            return
        if version == self._seen:
            return
        try:
            model = TrainedModel.read(Path(version[0]), task_class).to(self._device)
        except (OSError, ValueError) as error:
            self._refuse(version, f"{error}; the last model stays in use")
            return
        except Exception as error:  # whatever a library finds in a file, the robot goes on
            self._refuse(version, f"{version[0]}: {type(error).__name__}: {error}; the last model stays in use", error)
            return
        self._seen = version
        with self._arrived:
            self._new = model
            self._arrived.notify_all()

    def _version(self) -> _Version | None:
        """The folder that ``current`` leads to, with what changes when another one gets its name; ``None`` if there is
        no ``current``.
        """
        link = self.folder / _CURRENT
        if not os.path.lexists(link):
            return None
        path = os.path.realpath(link)
        try:
            status = os.stat(path)
        except OSError:  # it leads nowhere
            return path, 0, 0
        return path, status.st_ino, status.st_mtime_ns

    def _refuse(self, version: _Version, problem: str, unexpected: Exception | None = None) -> None:
        """Report a model folder, unless a newer model has taken its place meanwhile."""
        if version == self._version():
            self._report(version, problem, unexpected)

    def _report(self, version: _Version | None, problem: str, unexpected: Exception | None = None) -> None:
        """Log a problem once, although each poll finds it; of an unexpected error with its traceback."""
        if self._reported != (version, problem):
            self._reported = version, problem
            logger.warning("%s", problem, exc_info=unexpected)
