"""A node that took no part in a run fits its personal part to its own data, and gets a model.

It starts from what the method's strategy would send it after a round; :mod:`fedapps.clients.new_node` says what it
trains. Nothing is written into the folder of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedapps.app.node import choose_device
from fedapps.app.round_config import RoundConfigs
from fedapps.app.strategy import build_strategy
from fedapps.clients.arrays import matches
from fedapps.clients.guard import Guard
from fedapps.clients.new_node import NewNode
from fedapps.clients.settings import RoundSettings, received_arrays
from fedapps.clients.state import ContextState
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.registry.tasks import task_class
from fedapps.sim.flower_internals import flower_identity
from fedapps.strategies import BaseStrategy, Profile
from fedapps.strategies.arrays import to_record
from fedapps.strategies.wire import ARRAYS, CONFIG
from fedapps.tasks.base import NodeData
from fedapps.tasks.model_folder import StoredModel
from fedapps.tasks.trained import TrainedModel, trained_class

from .load import check_same, origin_of, shared_model, threads_kept
from .stored_run import StoredRun


def adapt(
    run: str | Path,
    data_dir: str | Path,
    method: str | None = None,
    *,
    epochs: int,
    learning_rate: float = 0.0,
    round: int | str | None = None,
    device: str = "auto",
    output: str | Path | None = None,
) -> TrainedModel:
    """Let a node that took no part in a run fit its personal part to its data, as ``python -m fedapps adapt``.

    The node starts from what the method would send it, and from the initial private parameters. It trains the
    parameters that the method does not share, with the shared ones frozen; where all are shared, it trains all. The
    settings are those of local training, or those with which the method personalises before an evaluation.

    Parameters
    ----------
    run : str or Path
        A run folder, or the model folder of a shared model.
    data_dir : str or Path
        The node's data, in the format of a deployed node's folder.
    method, round, device
        As in :func:`fedapps.load`.
    epochs : int
        ≥ 0, passes over the node's training data; 0 gives the model that the node receives.
    learning_rate : float
        Above 0, in place of the method's; 0 = the method's.
    output : str or Path, optional
        Where to write the model folder.

    Returns
    -------
    TrainedModel
        Of the task's class; ``origin.metrics`` are its metrics on the node's own data.

    Raises
    ------
    ValueError
        Before training, if an argument is out of range, the run, the method or the round is unknown, the data are
        missing or malformed, a model folder lacks what the method sends beside its model, or ``output`` is a folder
        with other content.
    """
    if epochs < 0 or not learning_rate >= 0:
        raise ValueError(f"epochs = {epochs}, learning-rate = {learning_rate:g}: both must be at least 0")
    torch_device, path, folder = choose_device(device), Path(run).expanduser(), Path(data_dir).expanduser()
    if not folder.is_dir():
        raise ValueError(f"data-dir = {str(data_dir)!r}: no such folder; give the folder with the node's data")
    with flower_identity():
        start = _of_folder(path, method, round) if StoredModel.is_in(path) else _of_run(path, method, round)
        if output is not None:
            trained_class(start.example.task).check_replaceable(output)
        data = start.data(folder)
        message = start.message(data, epochs)
    with threads_kept():
        torch.set_num_threads(start.config.run.node_cpus)
        node, settings = start.node(data, message, torch_device)
        adapted = node.adapt(received_arrays(message), settings, learning_rate)
    model = start.model(adapted.model, data, epochs)
    model.origin = replace(model.origin, metrics=model.evaluate())
    if output is not None:
        model.save(output)
    return model


@dataclass(frozen=True)
class _Start:
    """What a new node starts from.

    Parameters
    ----------
    config : Config
        Of the run.
    label : str
        Of the method.
    strategy : BaseStrategy
        In the state after the round.
    arrays : ArrayRecord
        The shared parameters after the round.
    example : TrainedModel
        Without weights that matter: its origin, and how it reads data.
    """

    config: Config
    label: str
    strategy: BaseStrategy
    arrays: ArrayRecord
    example: TrainedModel

    def data(self, folder: Path) -> NodeData:
        """The node's own data, read as a shared model reads them, or else as a node with private parameters does."""
        private = self.config.methods[self.label].private(self.config.task).patterns
        return self.example.task.load_own(folder) if private else self.example.data(folder)

    def message(self, data: NodeData, epochs: int) -> Message:
        """What the strategy sends to a node with these data."""
        origin = self.example.origin
        config = RoundConfigs(self.config, self.label, origin.run).new_node(origin.round, epochs)
        profile = Profile(1, data.key, data.count("train"), data.groups)
        return self.strategy.evaluate_message(origin.round, profile, self.arrays, config)

    def node(self, data: NodeData, message: Message, device: torch.device) -> tuple[NewNode, RoundSettings]:
        """The node with the method's local parts, and the settings of the message."""
        run, method = self.config.run_of(self.label), self.config.methods[self.label]
        config = message.content[CONFIG]
        assert isinstance(config, ConfigRecord)
        node = NewNode(
            self.example.task,
            data,
            ContextState(RecordDict()),
            parts=[part.read(config, message.content) for part in method.local_parts()],
            seed=run.seed,
            device=device,
            guard=Guard((method.private(self.config.task).patterns,)),
        )
        return node, RoundSettings(training=run.training).with_config(config)

    def model(self, module: torch.nn.Module, data: NodeData, epochs: int) -> TrainedModel:
        """The trained model of the node."""
        task, examples = self.example.task, data.count("train")
        origin = replace(self.example.origin, node=data.key, examples=examples, adapted_epochs=epochs, metrics={})
        private, files = self.example.private, self.example.files
        return trained_class(task)(task, module, task.facts(data), origin, private=private, files=files, own=data)


