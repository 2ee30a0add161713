"""What the methods of continual learning have in common: data in stages, alone, under FedAvg or under FedProx."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.options import option
from tasks.private_parameters import PrivateParameters

from .base import Conflict, Method
from .local import EVERYTHING

if TYPE_CHECKING:
    from clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from tasks.base import Task
    from tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FederationOptions:
    """How the nodes of a method of continual learning come together."""

    mu: float = option(0.0, "weight µ of FedProx's proximal term; 0 = FedAvg", minimum=0, formerly="fedprox-mu")
    local: bool = option(False, "train every node alone, without a federation")


class ContinualMethod(Method):
    """A method for nodes that keep something of their earlier stages."""

    needs_stages = True

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return EVERYTHING if getattr(self.options, "local", False) else PrivateParameters()

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if getattr(self.options, "local", False) and self.options.mu:
            yield {"methods"}, f"{self.name}: mu = {self.options.mu:g} must be 0 with local = true: nothing is shared"

    def proximal(self) -> "list[LocalPart]":
        """The proximal term, where there is one."""
        from clients.parts.proximal import Proximal

        return [Proximal()] if self.options.mu else []

    def local_parts(self) -> "Sequence[LocalPart]":
        return self.proximal()
