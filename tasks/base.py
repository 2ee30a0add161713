"""The interface of a task: the data of a node, the model, loss and metrics; and what methods ask of it by role.

Tasks do not know Flower. The names that a task needs can all be imported from here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.base.errors import DataError as DataError
from fedapps.base.options import matches
from fedapps.base.seeding import derive_seed, torch_seed

from .profiles import Batch as Batch
from .profiles import Evaluation as Evaluation
from .profiles import MetricRule as MetricRule
from .profiles import Metrics as Metrics
from .profiles import ModelRoles as ModelRoles
from .profiles import NodeData as NodeData
from .profiles import NodeProfile as NodeProfile
from .profiles import PooledMetric as PooledMetric
from .profiles import PrivateParameters as PrivateParameters
from .profiles import Secret as Secret
from .profiles import head_inputs

#: The number of examples behind the metrics of a reference on a node (:meth:`Task.node_references`).
WEIGHT = "num-examples"
_GATHERED = 1 << 20  # bytes of examples that are gathered at once
_NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Task(ABC):
    """A learning problem. One instance serves all nodes of a process, so it holds no data of a node.

    Random draws come from torch's global generator, which the caller seeds for each call
    (:func:`fedapps.base.seeding.torch_seed`). A task keeps no generator.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    #: The metrics of the short table, most important first.
    headline: ClassVar[tuple[str, ...]]
    #: Glob patterns of the metrics of test data common to all nodes, which a node with data of its own may not have.
    common_metrics: ClassVar[tuple[str, ...]] = ()
    #: The references (:meth:`fedapps.tasks.base.Task.references`) that a trained model should exceed.
    floors: ClassVar[tuple[str, ...]] = ()
    #: By main metric, the name and the metric of a rival that every run measures beside the methods, for paired tests.
    rivals: ClassVar[Mapping[str, tuple[str, str]]] = {}
    #: The files of the data that people have, each with its columns or content and their units, for `fedapps list`.
    files: ClassVar[Mapping[str, str]] = {}
    #: Whether the training examples of a node are in the order in which they were recorded.
    in_order: ClassVar[bool] = False
    #: Keys of the options, such as ``labels``, that say what the outputs of the model stand for.
    output_keys: ClassVar[tuple[str, ...]] = ()
    #: Increase this number when :meth:`make_world` writes different data for the same options: it invalidates caches.
    world_version: ClassVar[int] = 1
    #: Whether :meth:`loss` runs under ``torch.func.vmap``. Data-dependent control flow and recurrent layers do not;
    #: for these, the gradients of single examples are computed one by one, and nodes train one after another. Buffers
    #: that are not in the state of the model are constants.
    vectorises: ClassVar[bool] = True
    #: Whether examples differ in shape, such as graphs, so that a batch is padded to its largest example. Nodes then
    #: train one after another, because stacked batches are padded to the largest example of all nodes.
    ragged: ClassVar[bool] = False
    #: Whether the data of a node can lie on a GPU, where every method of the task leaves them. Otherwise each batch is
    #: copied there.
    on_device: ClassVar[bool] = False
    #: How many squared residuals make up the loss of one example, as their mean or as a weighted sum: 1 for the mean
    #: squared error of a single output. 0 for losses that are negative log-likelihoods, such as the cross-entropy. A
    #: squared error is one only up to the variance of the noise, which the Fisher information needs
    #: (:func:`fedapps.clients.fisher.negative_log_likelihood`).
    squared_residuals: ClassVar[int] = 0
    #: How metrics are averaged over nodes, where the mean is not weighted by examples; see :attr:`metric_rules`.
    metric_means: ClassVar[Mapping[str, MetricRule]] = {}
    #: What ``fedapps audit`` attacks, as ``package.module:Class`` of a
    #: :class:`~fedapps.tasks.privacy.sharing.AuditSubject`; empty if the examples have no words.
    audit_subject: ClassVar[str] = ""
    #: The class of the task's trained models, as ``package.module:Class`` of a
    #: :class:`~fedapps.tasks.trained.TrainedModel`, which adds what users do with a model, such as ``predict``.
    trained_model: ClassVar[str] = "fedapps.tasks.trained:TrainedModel"
    #: How the task takes its data from logs of robots, as ``package.module:Class`` of a
    #: :class:`~fedapps.tasks.logs.folder.LogImport`; empty if it cannot.
    log_import: ClassVar[str] = ""

    def __init__(self, options: Any = None) -> None:
        #: A frozen instance of ``Options``; by default with all default values.
        self.options: Any = self.Options() if options is None else options

    def __eq__(self, other: object) -> bool:
        """Tasks with equal options are equal, because a task holds nothing else; they share cached data."""
        return type(self) is type(other) and self.options == other.options

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash, kept because caches ask for it with every message; options do not change."""
        return hash((type(self), self.options))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hash, which differs between processes."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

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
    def metric_rules(self) -> Mapping[str, MetricRule]:
        """``metric_means``, also of the metrics of single stages, such as ``stage-1.test.mse``."""
        stages = [f"stage-{stage}." for stage in range(1, self.num_stages + 1)] if self.num_stages > 1 else []
        return {prefix + name: rule for prefix in ["", *stages] for name, rule in self.metric_means.items()}

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
    def build_model(self) -> nn.Module:
        """Return a newly initialised model on the CPU. Draws come from torch's global generator."""

    def build_model_for(self, data: NodeData) -> nn.Module:
        """Return the model of one node, whose private parameters may have shapes that fit the node's data."""
        return self.build_model()

    def model_key(self, data: NodeData) -> Hashable | None:
        """Return what of a node's data :meth:`build_model_for` uses, so that equal keys stand for equal models.

        A process builds the models of a key once and hands out copies. ``None`` builds each of them anew, as by default
        where a task overrides :meth:`build_model_for`.
        """
        return () if type(self).build_model_for is Task.build_model_for else None

    def words(self, data: NodeData) -> tuple[str, ...]:
        """Return what the rows of a node's private parameters stand for, such as words, where their number follows the
        node's data; by default nothing.
        """
        return ()

    def knowing(self, words: tuple[str, ...]) -> Self:
        """Return the task for a node whose private parameters have rows for these words already.

        They come first among :meth:`words`, whatever the node's data have now; new words follow them. By default the
        task itself.
        """
        return self

    def within(self, data: NodeData, start: int, end: int, *, test: bool) -> NodeData:
        """Return data with the training examples from ``start`` to ``end`` alone, and those behind as test, if wanted.

        A task with examples in order that describes them in ``data.extra``, too, changes it alike.
        """
        train = data.splits["train"]
        splits = {**data.splits, "train": {name: tensor[start:end] for name, tensor in train.items()}}
        if test:
            splits["test"] = {name: tensor[end:] for name, tensor in train.items()}
        return replace(data, splits=splits)

    def facts(self, data: NodeData | None) -> Mapping[str, Any]:
        """Return what a trained model and its inputs need beside the options, such as the words of a vocabulary.

        Parameters
        ----------
        data : NodeData, optional
            That of the model's node; of any node, or ``None`` if there is none here, for a model that all nodes share.

        Returns
        -------
        mapping
            It can be written as JSON, and it is written into the model's folder.
        """
        return {}

    def model_of(self, facts: Mapping[str, Any], files: Path | None) -> nn.Module:
        """Return a module whose weights are loaded afterwards: it has the right shapes, and reads no data and no file
        but those in ``files``.

        It is first called with torch's default device ``meta``
        (:func:`fedapps.tasks.model_folder.without_memory`), so that it must not compute with the values of tensors.

        Parameters
        ----------
        facts : mapping
            As :meth:`facts` returned them, or what a stranger wrote in their place.
        files : Path, optional
            The further files of the model's folder (:meth:`fedapps.tasks.trained.TrainedModel.save_files`), if there
            are any.

        Raises
        ------
        ValueError
            The facts or the files are malformed, or do not describe a model of this task.
        """
        return self.build_model()

    @property
    def fixed(self) -> tuple[str, ...]:
        """Glob patterns of parameters that are never trained. Every node builds them itself: they are neither sent nor
        stored.
        """
        return ()

    @property
    def fixed_digest(self) -> str:
        """What tells apart the values of :attr:`fixed`, such as a hash; nodes with another one than the server's are
        refused. Empty if all nodes draw the values from the seed of the run.
        """
        return ""

    @property
    def fixed_source(self) -> str:
        """The key and the file that the values of :attr:`fixed` come from, for the message."""
        return ""

    @property
    def num_stages(self) -> int:
        """The number of data stages that every node meets in sequence; 1 except in continual learning."""
        return 1

    #: Values of options with which the task holds out training examples for validation, by field: ``fedapps tune`` sets
    #: them where the data have no validation split of their own.
    validation_options: ClassVar[Mapping[str, object]] = {}

    @property
    def validation_metric(self) -> str:
        """The metric on validation data by which settings are chosen, such as ``validation.mse``.

        In a task with stages it is that of the current stage; settings are chosen by its average over the stages.

        Raises
        ------
        DataError
            The task, or its options, give no validation data. The message says what to do.
        """
        raise DataError(
            f"task {self.name!r} has no validation data: settings cannot be tuned, because test data must not choose "
            "them (a task with validation data defines validation_metric and without_test)"
        )

    def without_test(self, data: NodeData) -> NodeData:
        """Return a node's data without its test data, on which :meth:`evaluate` then reports no metric.

        A task with test data in ``data.extra`` drops them, too.
        """

        def kept(splits: Mapping[str, Batch]) -> Mapping[str, Batch]:
            return {name: examples for name, examples in splits.items() if name != "test"}

        return replace(data, splits=kept(data.splits), stages=tuple(kept(splits) for splits in data.stages))

    @property
    def longest_epoch(self) -> int:
        """The maximum number of examples per epoch; 0 if an epoch covers all examples, as in most tasks."""
        return 0

    @property
    def num_classes(self) -> int:
        """The number of classes if the loss is the cross-entropy of the model's output, the logits ``[b, classes]``,
        with the tensor ``label``; 0 for other tasks.
        """
        return 0

    @property
    def can_collect(self) -> bool:
        """Whether :meth:`collect` can gather new experience. Most tasks only learn from given data."""
        return False

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """What of a batch ``fedapps audit`` tries to reconstruct from an update, first what matters most; by default
        nothing.
        """
        return ()

    def check_nodes(self, num_nodes: int) -> None:
        """Raise :class:`DataError` if the options do not allow this number of nodes, before any data are read."""
        return

    def sizes(self, data: NodeData) -> Mapping[str, int]:
        """Return the size of a node's data by the name of what is counted; by default the number of examples of each
        split.
        """
        return {f"{split} examples": data.count(split) for split in data.splits}

    def remarks(self, folder: Path, num_nodes: int) -> Sequence[str]:
        """Return remarks about the data of ``num_nodes`` nodes as lines of text, for the table of nodes."""
        return ()

    def references(self, folder: Path) -> Mapping[str, Mapping[str, float]]:
        """Return floors and ceilings: what is scored on the data of all nodes without training.

        Parameters
        ----------
        folder : Path
            The folder with the data of all nodes.

        Returns
        -------
        mapping of str to mapping of str to float
            Metrics, named as those of :meth:`evaluate`, by the name of the reference, such as "constant sentence".
            ``floors`` has the names of those that are floors.
        """
        return {}

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """Return what each node measures for floors and ceilings, by their name, in the order of the nodes.

        Metrics are those of :meth:`evaluate`, and are combined over nodes as theirs are. In a task with stages, those
        of stage j have the prefix ``stage-<j>.``. ``num-examples`` is the weight of a node where the run
        weighs nodes by their examples; 1 without it. Parameters and errors are those of :meth:`load_node`.
        """
        return {}

    def nodes_in(self, folder: Path, num_nodes: int) -> Iterator[NodeData]:
        """Yield the data of each node (:meth:`load_node`)."""
        for partition in range(num_nodes):
            yield self.load_node(folder, partition, num_nodes)

    @abstractmethod
    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        """Read the data of one node.

        Parameters
        ----------
        folder : Path
            The folder with the data of all nodes.
        partition : int
            The index of the node, from 0.
        num_partitions : int
            The number of nodes.

        Raises
        ------
        DataError
            Files are missing or malformed, or the folder holds data for fewer nodes.
        """

    def outline_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        """Return the data of one node as far as its size, labels and groups need, checked without reading all of it.

        Tables of nodes and dry runs use it. Inputs may be placeholders of the right shape, and ``extra`` may lack
        entries. By default it is :meth:`load_node`, whose parameters and errors it has.
        """
        return self.load_node(folder, partition, num_partitions)

    @abstractmethod
    def load_all(self, folder: Path) -> NodeData:
        """Read everything in ``folder`` as one node: the pooled data of centralised training, or a deployed node's own
        data.
        """

    def load_own(self, folder: Path) -> NodeData:
        """Read the folder of a deployed node. Raise :class:`DataError` if that requires the data of other nodes."""
        return self.load_all(folder)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        """That of the loaded data, where a task does not find it out with less work."""
        return self.load_node(folder, partition, num_partitions).profile()

    def has_common_test(self, folder: Path) -> bool:
        """Whether a deployed node's folder has the test data that :attr:`common_metrics` need."""
        return False

    def own_profile(self, folder: Path) -> NodeProfile:
        """As :meth:`node_profile`."""
        return self.load_own(folder).profile()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean training loss over a batch, a scalar."""

    def drawn_labels(self, model: nn.Module, batch: Batch, temperature: float) -> Batch:
        """Return a batch with labels from the model's likelihood in place of its own, as the true Fisher information
        needs them (:func:`fedapps.clients.fisher.fisher_of_node`).

        Parameters
        ----------
        model : nn.Module
            In evaluation mode.
        batch : mapping of names to tensors
            On the device of the model.
        temperature : float
            T > 0: the loss is T times the negative log-likelihood. A squared error stands for noise of variance T / 2.

        Raises
        ------
        NotImplementedError
            By default.
        """
        raise NotImplementedError(f"task {self.name!r} cannot draw labels from a model")

    def features(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the representation of each example of a batch, ``[n, d]``, with gradients.

        By default it is what the head is given while :meth:`loss` runs, with the mean over further dimensions, such as
        time. Methods use it only where ``roles.features`` is true. Labels are the tensor ``label`` of a batch, from 0
        to :attr:`num_classes` - 1.
        """
        with head_inputs(model, self.roles.head) as features:
            self.loss(model, batch)
        return features()

    def example_losses(self, model: nn.Module, data: NodeData, split: str) -> Tensor:
        """Return the loss of each example of a split alone, ``[n]``, in their order, for ``fedapps audit``.

        Parameters
        ----------
        model : nn.Module
            In evaluation mode.
        data : NodeData
        split : str
        """
        tensors = data.splits[split]
        singles = (
            replace(data, splits={split: {name: tensor[row : row + 1] for name, tensor in tensors.items()}})
            for row in range(data.count(split))
        )
        return torch.stack([self.loss(model, next(self.examples(one, split, 1))) for one in singles])

    @abstractmethod
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Evaluate a model on a node's data.

        Parameters
        ----------
        model : Module
            The model.
        data : NodeData
            The node's data.
        seed : int
            Seed of the evaluation's random draws.
        final : bool
            Whether to compute the costly metrics as well, such as closed-loop simulation.

        Returns
        -------
        Evaluation
            Metrics named ``<split>.<metric>``, and traces.
        """

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield one epoch of a split in random order, drawn from torch's global generator. The last batch may be
        smaller.
        """
        return shuffled(data.splits[split], batch_size)

    def training_batches(self, model: nn.Module, data: NodeData, batch_size: int) -> Iterator[Batch]:
        """Yield one epoch for training ``model``, whose current weights may determine the batches."""
        return self.batches(data, "train", batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield every example of a split once, in an order that is fast to process, without random draws."""
        tensors = data.splits[split]
        for start in range(0, data.count(split), batch_size):
            yield {name: tensor[start : start + batch_size] for name, tensor in tensors.items()}

    def collect(self, model: nn.Module, data: NodeData, *, seed: int) -> Mapping[str, np.ndarray]:
        """Gather new experience with ``model`` in the loop.

        Returns
        -------
        mapping of str to ndarray
            Arrays for :meth:`with_collected`.

        Raises
        ------
        NotImplementedError
            The task only learns from given data.
        """
        raise NotImplementedError(f"task {self.name!r} only learns from given data and cannot collect any")

    def with_collected(self, data: NodeData, collected: Mapping[str, np.ndarray]) -> NodeData:
        """Return ``data`` with collected experience added to its training split."""
        raise NotImplementedError(f"task {self.name!r} only learns from given data and cannot collect any")


def shuffled(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Yield the batches of one epoch of examples in random order, drawn from torch's global generator."""
    tensors = tuple(examples.values())
    count, device = len(tensors[0]), tensors[0].device
    order = torch.randperm(count).to(device)
    # Several small batches are gathered at once, because the call of an operation takes longer than its work.
    example = sum(tensor.nbytes for tensor in tensors) // max(count, 1)
    at_once = batch_size * max(1, _GATHERED // max(batch_size * example, 1))
    for start in range(0, count, at_once):
        rows = order[start : start + at_once]
        parts = [tensor[rows].split(batch_size) for tensor in tensors]
        for batch in zip(*parts, strict=True):
            yield dict(zip(examples, batch, strict=True))


def evaluated(task: Task, model: nn.Module, data: NodeData, *, run_seed: int, final: bool) -> Evaluation:
    """Evaluate a model with the draws of a run: the same in every round and for every method, so that differences
    between them are not noise.
    """
    model.eval()
    with torch_seed(run_seed, "evaluate", data.key):
        evaluation = task.evaluate(model, data, seed=derive_seed(run_seed, "evaluate", data.key), final=final)
    if not isinstance(evaluation, Evaluation):
        raise TypeError(
            f"evaluate of the task {task.name!r} returned {type(evaluation).__name__}: it must return an Evaluation"
        )
    for name, value in evaluation.metrics.items():
        if not isinstance(value, (int, float, list)):
            raise TypeError(
                f"evaluate of the task {task.name!r} gives {name} as {type(value).__name__}: a metric must be a float, "
                "or a list of floats"
            )
    return evaluation


def missing(task: Task, role: str) -> str:
    """Why a task does not have what a method needs; empty if it has it.

    Parameters
    ----------
    task : Task
    role : "head", "body", "features", "examples", "classes", "factors" or "normalisation"
        The last one builds the task's model.
    """
    roles = task.roles
    remedy = f" (set {roles.factors_key})" if roles.factors_key else ""
    reasons = {
        "head": "" if roles.head else "its model has no head",
        "body": "" if roles.body else "its model has no body under a head",
        "features": "" if roles.features else "its model has no representation of single examples",
        "examples": "" if roles.examples else "its examples are mined with the model in training",
        "factors": "" if roles.factors else f"its model has no adapters of low rank{remedy}",
        "classes": "" if task.num_classes else "its examples have no classes",
    }
    if role in reasons:
        return reasons[role]
    return "" if normalisation_names(task) else "its model has no normalisation layers"


@lru_cache(maxsize=32)
def normalisation_names(task: Task) -> tuple[str, ...]:
    """The parameters and buffers of the normalisation modules of a task's model, in the order of its ``state_dict``.

    They are batch, instance, group, layer and RMS normalisation of ``torch.nn``, and subclasses of these. What is never
    trained is left out.
    """
    with torch.random.fork_rng(devices=[]):  # only module types and names matter: leave the caller's draws alone
        model = task.build_model()
    modules = model.named_modules()
    prefixes = tuple(f"{name}." if name else "" for name, module in modules if isinstance(module, _NORMALISATION))
    return tuple(name for name in model.state_dict() if name.startswith(prefixes) and not matches(name, task.fixed))


def with_features(
    task: Task, loss: Callable[[nn.Module, Batch], Tensor], model: nn.Module, batch: Batch
) -> tuple[Tensor, Tensor]:
    """The loss of a batch and the features ``[n, d]`` of its examples, in one pass where the task derives them."""
    if type(task).features is not Task.features:
        return loss(model, batch), task.features(model, batch)
    with head_inputs(model, task.roles.head) as features:
        value = loss(model, batch)
    return value, features()
