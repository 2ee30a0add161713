"""A task without torch: its profiles, for a worker that only answers the profile query and is to start fast."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from fedapps.base.errors import DataError


class OtherFilesError(DataError):
    """The parameters that are never trained, which each node builds from its own files, are not those of the server."""


@dataclass(frozen=True)
class NodeProfile:
    """The profile of a node, which the server asks for.

    Attributes
    ----------
    key : str
        The node's key, the same in every run.
    num_examples : int
        The number of training examples, at least 0.
    groups : mapping of str to str
        Labels of the node for sampling and reports, for example its city.
    """

    key: str
    num_examples: int
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)


def check_partition(partition: int, num_partitions: int) -> None:
    """Raise :class:`DataError` if there is no such node."""
    if not 0 <= partition < num_partitions:
        raise DataError(f"node {partition} of {num_partitions}: expected an index from 0 to {num_partitions - 1}")


@dataclass(frozen=True)
class PrivateParameters:
    """The parameters that never leave their node.

    Parameters
    ----------
    patterns : tuple of str
        Glob patterns of the names. All other parameters are shared. ``("*",)`` keeps everything private.
    own_start : bool
        Whether each node initialises its private parameters differently. Otherwise all nodes start from the same
        values.
    """

    patterns: tuple[str, ...] = ()
    own_start: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is shared."""
        return "*" in self.patterns


@dataclass(frozen=True)
class LowRank:
    """Adapters of low rank: each adds ``scale * B @ A`` to a frozen weight.

    Parameters
    ----------
    a, b : str
        Names of A ``[rank, inputs]`` and B ``[outputs, rank]``, with a ``*`` that stands for the same text in all
        three, such as ``encoder.*.lora_A.default.weight``.
    weight : str
        The same of the frozen weights ``[outputs, inputs]``.
    scale : float
        Not 0.
    """

    a: str
    b: str
    weight: str
    scale: float = 1.0


@dataclass(frozen=True)
class ModelRoles:
    """Which parameters of a task's model play which role, for methods that treat them differently.

    Parameters
    ----------
    head : tuple of str
        Glob patterns of the parameters that turn a representation into the output; empty if the model has no head. Each
        pattern matches a parameter.
    body : tuple of str
        The same of all other parameters that are trained.
    features : bool
        Whether :meth:`fedapps.tasks.base.Task.features` gives the representation.
    examples : bool
        Whether :meth:`fedapps.tasks.base.Task.examples` gives the training examples, on which a loss can be measured
        without training.
    factors : LowRank, optional
        The adapters of low rank, if the model has any.
    factors_key : str
        The key and its value that give the model such adapters, for messages; empty if no key does.
    """

    head: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    features: bool = False
    examples: bool = True
    factors: LowRank | None = None
    factors_key: str = ""


class TaskProfiles(ABC):
    """The part of a task that needs no torch: the profiles of its nodes, and the simulation of their data.

    Subclasses live in modules that do not import torch. A profile equals that of the loaded data
    (:meth:`fedapps.tasks.base.NodeData.profile`), but no tensors, models or images are created to determine it.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    #: The metrics of the short table, most important first.
    headline: ClassVar[tuple[str, ...]]
    #: The references (:meth:`fedapps.tasks.base.Task.references`) that a trained model should exceed.
    floors: ClassVar[tuple[str, ...]] = ()
    #: The files of the data that people have, each with its columns or content and their units, as in docs/data.md.
    files: ClassVar[Mapping[str, str]] = {}
    #: Increase this number when :meth:`make_world` writes different data for the same options: it invalidates caches.
    world_version: ClassVar[int] = 1

    def __init__(self, options: Any = None) -> None:
        #: A frozen instance of ``Options``; by default with all default values.
        self.options: Any = self.Options() if options is None else options

    def __eq__(self, other: object) -> bool:
        """Tasks with equal options are equal, because a task holds nothing else; they share cached data."""
        return type(self) is type(other) and self.options == other.options

    def __hash__(self) -> int:
        return hash((type(self), self.options))

    def under(self, privacy: PrivateParameters) -> Self:
        """Return the task as seen by the nodes of a method; most tasks return themselves.

        Parameters
        ----------
        privacy : PrivateParameters
            The parameters that the method keeps on the nodes.

        Raises
        ------
        DataError
            The task's options are incompatible with ``privacy``.
        """
        return self

    @property
    def roles(self) -> ModelRoles:
        """The roles of the model's parameters; by default it has no head."""
        return ModelRoles()

    @classmethod
    def found_keys(cls, values: Mapping[str, object], folder: Path) -> tuple[Mapping[str, str | int], str]:
        """Return options that a simulation finds in the data of all nodes, where they are not given.

        Parameters
        ----------
        values : mapping
            The given options by key, without the prefix of the task; they may be invalid.
        folder : Path
            The folder of the data.

        Returns
        -------
        mapping and str
            The values by key, and a line for the user; both empty if nothing is to be found, as for most tasks.

        Raises
        ------
        DataError
            The data are missing or malformed.
        """
        return {}, ""

    @property
    def has_world(self) -> bool:
        """Whether :meth:`make_world` can simulate data when none are given."""
        return True

    @property
    def world_options(self) -> Mapping[str, object]:
        """The options that :meth:`make_world` depends on; all options, unless a task overrides this."""
        return asdict(self.options)

    @abstractmethod
    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate data for ``num_nodes`` nodes and write them into ``folder`` in the format of the real data."""

    @abstractmethod
    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        """The profile of one node; parameters and errors are those of :meth:`fedapps.tasks.base.Task.load_node`."""

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        """Return in one line what the files of a folder are taken for: splits, classes or columns, and units.

        Runs and ``check-node`` print it before they start. By default it is empty.

        Parameters
        ----------
        folder : Path
            The folder of the data.
        own : bool
            Whether it is the folder of one deployed node, and not that of all nodes.

        Raises
        ------
        DataError
            As :meth:`own_profile`.
        """
        return ""

    def own_files(self, folder: Path, partition: int, num_partitions: int) -> Sequence[Path]:
        """Return the files in ``folder`` with which one node could be deployed; none if nodes share files.

        Parameters and errors are those of :meth:`node_profile`.
        """
        return ()

    @abstractmethod
    def own_profile(self, folder: Path) -> NodeProfile:
        """Return the profile of a deployed node, whose own data are in ``folder``.

        Raises
        ------
        DataError
            As :meth:`fedapps.tasks.base.Task.load_own`.
        """
