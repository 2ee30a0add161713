"""Load a trained model from the folder of a run, or from a model folder.

From a run, the model of a node is what the node evaluates: the message of the evaluation round, the node's private
state, and what the local parts of the method do before an evaluation.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import Context, RecordDict
from torch import nn

from fedapps.app.node import Node, choose_device
from fedapps.app.privacy import guarantee
from fedapps.app.server_app import initial_model
from fedapps.clients.arrays import load_arrays, matches, private_names
from fedapps.clients.base import FederatedClient, PreparedModel
from fedapps.clients.local_part import ComposedParts, LocalPart, composed
from fedapps.clients.settings import received_arrays
from fedapps.clients.state import Attempts, StoredState
from fedapps.registry.tasks import task_class
from fedapps.runs.tracking import stage_of
from fedapps.sim.flower_internals import flower_identity
from fedapps.strategies import Snapshot
from fedapps.strategies.arrays import from_record
from fedapps.tasks.base import DataError, NodeData, Task
from fedapps.tasks.model_folder import StoredModel
from fedapps.tasks.trained import Origin, TrainedModel, trained_class, versions

from .stored_run import StoredRun, first_names

Value = TypeVar("Value")


class NoSharedModelError(ValueError):
    """A method has no model that all nodes share."""


def load(
    run: str | Path,
    method: str | None = None,
    node: str | None = None,
    round: int | str | None = None,
    device: str = "auto",
) -> TrainedModel:
    """Load a trained model.

    The model of a node is the one that the node evaluates in an evaluation round. It has the shared parameters that
    the node receives (under methods with clusters, those of its cluster) and its private parameters, after what the
    method does before an evaluation, such as personalisation. On the node's data it gives the metrics that the run
    reported, to the bit. Simulated data that are not in the ``cache-dir`` of the run are made in ``~/fedapps/worlds``.

    Parameters
    ----------
    run : str or Path
        A run folder, or a model folder (:meth:`fedapps.tasks.trained.TrainedModel.save`).
    method : str, optional
        The label of the method; may be left out if there is only one.
    node : str, optional
        The key of the node. By default the model that all nodes share.
    round : int or "best", optional
        A round whose checkpoint is kept: one of the last two, or the best by ``track-metric``. By default the last.
    device : "auto", "cpu" or "cuda"
        ``auto`` is the device of the run, for a model folder a GPU; the CPU if there is no GPU.

    Returns
    -------
    TrainedModel
        Of the task's class: its module, what users do with it, metrics, provenance.

    Raises
    ------
    ValueError
        The folder, the method, the node or the round is unknown, which the message lists; the method has no model that
        all nodes share; the node took part in no round, so that its private parameters are untrained; a checkpoint or a
        private state is damaged or missing; or the node's data cannot be read, or would have to be simulated for far
        more nodes than the records of the run name. Or a model folder has a link, a special file or a file that is too
        large.
    """
    path = Path(run).expanduser()
    if StoredModel.is_in(path):
        model = TrainedModel.read(path, task_class, choose_device(device))
        check_same(model.origin, method, node, round)
        return model
    return load_from(StoredRun.open(path), method, node, round, device)


def load_from(
    stored: StoredRun,
    method: str | None = None,
    node: str | None = None,
    round: int | str | None = None,
    device: str = "auto",
) -> TrainedModel:
    """Load a model of a run; parameters and errors are those of :func:`load`."""
    asked, of_run = choose_device(device), stored.config.run.device  # the bits of the nodes depend on it
    torch_device = choose_device(of_run) if device == "auto" and (of_run != "cuda" or asked.type == "cuda") else asked
    label = stored.method(method)
    snapshot = stored.snapshot(label, round)
    with flower_identity():
        model = _of_node(stored, label, snapshot, node, torch_device) if node else shared_model(stored, label, snapshot)
    return model.to(torch_device)


def check_same(origin: Origin, method: str | None, node: str | None, round: int | str | None) -> None:
    """Raise ``ValueError`` if a model folder has another model than the one that is asked for."""
    for name, wanted, actual in (
        ("method", method, origin.method), ("node", node, origin.node), ("round", round, origin.round),
    ):  # fmt: skip
        if wanted is not None and wanted != actual:
            raise ValueError(f"{name} = {wanted!r}: the model folder has the model with {name} = {actual!r}")


# -- the model that all nodes share ------------------------------------------------------------------------------


def shared_model(stored: StoredRun, label: str, snapshot: Snapshot) -> TrainedModel:
    """The model that all nodes share. Raise ``ValueError`` if a part of it stays on the nodes."""
    method = stored.config.methods[label]
    task = stored.config.task_of(method)
    module = initial_model(stored.config, label)
    arrays = from_record(stored.restored(label, snapshot)[1])
    private = [name for name in private_names(module, arrays) if not matches(name, task.fixed)]
    if private:
        staying = method.private(stored.config.task).patterns or private
        raise NoSharedModelError(
            f"method {label!r} has no model that all nodes share, because {first_names(staying)} stays on the nodes: "
            f"give one of the nodes {first_names(stored.nodes(label))}"
        )
    load_arrays(module, arrays)
    return _trained(stored, label, snapshot, task, module, _shared_facts(stored, task), "")


def _shared_facts(stored: StoredRun, task: Task) -> Mapping[str, Any]:
    try:
        return task.facts(None)
    except DataError:  # the facts depend on data: those of any simulated node
        if any(stored.has_own_data(label) for label in stored.config.methods):
            raise
        return task.facts(stored.source(task, 0).load(task))


# -- the model of a node -----------------------------------------------------------------------------------------


class _ReadingNode(Node):
    """A node that changes nothing in the folder of its private state."""

    def _state(self, key: str, *part: str) -> StoredState:
        return StoredState.of(self.disclosure.root, self.settings.run, self.settings.method, key, *part)


def _of_node(stored: StoredRun, label: str, snapshot: Snapshot, key: str, device: torch.device) -> TrainedModel:
    node_config = _place(stored, label, key)
    message = stored.evaluate_message(label, snapshot, node_config)
    if message is None:
        raise ValueError(f"node = {key!r}: it has no data, or it was not admitted to the run, so it has no model")
    run_config = stored.config.flat() | {"device": device.type}
    context = Context(run_id=1, node_id=1, node_config=dict(node_config), state=RecordDict(), run_config=run_config)
    with threads_kept():
        node = _ReadingNode(message, context)
        client = node.client()
        prepared = client.prepared_model(received_arrays(message), node.settings)
        _check_took_part(stored, label, key, prepared)
        _check_state(stored, label, snapshot, client, prepared)
        module = prepared.at(node.settings.stage)
    facts = client.task.facts(client.data)
    return _trained(stored, label, snapshot, client.task, module, facts, key, prepared.node_round.data)


def _place(stored: StoredRun, label: str, key: str) -> Mapping[str, Any]:
    """Where a simulated node has its data. A node with data of its own may have the key of one."""
    known, unreadable, partition = stored.nodes(label), "", None
    if not stored.has_own_data(label, key):
        try:
            partition = stored.partition(label, key)
        except DataError as error:
            unreadable = f" (the data of the run cannot be read here: {error})"
    if partition is not None:
        return {"partition-id": partition, "num-partitions": stored.config.run.num_nodes}
    if key in known:
        raise ValueError(
            f"node = {key!r}: its data and its private state are on the node itself{unreadable}; take its model there "
            "(keep-model in its node config), or load the shared model by leaving node out"
        )
    raise ValueError(
        f"node = {key!r}: method {label!r} has no such node; its nodes are {first_names(known)}{unreadable}"
    )


def _check_took_part(stored: StoredRun, label: str, key: str, prepared: PreparedModel) -> None:
    """Raise ``ValueError`` if the private parameters of a node are the initial ones because no round had the node."""
    patterns = stored.config.methods[label].private(stored.config.task).patterns
    if patterns and not prepared.prepared.steps and key not in stored.nodes(label):
        raise ValueError(
            f"node = {key!r}: it took part in no round of method {label!r} (see held-out-nodes), so its private "
            f"parameters {first_names(patterns)} are untrained; adapt the model to its data: fedapps adapt "
            f"{shlex.quote(str(stored.path))} --method {shlex.quote(label)} --data-dir FOLDER"
        )


def _check_state(
    stored: StoredRun, label: str, snapshot: Snapshot, client: FederatedClient, prepared: PreparedModel
) -> None:
    """Raise ``ValueError`` if the model lacks private state that the node had after the round."""
    parts = client.parts.parts
    remembers = any(type(part).remember is not LocalPart.remember for part in parts)
    if not remembers and not client.parts.private(prepared.model, prepared.node_round):
        return
    key = client.data.key
    trained = [row["round"] for row in stored.rows(label, key) if row["phase"] == "train"]
    expected = max((number for number in trained if number <= snapshot.round), default=0)
    state = client.private
    assert isinstance(state, StoredState)
    newest = state.newest(snapshot.round + 1, Attempts.read(prepared.node_round.settings.attempts))
    if expected and (newest or 0) < expected:
        if newest:
            where = f"{state.folder} has that of round {newest}, but not of round {expected}; load an earlier round"
        elif state.newest(max(trained) + 1):
            where = f"{state.folder} has only later rounds; load the last round, or 'best' of a run with track-metric"
        else:
            where = (
                f"there is none in {state.folder}: it is on the node itself (take the model there, with keep-model in "
                "its node config), or it was removed, or the run has state-backend = 'context'"
            )
        raise ValueError(f"node = {key!r}, round = {snapshot.round}: the node's private state is missing; {where}")


# -- both ----------------------------------------------------------------------------------------------------------


def _trained(
    stored: StoredRun,
    label: str,
    snapshot: Snapshot,
    task: Task,
    module: nn.Module,
    facts: Mapping[str, Any],
    node: str,
    own: NodeData | None = None,
) -> TrainedModel:
    private = stored.config.methods[label].private(stored.config.task)
    origin, kind = origin_of(stored, label, snapshot, node), trained_class(task)
    return kind(task, module, facts, origin, private=private, own=own)


def origin_of(stored: StoredRun, label: str, snapshot: Snapshot, node: str) -> Origin:
    """The origin of the model of a node, or of the shared model for the empty key."""
    config, rows = stored.config, stored.rows(label, node or None)
    prefix = "" if node else ComposedParts(composed(config.methods[label].local_parts())).shared_prefix()
    sizes = {row["node"]: row["num_examples"] for row in rows if row["phase"] == "train"}
    return Origin(
        run=stored.path.absolute().name,
        method=label,
        node=node,
        round=snapshot.round,
        stage=stage_of(config.run, snapshot.round, config.num_stages, config.begun.get(label, 0)),
        rounds=config.last_round(label),
        seed=config.run.seed,
        nodes=len({row["node"] for row in stored.rows(label) if row["phase"] == "train"}),
        examples=int(sum(sizes.values())),
        metrics=_with_prefix(prefix, stored.reported(label, snapshot.round, node)),
        spread=_with_prefix(prefix, stored.spread(label, snapshot.round)),
        guarantee=guarantee(config, label, stored.folder.releases(label).by_round()),
        versions=versions(),
        settings=config.flat(),
    )


def _with_prefix(prefix: str | None, metrics: Mapping[str, Value]) -> dict[str, Value]:
    """The metrics whose names have a prefix, under their names without it; none for ``None``."""
    if prefix is None:
        return {}
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


@contextmanager
def threads_kept() -> Iterator[None]:
    """Let torch have as many threads after the block as before it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
