"""A trained model with what it needs to be used: its task, the facts beside the weights, and where it comes from.

Nothing here needs Flower: a robot reads a model folder with :meth:`TrainedModel.read` and PyTorch alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import sleep
from typing import Any, ClassVar, Self, TextIO

import torch
from torch import nn

from fedapps.base.atomic import check_replaceable, whole_folder
from fedapps.base.options import option_values
from fedapps.base.text_files import shown

from . import model_folder
from .answers import Network, Pretrained, network_of
from .base import DataError, Metrics, NodeData, Task, evaluated
from .partitioners import added_logits, adjust_logits
from .profiles import PrivateParameters

_MOST_THREADS = 1024
#: How often a model folder is read at most if others take its place meanwhile, and the seconds between two times.
_READS, _PAUSE = 5, 0.05


@dataclass(frozen=True)
class Origin:
    """Where a model comes from. All values can be written as JSON.

    Parameters
    ----------
    run, method : str
        The name of the run and the label of the method; empty for a model that was not trained here.
    node : str
        The key of the node whose model it is; empty for the shared model.
    round, stage, rounds : int
        The round after which the model is taken, its stage from 0, and the rounds of the run.
    seed : int
        The seed of the run, from which evaluation draws.
    nodes : int
        The number of nodes that took part; 0 if unknown, as on a deployed node.
    examples : int
        Their training examples; 0 if unknown.
    adapted_epochs : int
        Epochs in which ``node``, which took no part in the rounds, fitted its personal part; 0 for other models.
    metrics : mapping
        What the run reported for this model, by metric.
    spread : mapping
        By metric, the unweighted ``mean`` over the ``nodes`` that the run evaluated after this round, and the limits
        ``low`` and ``high`` of its 95 % confidence interval (Student's t); no limits with one node.
    guarantee : str
        What the run guarantees about differential privacy, as a sentence; empty if nothing, or if it is unknown.
    versions : mapping of str to str
        Versions of fedapps, torch and Flower.
    settings : mapping
        The flat run config.
    """

    run: str = ""
    method: str = ""
    node: str = ""
    round: int = 0
    stage: int = 0
    rounds: int = 0
    seed: int = 0
    nodes: int = 0
    examples: int = 0
    adapted_epochs: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guarantee: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The origin from its dictionary. Names of other versions of fedapps are left out.

        Raises
        ------
        ValueError
            A value is of another type, or a number is below 0.
        """
        values: dict[str, Any] = {}
        for declared in fields(cls):
            if declared.name not in stored:
                continue
            kind = dict if declared.default is MISSING else type(declared.default)
            values[declared.name] = value = model_folder.field_of(stored, declared.name, kind)
            if kind is int and value < 0:
                raise ValueError(f"origin.{declared.name} = {value}: must be at least 0")
        for name, members in (
            ("metrics", (int, float, list)), ("spread", (dict,)), ("versions", (str,)),
            ("settings", (bool, int, float, str)),
        ):  # fmt: skip
            _check_members(f"origin.{name}", values.get(name, {}), members)
        for name, limits in values.get("spread", {}).items():
            _check_members(f"origin.spread.{name}", limits, (int, float))
        for name, numbers in values.get("metrics", {}).items():
            if isinstance(numbers, list):
                _check_members(f"origin.metrics.{name}", dict(enumerate(numbers)), (int, float))
        threads = values.get("settings", {}).get("node-cpus", 1)
        if type(threads) is not int or not 1 <= threads <= _MOST_THREADS:
            raise ValueError(f"origin.settings.node-cpus = {threads!r}: must be a number from 1 to {_MOST_THREADS}")
        return cls(**values)


def _check_members(name: str, table: Mapping[Any, object], kinds: tuple[type, ...]) -> None:
    for key, value in table.items():
        if type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{name}.{key} = {shown(value)}: must be of type {expected}")


class TrainedModel:
    """A trained model of a task. Tasks with a verb, such as ``predict``, have a subclass of it.

    Parameters
    ----------
    task : Task
        As the nodes of the method see it.
    module : Module
        Its weights are loaded. It is put into evaluation mode.
    facts : mapping
        What the model and its inputs need beside the options (:meth:`fedapps.tasks.base.Task.facts`).
    origin : Origin
    private : PrivateParameters
        What the method kept on the nodes; ``task`` is the task under it.
    files : Path, optional
        The folder with further files of the model (:meth:`save_files`), where it was read from a model folder.
    own : NodeData, optional
        The data of the model's node in the run, where it was loaded from a run; never saved.
    """

    #: What Hugging Face calls the use of these models, such as "text-classification"; empty if it has no name for it.
    pipeline_tag: ClassVar[str] = ""
    #: The names of all files that :meth:`save_files` can write, with the largest sizes that are read, in bytes.
    file_sizes: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        facts: Mapping[str, Any] | None = None,
        origin: Origin = Origin(),
        *,
        private: PrivateParameters = PrivateParameters(),  # noqa: B008 - immutable
        files: Path | None = None,
        own: NodeData | None = None,
    ) -> None:
        self.task = task
        self.module = module.eval()
        self.facts: Mapping[str, Any] = facts or {}
        self.origin = origin
        self.private = private
        self.files = files
        self.own = own

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return next((tensor.device for tensor in self.module.parameters()), torch.device("cpu"))

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, and return it."""
        self.module.to(device)
        return self

    def data(self, folder: str | Path, partition: int | None = None, num_partitions: int = 1) -> NodeData:
        """Read data as this model reads them.

        Parameters
        ----------
        folder : str or Path
            In the format of a node's own data; with ``partition``, the data of ``num_partitions`` nodes.
        partition : int, optional
            The index of the node, from 0.
        num_partitions : int

        Raises
        ------
        DataError
            Files are missing or malformed, or the model cannot be used with them.
        """
        path = Path(folder).expanduser()
        if partition is None:
            return self.task.load_own(path)
        return self.task.load_node(path, partition, num_partitions)

    def evaluate(self, data: NodeData | str | Path | None = None, *, final: bool = True) -> Metrics:
        """Return the task's metrics of this model.

        The random draws and the number of threads are those of the run, so that a node's own data give the metrics that
        the run reported for it, to the bit.

        Parameters
        ----------
        data : NodeData, str or Path, optional
            As :meth:`data` returns it, or a folder in the format of a node's own data. By default :attr:`own`.
        final : bool
            Whether to compute the costly metrics as well, such as closed-loop simulation. A run does so in its last
            round.

        Raises
        ------
        DataError
            As :meth:`data`, or there is no data.
        """
        if data is None:
            if self.own is None:
                raise DataError("data: give data, because the model comes from no node whose data are here")
            data = self.own
        node_data = data if isinstance(data, NodeData) else self.data(data)
        threads = torch.get_num_threads()
        torch.set_num_threads(int(self.origin.settings.get("node-cpus", threads)))
        try:
            return evaluated(self.task, self.module, node_data, run_seed=self.origin.seed, final=final).metrics
        finally:
            torch.set_num_threads(threads)

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = 128) -> Iterator[dict[str, Any]]:
        """Yield the model's answer to each example of files, as ``fedapps predict`` writes them.

        A classifier with the added logits of its node adds them, as in its evaluation on the node's own examples.

        Parameters
        ----------
        inputs : sequence of Path or text stream
            CSV, JSON lines or images, as the task says.
        batch_size : int
            ≥ 1.

        Yields
        ------
        dict
            One for each example, in order; its values can be written as JSON.

        Raises
        ------
        DataError
            A file is missing or malformed, or the task has no answers to single examples.
        """
        raise NotImplementedError(f"task {self.task.name!r} has no predictions for single examples: use evaluate")

    def network(self, example: NodeData | None = None) -> Network:
        """Return what ``fedapps export`` exports. It answers as :meth:`rows` does.

        Parameters
        ----------
        example : NodeData, optional
            Data of the task. By default a task gives the shapes of the inputs itself.

        Raises
        ------
        ValueError
            The task does not know its inputs and there is no ``example``, or nothing of it computes with tensors alone.
        """
        if example is None:
            raise ValueError(
                f"task {self.task.name!r} does not describe its inputs: give data, from which they are read"
            )
        return network_of(self.task, self.module, example)

    def save(self, folder: str | Path) -> Path:
        """Write the model folder, from which :meth:`read` makes the same model on any machine.

        It is written completely or not at all. A folder that exists is replaced if it is empty, or if it is a model
        folder of fedapps with no other files in it. What was not written here, such as a card or the tokenizer of a
        Hugging Face model, is never deleted.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        ValueError
            The folder exists and has other content, which the message names, or the name is that of a file or a link.
        UnwritableError
            It cannot be written.
        """
        path = Path(folder).expanduser()
        with whole_folder(path, self._foreign()) as unfinished:
            self.write(unfinished)
        return path

    @classmethod
    def check_replaceable(cls, folder: str | Path) -> None:
        """Check that :meth:`save` may write a folder, before the model is trained; errors are the same."""
        check_replaceable(Path(folder).expanduser(), cls._foreign())

    @classmethod
    def _foreign(cls) -> Callable[[Path], list[str]]:
        """What returns the names in a folder that are not from a model folder."""
        return partial(model_folder.foreign_names, known=cls.file_sizes)

    def write(self, folder: Path) -> None:
        """Write the files of the model folder into ``folder``, which exists; use :meth:`save` unless you add files."""
        self.write_files(folder)
        added = added_logits(self.module)
        stored = model_folder.StoredModel(
            self.task.name,
            option_values(self.task.options),
            self.private,
            self.facts,
            asdict(self.origin),
            () if added is None else tuple(added.tolist()),
        )
        stored.write(folder, self.module.state_dict())

    def save_files(self, folder: Path) -> None:
        """Write into ``folder``, which is empty, what the task's ``model_of`` needs beside the facts, such as a
        tokenizer, under the names in :attr:`file_sizes`; by default nothing.

        Write what was read, and do not copy files: a model folder from elsewhere can have any files.
        """

    def write_files(self, folder: Path) -> bool:
        """Write the folder ``files`` of a model folder into ``folder``; return whether there is anything to write."""
        (folder / model_folder.FILES).mkdir()
        self.save_files(folder / model_folder.FILES)
        has_files = any((folder / model_folder.FILES).iterdir())
        if not has_files:
            (folder / model_folder.FILES).rmdir()
        return has_files

    def keep_index(self, images: Path) -> None:
        """Keep the index of images of known places with the model. Raise ``ValueError`` if the task has no index."""
        raise ValueError(f"task {self.task.name!r} has no index of places")

    def pretrained(self) -> Pretrained | None:
        """Return the model as one of the library transformers; ``None`` if it is none of them."""
        return None

    @classmethod
    def read(
        cls, folder: str | Path, find_task: Callable[[str], type[Task]], device: str | torch.device = "cpu"
    ) -> "TrainedModel":
        """Read a model folder.

        Parameters
        ----------
        folder : str or Path
            As :meth:`save` wrote it.
        find_task : function of a name
            Gives the class of a task (:func:`fedapps.registry.tasks.task_class`).
        device : str or torch.device

        Returns
        -------
        TrainedModel
            Of the task's class.

        Raises
        ------
        ModelFolderError
            The folder is no model folder, malformed, damaged or of another version, or it has a link, a special file or
            a file that is too large. The message names the file. Or another model took its place at each attempt to
            read it.
        """
        path = Path(folder).expanduser()
        for _ in range(_READS):
            before = model_folder.identity(path)
            try:
                model = cls._read_once(path, find_task)
            except (OSError, ValueError):
                if model_folder.identity(path) == before:
                    raise
            else:
                if model_folder.identity(path) == before:
                    return model.to(device)
            sleep(_PAUSE)  # for an instant, a folder that is replaced has another name
        raise model_folder.ModelFolderError(
            f"{path} was replaced at each of {_READS} attempts to read it: read it when no program writes it"
        )

    @classmethod
    def _read_once(cls, path: Path, find_task: Callable[[str], type[Task]]) -> "TrainedModel":
        """Read a model folder, which may change meanwhile."""
        stored = model_folder.StoredModel.read(path)
        with model_folder.problems_of(path / model_folder.CONFIG):
            task, origin = stored.task(find_task), Origin.read(stored.origin)
            added = stored.added_logits
            if (
                added
                and "classes" in stored.facts
                and len(added) != len(model_folder.texts_of(stored.facts, "classes"))
            ):
                raise ValueError(f"added-logits has {len(added)} numbers: must be one for each class")
        kind = trained_class(task)
        with model_folder.problems_of(path / model_folder.FILES):
            kept = model_folder.further_files(path, kind.file_sizes)
        module = model_folder.built(path, lambda: task.model_of(stored.facts, kept))
        if stored.added_logits:
            adjust_logits(module, torch.tensor(stored.added_logits, dtype=torch.float64))
        with model_folder.problems_of(path / model_folder.FILES):
            return kind(task, module, stored.facts, origin, private=stored.private, files=kept)

    def __repr__(self) -> str:
        origin = self.origin
        whose = f"node {origin.node}" if origin.node else "shared"
        return f"{type(self).__name__}({self.task.name}, {origin.method or 'no method'}, {whose}, round {origin.round})"


def versions() -> dict[str, str]:
    """The versions of fedapps and of what a model depends on; without those that are not installed."""
    installed = {}
    for name in ("fedapps", "flwr", "torch", "numpy"):
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def trained_class(task: Task) -> type[TrainedModel]:
    """The class of a task's trained models (:attr:`fedapps.tasks.base.Task.trained_model`)."""
    module, _, name = task.trained_model.partition(":")
    cls: type[TrainedModel] = getattr(import_module(module), name)
    return cls
