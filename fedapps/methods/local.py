"""Local training: every node alone with its own data."""

from typing import TYPE_CHECKING

from tasks.private_parameters import PrivateParameters

from .base import Method

EVERYTHING = PrivateParameters(("*",))

if TYPE_CHECKING:
    from tasks.profiles import TaskProfiles


class Local(Method):
    """The baseline without a federation: all parameters are private."""

    name = "local"
    line = "every node alone with its own data"

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return EVERYTHING
