"""What a task says of its nodes and of its model: profiles, private parameters, and the roles of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
