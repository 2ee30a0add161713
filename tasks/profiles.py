"""Who the nodes of a task are, without torch: a worker that only answers the profile query starts fast."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from .private_parameters import PrivateParameters


class DataError(ValueError):
    """Data that is missing or malformed; the message names the file, the line and what was expected."""


@dataclass(frozen=True)
class NodeProfile:
    """Who a node is: the stable ``key``, ``num_examples`` ≥ 0 to train on, and labels for sampling and reports."""

    key: str
    num_examples: int
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)


class TaskProfiles(ABC):
    """Who the nodes of a task are, and the world that stands in for their data.

    Subclasses live in modules that import no torch. A profile is what loading the data would tell: the key, the groups
    and the number of training examples (:meth:`tasks.base.NodeData.profile`), found out without making tensors,
    models or pictures of them.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    #: Raised when :meth:`make_world` comes to write other data from the same options, so that no stale world is read.
    world_version: ClassVar[int] = 1

    def __init__(self, options: Any) -> None:
        #: A frozen instance of ``Options``.
        self.options = options

    def __eq__(self, other: object) -> bool:
        """Tasks hold nothing but their options, so those with the same ones share whatever is cached for them."""
        return type(self) is type(other) and self.options == other.options

    def __hash__(self) -> int:
        return hash((type(self), self.options))

    def under(self, privacy: PrivateParameters) -> Self:
        """The task as the nodes of a method see it; to most tasks it makes no difference.

        Raises :class:`DataError` when the task's options do not go together with ``privacy``.
        """
        return self

    @property
    def has_world(self) -> bool:
        """Whether :meth:`make_world` can stand in for data that is not given."""
        return True

    @property
    def world_options(self) -> Mapping[str, object]:
        """The options that :meth:`make_world` depends on: all, unless a task says better."""
        return asdict(self.options)

    @abstractmethod
    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate data for ``num_nodes`` nodes and write it into ``folder`` in the real data's file format."""

    @abstractmethod
    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        """Who node ``partition`` of ``num_partitions`` is. Raises :class:`DataError` as loading its data does."""

    @abstractmethod
    def own_profile(self, folder: Path) -> NodeProfile:
        """Who a deployed node is whose own data ``folder`` holds. Raises :class:`DataError` as loading it does."""
