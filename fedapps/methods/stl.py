"""Single-task learning: every node alone, with a fresh model in every stage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedapps.tasks.profiles import PrivateParameters

from .base import Method, Role
from .local import EVERYTHING

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.tasks.profiles import TaskProfiles


class Stl(Method):
    """The baseline of continual learning that cannot forget, because it keeps nothing."""

    name = "stl"
    line = "single-task learning: every node alone, a fresh model in every stage"
    needs_stages = True

    @property
    def role(self) -> Role:
        return "alone"

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return EVERYTHING

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.earlier_stages import FreshStages

        return [FreshStages()]