def _of_run(path: Path, method: str | None, round: int | str | None) -> _Start:
    stored = StoredRun.open(path)
    label = stored.method(method)
    snapshot = stored.snapshot(label, round)
    of_label = stored.config.methods[label]
    strategy, arrays = stored.restored(label, snapshot, _alone(stored.config.run))
    private = of_label.private(stored.config.task)
    if private.patterns:
        task = stored.config.task_of(of_label)
        example = TrainedModel(task, torch.nn.Module(), {}, origin_of(stored, label, snapshot, ""), private=private)
    else:
        example = shared_model(stored, label, snapshot)
    return _Start(stored.config, label, strategy, arrays, example)


def _of_folder(path: Path, method: str | None, round: int | str | None) -> _Start:
    """Raises ``ValueError`` if the model in a model folder is not all that the method sends to a new node."""
    example = TrainedModel.read(path, task_class)
    origin, private = example.origin, example.private
    check_same(origin, method, None, round)
    if origin.node and not private.patterns:
        raise ValueError(f"{path} has the model of node {origin.node}: give the shared model, or the folder of the run")
    config = parse(origin.settings, on_node=True)
    staying = (*private.patterns, *config.task.fixed)
    state: Mapping[str, torch.Tensor] = example.module.state_dict()
    names = [name for name in state if not matches(name, staying)]
    strategy = build_strategy(replace(config, run=_alone(config.run)), origin.method, state)
    arrays = to_record({name: state[name].detach().cpu().numpy() for name in names})
    message = strategy.evaluate_message(origin.round, Profile.unknown(1), arrays, ConfigRecord())
    if further := message.content.keys() - {ARRAYS, CONFIG}:
        raise ValueError(
            f"{path}: method {origin.method!r} also sends {', '.join(sorted(further))}, which a model folder does not "
            "have; give the folder of the run"
        )
    return _Start(config, origin.method, strategy, arrays, example)


def _alone(run: RunConfig) -> RunConfig:
    return replace(run, num_nodes=1, min_replies=1, held_out_nodes="")
