"""What a run starts from: the finished run, or the model folder, that its key ``start`` names.

A run goes on with the round after the last one of the run that it starts from, with the server's state and the shared
arrays of a checkpoint. Random draws, schedules by rounds and the node's private state depend on the round, so that
rounds added in this way are those of a longer run. What is copied stands in the folder of the new run, which needs the
old one no more.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord

from fedapps.base.atomic import path_name, whole_folder, write_whole
from fedapps.base.options import matches
from fedapps.config.keys import defaults
from fedapps.config.parsing import Config
from fedapps.registry.tasks import task_class
from fedapps.runs.champions import Registry
from fedapps.runs.run_folder import STARTED, RunFolder, read_config, read_label, read_object
from fedapps.strategies import BaseStrategy, Snapshot
from fedapps.strategies.arrays import from_record, to_record
from fedapps.strategies.checks import check_arrays
from fedapps.tasks.model_folder import StoredModel
from fedapps.tasks.trained import TrainedModel

#: How many runs, two years of weeks, a node may have missed without losing its private state.
_LINEAGE = 104
_HELD_OUT = "the nodes that were held out stay so, and those that have trained are no new ones"
#: Keys on which the guarantee of differential privacy over both runs depends.
_PRIVACY_KEYS = ("dp", "dp-clip", "dp-noise", "dp-delta", "dp-seeded", "sampling", "fraction-train", "num-nodes")


def start_snapshots(config: Config) -> dict[str, Snapshot]:
    """The checkpoints that the methods of a run start from, by label; empty without a run to start from.

    Raises
    ------
    ValueError
        The key ``start`` names neither a run folder nor a model folder, or the run has another task, seed, kind of
        outputs or protection, has not finished the method, or keeps no such checkpoint.
    """
    path = config.run.started_from
    if path is None or StoredModel.is_in(path):
        return {}
    if not (path / "config.toml").is_file():
        raise ValueError(
            f"start = {config.run.start!r}: {path} is neither a run folder nor a model folder; give the folder of a "
            "finished run, or one that `fedapps export --format safetensors` wrote"
        )
    _check_same(config, path)
    folder = RunFolder(path, "")
    return {label: _snapshot(config, folder, label) for label in config.methods}


def _check_same(config: Config, path: Path) -> None:
    """Check that what the two runs must have in common is the same."""
    before, now = {**defaults(), **read_config(path)}, config.flat()
    outputs = [f"{config.run.task}.{key}" for key in config.task.output_keys]
    protection = _PRIVACY_KEYS if config.run.dp != "none" else ()
    reasons = {
        "task": "a model learns one task",
        "seed": "nodes draw from it what no run sends, such as frozen weights",
        **dict.fromkeys(["held-out-nodes"] if config.run.held_out_nodes else [], _HELD_OUT),
        **dict.fromkeys(protection, "dp covers both runs together"),
        **dict.fromkeys(
            outputs,
            "the outputs of the model would stand for something else. For a new class train a new model, or export "
            "this one and start from its folder with a method that keeps the head on the nodes, such as fedrep",
        ),
    }
    for key, reason in reasons.items():
        if before.get(key) != now.get(key):
            raise ValueError(f"{key} = {now.get(key)!r}: must be {before.get(key)!r} to start from {path}: {reason}")


def _snapshot(config: Config, folder: RunFolder, label: str) -> Snapshot:
    finished = folder.summary().get("methods", {})
    if label not in finished:
        known = ", ".join(finished) or "none"
        raise ValueError(
            f"methods: {label!r} is no finished method of the run {folder.path}, which has {known}: resume that run "
            "first, name one of these methods, or export a model of it and start from the model folder"
        )
    kept = folder.checkpoints(label)
    snapshot = kept.best() if config.run.start_from == "best" else kept.last()
    if snapshot is None:
        raise ValueError(
            f"start-from = {config.run.start_from!r}: the run {folder.path} has no such checkpoint of {label}; a best "
            "one needs track-metric, and `fedapps generation` removes those of old runs (keep-runs)"
        )
    if config.run.dp != "none":
        folder.releases(label).check(snapshot.round)
    return snapshot


def begun(config: Config, folder: RunFolder) -> Config:
    """The config with the rounds that came before. The first time, what the run starts from is copied to its folder.

    A process that is killed meanwhile leaves nothing that a resumed run does not replace. Raises as
    :func:`start_snapshots`.
    """
    source = config.run.started_from
    if source is not None and not (folder.path / STARTED).exists() and (snapshots := start_snapshots(config)):
        label = read_label(source / "label")
        if config.run.dp != "none" and not folder.releases("").path.exists():
            write_whole(folder.releases("").path, RunFolder(source, "").releases("").path.read_bytes(), sync=True)
        for method, snapshot in snapshots.items():
            carry_states(source, label, folder.path, folder.label, method)
            # The new run has other data, so the old run's best round and patience mean nothing to it. Nodes may have
            # new key pairs, so the old owners of keys are not kept either.
            facts: dict[str, Any] = {**snapshot.facts, "best": {"round": 0}, "callbacks": {}, "owners": {}}
            folder.checkpoints(method).save(replace(snapshot, facts=facts, history={}), best=False)
        rounds = {method: snapshot.round for method, snapshot in snapshots.items()}
        clock = {method: one.facts["clock"] for method, one in snapshots.items() if "clock" in one.facts}
        started = {"rounds": rounds, "clock": clock, "lineage": _lineage(source)}
        write_whole(folder.path / STARTED, json.dumps(started).encode(), sync=True)
    return with_begun(config, folder.path)


def with_begun(config: Config, path: Path) -> Config:
    """The config of the run in a folder with what came before it. Raises ``ValueError`` for a damaged file."""
    started = read_object(path / STARTED)
    config = replace(config, begun=started.get("rounds", {}), lineage=_lineage(path)[1:])
    if not config.run.registry:
        return config
    registry = Registry.read(Path(config.run.registry))
    champions = tuple(_lineage(Path(one.run)) for one in registry.generations)
    return replace(config, champions=champions, registry_label=registry.label)


def _lineage(path: Path) -> tuple[str, ...]:
    """The labels of the run in a folder and of the last runs before it. Raises ``ValueError`` for a damaged file.

    Every message has them: a node goes on from the newest of these runs in which it took part.
    """
    return (read_label(path / "label"), *read_object(path / STARTED).get("lineage", ()))[:_LINEAGE]


def carry_states(source: Path, label: str, target: Path, new_label: str, method: str) -> None:
    """Copy the states of simulated nodes under a method from the folder of a run to that of another, if it has none."""
    old, new = (
        path / "nodes" / path_name(name) / path_name(method) for path, name in ((source, label), (target, new_label))
    )
    if old.is_dir() and not new.exists():
        with whole_folder(new) as copy:
            shutil.copytree(old, copy, copy_function=_linked, dirs_exist_ok=True)


def _linked(source: str, target: str) -> None:
    """Link a file of private state, which is only ever replaced as a whole; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def started_arrays(config: Config, strategy: BaseStrategy, initial: ArrayRecord) -> ArrayRecord:
    """The arrays that a method starts from: the initial ones, or those that it shares from a model folder in ``start``.

    Raises
    ------
    ValueError
        The folder is malformed, or its model is of another task or lacks one of the arrays in this shape.
    """
    path = config.run.started_from
    if path is None or not StoredModel.is_in(path):
        return initial
    model = TrainedModel.read(path, task_class, torch.device("cpu"))
    if model.task.name != config.run.task:
        raise ValueError(
            f"start = {config.run.start!r}: the model is of task {model.task.name!r}, not {config.run.task!r}"
        )
    fixed = config.task.fixed
    if fixed and not config.task.fixed_digest and model.origin.seed != config.run.seed:
        raise ValueError(
            f"seed = {config.run.seed}: must be {model.origin.seed} to start from {path}: nodes draw from it weights "
            "that stay frozen"
        )
    shared = strategy.share(initial)
    state: Mapping[str, torch.Tensor] = model.module.state_dict()
    unsent = {name: array.numpy() for name, array in initial.items() if matches(name, fixed) and name not in shared}
    if changed := [name for name, array in unsent.items() if not np.array_equal(array, state.get(name, array))]:
        raise ValueError(
            f"start = {config.run.start!r}: the model has another {changed[0]} than the nodes build, and this method "
            "does not send it: start with the method that trained the model"
        )
    arrays = {name: state[name].numpy() for name in shared if name in state}
    if mismatch := check_arrays(from_record(shared), arrays):
        raise ValueError(f"start = {config.run.start!r}: the model does not fit: {mismatch}")
    return ArrayRecord({**initial, **to_record(arrays)})
