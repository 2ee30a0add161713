"""What starts a federation: a simulation, or a fleet on this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedapps.config.parsing import Config


class RunFailedError(RuntimeError):
    """A run did not finish; the message names its folder, which has everything that was trained."""


class Runner(ABC):
    """A way to run a federation."""

    @abstractmethod
    def check(self, config: Config) -> None:
        """Check everything that needs no data and no file that an option names.

        Raises
        ------
        ValueError
            If the run folder or the config cannot be used.
        """

    @abstractmethod
    def check_data(self, config: Config) -> None:
        """Read the data of all nodes once. Raises ``DataError`` if data are missing or invalid."""

    @abstractmethod
    def run(self, config: Config) -> None:
        """Run a federation that was checked, and print its results. Raises ``RunFailedError`` if it does not finish."""
