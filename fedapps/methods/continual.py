"""Methods of continual learning whose nodes train alone, under FedAvg or under FedProx."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.tasks.options import option
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role, Round, Scalar
from .local import EVERYTHING

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FederationOptions:
    """How the nodes of a method of continual learning come together."""

    mu: float = option(0.0, "weight µ of FedProx's proximal term; 0 = FedAvg", minimum=0)
    local: bool = option(False, "train every node alone, without a federation")


class ContinualMethod(Method):
    """A method with :class:`FederationOptions`, for nodes that keep something of their earlier stages."""

    needs_stages = True

    @property
    def role(self) -> Role:
        return "alone" if self.options.local else "federated"

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return EVERYTHING if self.options.local else PrivateParameters()

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if self.options.local and self.options.mu:
            yield {"methods"}, f"{self.name}: mu = {self.options.mu:g} must be 0 with local = true: nothing is shared"

    def proximal_config(self, server_round: Round) -> Mapping[str, Scalar]:
        """The key of the proximal term in the config of this round's messages, where there is one."""
        return {"proximal": self.options.mu} if self.options.mu and server_round.message == "train" else {}

    def proximal(self) -> "list[LocalPart]":
        """The proximal term, where there is one."""
        from fedapps.clients.parts.proximal import Proximal

        return [Proximal()] if self.options.mu else []
