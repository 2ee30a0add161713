"""The parts of a run that every method's strategy is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, cast

from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, BufferedAsync, ServerOptimizer
from fedapps.strategies.optimizers import optimizer_by_name
from fedapps.tasks.profiles import LowRank, ModelRoles

Kind = TypeVar("Kind", bound=BaseStrategy)


@dataclass(frozen=True)
class StrategyParts:
    """Sampler, weighting, privacy, server optimizer and limits of a run.

    Parameters
    ----------
    run : RunConfig
    common : mapping
        The arguments that all strategies of the run have in common, by the names of ``BaseStrategy``.
    roles : ModelRoles
        Of the parameters of the task's model.
    """

    run: RunConfig
    common: Mapping[str, Any] = field(default_factory=dict)
    roles: ModelRoles = field(default_factory=ModelRoles)

    @property
    def factors(self) -> LowRank:
        """The names of the model's adapters of low rank; none match where it has none."""
        return self.roles.factors or LowRank("", "", "")

    def build(self, kind: type[Kind], **changes: Any) -> Kind:
        """A strategy with the common arguments, and ``changes`` in place of them or beside them.

        With ``mode = "async"`` it is a :class:`~fedapps.strategies.BufferedAsync`, if ``kind`` differs from
        :class:`~fedapps.strategies.BaseStrategy` by none of the hooks of a step.

        Raises
        ------
        ValueError
            The strategy cannot run asynchronously.
        """
        arguments = {**self.common, **changes}
        if self.run.pace.mode == "sync":
            return kind(**arguments)
        if hooks := kind.own_hooks():
            raise ValueError(
                f"mode = 'async': {kind.__name__} takes all updates of a step to come from one model ({hooks})"
            )
        return cast(Kind, BufferedAsync(**arguments, **self.run.pace.asynchronous(self.run.training_nodes)))

    def without(self, *names: str) -> Self:
        """The parts without some of the common arguments, for a strategy that fixes them itself."""
        return replace(self, common={name: part for name, part in self.common.items() if name not in names})

    def optimizer(self, name: str, learning_rate: float) -> ServerOptimizer:
        """The server optimizer of this name, with the run's ``server-tau`` where it has a τ.

        Raises
        ------
        ValueError
            The name is unknown.
        """
        return optimizer_by_name(name, learning_rate, tau=self.run.server_tau)
