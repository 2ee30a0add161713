"""The parts of a run that every method's strategy is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fedapps.strategies import BaseStrategy, ServerOptimizer
from fedapps.strategies.optimizers import optimizer_by_name

if TYPE_CHECKING:
    from fedapps.config.run_config import RunConfig

Kind = TypeVar("Kind", bound=BaseStrategy)


@dataclass(frozen=True)
class StrategyParts:
    """Sampler, weighting, privacy, server optimizer and limits of a run.

    Parameters
    ----------
    run : RunConfig
    common : mapping
        The arguments that all strategies of the run have in common, by the names of ``BaseStrategy``.
    """

    run: RunConfig
    common: Mapping[str, Any] = field(default_factory=dict)

    def build(self, kind: type[Kind], **changes: Any) -> Kind:
        """A strategy with the common arguments, and ``changes`` in place of them or beside them."""
        return kind(**{**self.common, **changes})

    def without(self, *names: str) -> StrategyParts:
        """The parts without some of the common arguments, for a strategy that fixes them itself."""
        return StrategyParts(self.run, {name: part for name, part in self.common.items() if name not in names})

    def optimizer(self, name: str, learning_rate: float) -> ServerOptimizer:
        """The server optimizer of this name, with the run's ``server-tau`` where it has a τ.

        Raises
        ------
        ValueError
            The name is unknown.
        """
        return optimizer_by_name(name, learning_rate, tau=self.run.server_tau)
