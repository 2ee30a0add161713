"""Trackers, which record runs elsewhere: what one is here, and those of this package in :mod:`.services`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from fedapps.base.options import NoOptions


@dataclass(frozen=True)
class TrackedRun:
    """The run of one method, which becomes one run of the tracker.

    Parameters
    ----------
    name : str
        The name of the run folder.
    method : str
        The label of the method.
    task : str
    id : str
        16 hexadecimal digits that no other run has; a resumed run has the same.
    config : mapping
        The flat run config.
    folder : Path
        The run folder, absolute.
    """

    name: str
    method: str
    task: str
    id: str
    config: Mapping[str, Any]
    folder: Path


class TrackedRecord(ABC):
    """The record that a tracker keeps of the run of one method."""

    @property
    @abstractmethod
    def last_round(self) -> int:
        """The last round that the record has, 0 if it has none."""

    @abstractmethod
    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Add a round, whose number is greater than :attr:`last_round`.

        Parameters
        ----------
        server_round : int
        values : mapping
            Numbers by names such as ``evaluate/test.loss``, ``round/seconds`` and
            ``nodes/car-7/evaluate/test.loss``. Names consist of letters, digits and ``_ - . /``. There is always a
            ``round/seconds``, the last of the mapping.
        """

    def finish(self, final: Mapping[str, float]) -> None:  # noqa: B027 (a record may have no use for it)
        """Add the final metrics, and mark the run as finished. It may be called again for a resumed run."""

    def add_report(self, report: Path) -> None:  # noqa: B027
        """Add the HTML report of the whole run, which may have several methods."""

    def register(self, registry: str, alias: str, server_round: int, model: Path) -> None:  # noqa: B027
        """Give a model of the run an alias in the service's registry of models, which it enters once.

        Only a tracker that :attr:`Tracker.registers` models is asked.

        Parameters
        ----------
        registry : str
            The name of the fleet's registry.
        alias : "champion" or "challenger"
            The model in use, or the newest one that was compared with it. Another model loses the alias.
        server_round : int
            The round after which the model was so.
        model : Path
            Its checkpoint.
        """

    def close(self) -> None:  # noqa: B027
        """Write what is buffered. A run without :meth:`finish` has failed or was interrupted."""


class Tracker(ABC):
    """A service that records runs.

    The class is the whole tracker: nothing outside its module knows its name. The module must not import the service's
    package at its top.

    Parameters
    ----------
    options : Options, optional
        An instance of :attr:`Options`; the defaults if missing.
    """

    #: The name in the run config and, in another package, of the entry point.
    name: ClassVar[str]
    #: One line of help.
    line: ClassVar[str]
    #: A frozen dataclass of ``fedapps.base.options.option`` fields, which are the keys ``NAME.OPTION`` of the run
    # config.
    Options: ClassVar[type] = NoOptions
    #: Whether the service has a registry of models.
    registers: ClassVar[bool] = False
    #: The module that must be installed where the server runs.
    package: ClassVar[str] = ""
    #: What ``pip install`` needs to install it.
    requirement: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def conflict(self) -> str:
        """Why the tracker cannot be used here, and what to do; empty if it can. It must not wait for a network."""
        if self.package and find_spec(self.package) is None:
            return f"needs the package {self.package!r}, which is not installed: pip install '{self.requirement}'"
        return ""

    @abstractmethod
    def open(self, run: TrackedRun) -> TrackedRecord:
        """Create the record of a run, or continue the one with the same ``run.id``."""
