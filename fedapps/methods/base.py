"""What a method of federated learning is: options, a strategy on the server, local parts on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.app import ArrayRecord

from fedapps.base.options import NoOptions, key_of
from fedapps.strategies import BaseStrategy
from fedapps.tasks.profiles import PrivateParameters

from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles

Scalar = bool | int | float | str
#: The fields of the run config that are involved, and the message.
Conflict = tuple[set[str], str]
#: Whether nodes learn from each other, each node learns alone, or neither: one node has all data, or none trains.
Role = Literal["federated", "alone", "reference"]


@dataclass(frozen=True)
class Round:
    """A round as a method sees it, when the config of its messages is made.

    Parameters
    ----------
    run : RunConfig
    number : int
        Counted from 1.
    message : "train" or "evaluate"
    """

    run: RunConfig
    number: int
    message: Literal["train", "evaluate"]


def required(run: RunConfig, method: str, why: str, **wanted: Scalar) -> Iterator[Conflict]:
    """What in the keys of a run, by field, does not have the value that a method needs.

    Parameters
    ----------
    run : RunConfig
    method, why : str
        Its name and the reason, for the message.
    **wanted
        Values by the field of the run config or of its local training, such as ``optimizer="sgd"``.
    """

    def shown(value: Scalar) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:g}" if isinstance(value, float) else repr(value)

    for name, value in wanted.items():
        given = getattr(run if hasattr(run, name) else run.training, name)
        if given != value:
            said = f"{key_of(name)} = {shown(given)}: must be {shown(value)} with {method}: {why}"
            yield {name, "methods"}, said


class Method:
    """A method of federated learning. A subclass overrides what differs from FedAvg.

    The class is the whole method: nothing outside its module knows its name. The module must not import torch at
    its top; :meth:`local_parts` is called on nodes and imports what it needs.

    Parameters
    ----------
    options : Options, optional
        An instance of :attr:`Options`; the defaults if missing.
    **arguments
        Options by field, in place of ``options``: ``FedProx(mu=0.1)``.
    """

    #: The name in run configs, tables and folders.
    name: ClassVar[str]
    #: One line of help.
    line: ClassVar[str]
    #: Authors, title, year, URL.
    citation: ClassVar[str] = ""
    #: For ``fedapps list --for``, in a few words each: what a node keeps between rounds beside private parameters, what
    #: travels in place of the shared parameters, the computation of a node, and for which data the method is made.
    keeps: ClassVar[str] = ""
    sends: ClassVar[str] = ""
    work: ClassVar[str] = "as FedAvg"
    helps: ClassVar[str] = ""
    #: The size of a TRAIN message and of its reply, in sizes of the shared arrays, with the further records.
    copies: ClassVar[tuple[float, float]] = (1.0, 1.0)
    #: Other names, each with the arguments that it stands for, such as ``{"fedavg-ewc": "ewc(local=false)"}``.
    aliases: ClassVar[Mapping[str, str]] = {}
    #: A frozen dataclass of ``fedapps.base.options.option`` fields; ``fedprox.mu`` is the key of the field ``mu``.
    Options: ClassVar[type[Any]] = NoOptions
    #: The task that the method is made for; empty for all tasks.
    task: ClassVar[str] = ""
    #: Whether one node trains on the data of all nodes, which is possible only in simulation.
    pools_data: ClassVar[bool] = False
    #: Whether the method needs data in stages (continual learning).
    needs_stages: ClassVar[bool] = False
    #: What the task's model must have (:mod:`fedapps.tasks.roles`): "head", "body", "features", "classes",
    #: "normalisation", "factors".
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether :meth:`private` builds the task's model; a profile query then imports torch.
    needs_model: ClassVar[bool] = False
    #: Keys of the run that ``fedapps tune`` searches for this method, beside its own options that have a search range.
    tuned_keys: ClassVar[tuple[str, ...]] = ("learning-rate",)
    #: Names of QUERY messages that the local parts answer, beside ``profile``.
    queries: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: Any = None, **arguments: Any) -> None:
        self.options: Any = self.Options(**arguments) if options is None else options

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.options == other.options

    def __hash__(self) -> int:
        return hash((type(self), self.options))

    @property
    def role(self) -> Role:
        """The part of the method in a report, which compares the federated methods with nodes that train alone."""
        return "reference" if self.pools_data else "federated"

    # -- server --------------------------------------------------------------------------------------------------

    def private(self, task: TaskProfiles) -> PrivateParameters:
        """The parameters that never leave their node.

        Where they depend on the modules of the task's model, set :attr:`needs_model`; ``task`` is then the whole task.
        """
        return PrivateParameters()

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """The part of the initial model that the strategy starts from."""
        return arrays

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        """The strategy with the common parts of the run."""
        return parts.build(BaseStrategy)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        """Further keys of the config of this round's messages; the local parts read them."""
        return {}

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        """What in the run config or the task rules the method out, before anything runs."""
        yield from ()

    def privacy_conflict(self, dp: str) -> str:
        """Why the method cannot be combined with a kind of differential privacy; empty if it can.

        Under "local", neither metrics nor further records of the local parts leave a node, and all nodes have
        ``num-examples`` 1: a method that needs more must say so here.
        """
        return ""

    def robustness_conflict(self) -> str:
        """Why a robust aggregation does not protect the method from Byzantine nodes; empty if it does."""
        return ""

    def compression_conflict(self) -> str:
        """Why nodes cannot compress their updates under the method; empty if they can."""
        return ""

    # -- nodes ---------------------------------------------------------------------------------------------------

    def local_parts(self) -> Sequence[LocalPart]:
        """The local algorithms of a node, in the order in which they act; they read their settings from messages."""
        return ()
