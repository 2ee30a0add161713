"""What a method of federated learning is: options, a strategy on the server, local parts on the nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from flwr.app import ArrayRecord

from fedapps.base.options import NoOptions, key_of
from fedapps.clients.local_part import LocalPart
from fedapps.clients.settings import LocalTraining
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, BufferedAsync, ServerOptimizer
from fedapps.strategies.optimizers import optimizer_by_name
from fedapps.tasks.base import Task
from fedapps.tasks.profiles import LowRank, ModelRoles, PrivateParameters

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


Scalar = bool | int | float | str
#: The fields of the run config that are involved, and the message.
Conflict = tuple[set[str], str]
#: Whether nodes learn from each other, each node learns alone, or neither: one node has all data, or none trains.
Role = Literal["federated", "alone", "reference"]


def required(run: RunConfig, method: str, why: str, **wanted: Scalar) -> Iterator[Conflict]:
    """What in the keys of a run does not have the value that a method needs; ``why`` is the reason, for the message.

    ``wanted`` are values by the field of the run config or of its local training, such as ``optimizer="sgd"``.
    """

    def shown(value: Scalar) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:g}" if isinstance(value, float) else repr(value)

    for name, value in wanted.items():
        actual = getattr(run if hasattr(run, name) else run.training, name)
        if actual != value:
            message = f"{key_of(name)} = {shown(actual)}: must be {shown(value)} with {method}: {why}"
            yield {name, "methods"}, message


def own_draws(run: RunConfig, setting: str) -> Iterator[Conflict]:
    """Which keys of a run would choose nodes beside a method that does; ``setting`` says how, for the message."""
    if run.sampling == "poisson":
        yield {"methods", "sampling"}, f"sampling = 'poisson': must be 'fixed' with {setting}"
    if run.drop_nodes:
        yield {"methods", "drop_nodes"}, f"drop-nodes = true: must be false with {setting}"


class Method:
    """A method of federated learning. A subclass overrides what differs from FedAvg.

    Its module is the whole method: options, what it cannot be combined with, and what its nodes do. Nothing outside the
    module knows its name. Servers and nodes both build the method from the run config; a message brings only what
    changes from round to round.

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
    summary: ClassVar[str]
    #: Authors, title, year, URL.
    citation: ClassVar[str] = ""
    #: For ``fedapps list --for``, in a few words each: what a node keeps between rounds beside private parameters, what
    #: travels in place of the shared parameters, the computation of a node, and for which data the method is made.
    keeps: ClassVar[str] = ""
    sends: ClassVar[str] = ""
    work: ClassVar[str] = "as FedAvg"
    good_for: ClassVar[str] = ""
    #: The size of a TRAIN message and of its reply, in sizes of the shared arrays, with the further records.
    message_sizes: ClassVar[tuple[float, float]] = (1.0, 1.0)
    #: Other names, each with the arguments that it stands for, such as ``{"fedavg-ewc": "ewc(local=false)"}``.
    aliases: ClassVar[Mapping[str, str]] = {}
    #: A frozen dataclass of ``fedapps.base.options.option`` fields; ``fedprox.mu`` is the key of the field ``mu``.
    Options: ClassVar[type[Any]] = NoOptions
    #: The strategy on the server.
    Strategy: ClassVar[type[BaseStrategy]] = BaseStrategy
    #: Whether noise that nodes add to their arrays (``dp = "local"``) covers all that the strategy takes from a reply.
    covered_by_local_noise: ClassVar[bool] = False
    #: The task that the method is made for; empty for all tasks.
    task: ClassVar[str] = ""
    #: Whether one node trains on the data of all nodes, which is possible only in simulation.
    pools_data: ClassVar[bool] = False
    #: Whether the method needs data in stages (continual learning).
    needs_stages: ClassVar[bool] = False
    #: What the task's model must have (:mod:`fedapps.tasks.base`): "head", "body", "features", "classes",
    #: "normalisation", "factors".
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether :meth:`private` builds the task's model, which can need files.
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

    # -- what it cannot be combined with ---------------------------------------------------------------------------

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        """What in the run config or the task rules the method out, before anything runs."""
        yield from ()

    def privacy_conflict(self, dp: str) -> str:
        """Why the method cannot be combined with a kind of differential privacy; empty if it can.

        Under "local", neither metrics nor further records of the local parts leave a node, and all nodes have
        ``num-examples`` 1: a method that needs more must say so here.
        """
        return "" if self.covered_by_local_noise and dp == "local" else self.Strategy.privacy_gap

    def robustness_conflict(self) -> str:
        """Why a robust aggregation does not protect the method from Byzantine nodes; empty if it does."""
        return self.Strategy.robustness_gap

    def compression_conflict(self) -> str:
        """Why nodes cannot compress their updates under the method; empty if they can."""
        return self.Strategy.compression_gap

    def secrecy_conflict(self) -> str:
        """Why the method needs more than the sum of the updates (``secure-aggregation``); empty if it does not."""
        return self.Strategy.secrecy_conflict()

    # -- server --------------------------------------------------------------------------------------------------

    def private(self, task: Task) -> PrivateParameters:
        """The parameters that never leave their node. Set :attr:`needs_model` if this builds the task's model."""
        return PrivateParameters()

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """The part of the initial model that the strategy starts from."""
        return arrays

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        """The strategy with the common parts of the run."""
        return parts.build(self.Strategy)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def training(self, training: LocalTraining) -> LocalTraining:
        """The settings of local training in place of those of the run."""
        return training

    def local_parts(self) -> Sequence[LocalPart]:
        """The local algorithms of a node, built from the options, in the order in which they act."""
        return ()
