"""The attacked node: its sentences, and its model before and after one round of training."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.app.node import choose_device
from fedapps.base.seeding import derive_seed, torch_seed
from fedapps.clients.data import cached_load
from fedapps.clients.training import Phase, run_plan
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.config.run_config import RunConfig
from fedapps.launch.inputs import check_folder
from fedapps.registry.tasks import task_class, task_names, usable_tasks
from fedapps.strategies.compression import compression_by_name
from fedapps.tasks.base import NodeData, Task
from fedapps.tasks.privacy.sharing import AuditSubject, ClippedNoise, Compress, Sentence, UpdatedVictim, Victim


@dataclass(frozen=True, eq=False)
class TrainedVictim:
    """Node 0 after one round of training.

    Attributes
    ----------
    victim : Victim
        The node as it shares the gradients of the sentences.
    updated : UpdatedVictim
        The same node as it shares the change of its weights after local training on the sentences of a batch alone, as
        the run config says. It trains all parameters.
    before_training : Victim
        The same node before the round.
    sentences : sequence of Sentence
        The sentences to attack.
    special_tokens : frozenset of str
        Tokens that do not count as words, such as those that a tokenizer adds around a sentence.
    frequencies : callable
        Returns how often words occur in public text (:meth:`.AuditSubject.frequencies`).
    """

    victim: Victim
    updated: UpdatedVictim
    before_training: Victim
    sentences: Sequence[Sentence]
    special_tokens: frozenset[str]
    frequencies: Callable[[], Mapping[str, int]]


@dataclass(frozen=True, eq=False)
class VictimData:
    """The task and the data of node 0 from a ``folder``; the data include the ``sentences`` to attack."""

    subject: AuditSubject
    task: Task
    data: NodeData
    sentences: Sequence[Sentence]
    folder: Path


def victim_data(config: Config, count: int) -> VictimData:
    """Choose ``count`` sentences for node 0 to have.

    Raises
    ------
    ValueError
        If the task cannot be audited, there are no data, or there are fewer than ``count`` suitable sentences.
    """
    run, task = config.run, config.task
    subject = audit_subject(task)
    if subject is None:
        raise ValueError(f"task = {run.task!r}: cannot be audited, because its examples have no words")
    check_folder(config, task)
    source = run.source(task, {"partition-id": 0, "num-partitions": run.num_nodes})
    task = task.under(subject.private)
    data = cached_load(source, task, False)
    try:
        data, sentences = subject.choose(task, data, source.folder, count, derive_seed(run.seed, "audit"))
    except ValueError as error:
        raise ValueError(f"--sentences {count}: {error}") from error
    return VictimData(subject, task, data, sentences, source.folder)


@lru_cache(maxsize=1)
def trained_victim(flat: tuple[tuple[str, Any], ...], count: int) -> TrainedVictim:
    """Train node 0 for one round; the result is cached.

    The node starts from the initial model of the run and trains all parameters, as in FedAvg. The same config gives
    bit-identical parameters in every process.

    Parameters
    ----------
    flat : tuple of (key, value)
        The sorted items of a flat run config.
    count : int
        Number of sentences to attack.

    Raises
    ------
    ValueError
        As :func:`victim_data`.
    """
    config = parse(dict(flat))
    run = config.run
    torch.set_num_threads(1)
    device = choose_device(run.device)
    victim_node = victim_data(config, count)
    subject, task, data = victim_node.subject, victim_node.task, victim_node.data
    with torch_seed(run.seed, "model"):
        model = task.build_model_for(data).to(device)
    before = subject.victim(task, model, data)

    def train(local: nn.Module, examples: NodeData, *purpose: str | int) -> int:
        with torch_seed(run.seed, *purpose):
            epoch = partial(task.batches, examples, "train")
            return run_plan(local, [Phase(replace(run.training, steps=0))], epoch, task.loss).steps

    def train_on(rows: Tensor, lengths: Tensor, labels: Tensor) -> tuple[Victim, int]:
        local = deepcopy(model)
        batch = subject.batch(data, rows, lengths, labels)
        steps = train(local, replace(data, splits={"train": batch}), "audit", "update")
        return subject.victim(task, local, data), steps

    train(model, data, "train", 1, data.key)
    victim = subject.victim(task, model, data)
    plain_adam = run.training.optimizer in ("adam", "adamw") and not run.training.weight_decay
    rate = run.training.learning_rate if plain_adam else 0.0
    updated = UpdatedVictim(victim.body, victim.table, train_on, rate, noise_of(run), compressed(run))
    frequencies = partial(subject.frequencies, task, data, victim_node.folder)
    return TrainedVictim(victim, updated, before, victim_node.sentences, subject.special_tokens(data), frequencies)


def noise_of(run: RunConfig, node: int = 0) -> ClippedNoise | None:
    """The clipping and noise of ``dp = "local"``, where each node has its own seed; ``None`` under another ``dp``."""
    if run.dp != "local":
        return None
    of_node = [node] if node else []  # the first node has the seed of an audit of one node
    generator = torch.Generator().manual_seed(derive_seed(run.seed, "audit", "noise", *of_node))
    return ClippedNoise(run.dp_clip, run.dp_clip * run.dp_noise, generator)


def compressed(run: RunConfig) -> Compress | None:
    """What the server restores of compressed changes, under ``compression``; a first reply has no earlier error."""
    if run.compression == "none":
        return None
    compression = compression_by_name(run.compression, run.compression_share)

    def restored(changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        arrays = {name: change.double().cpu().numpy() for name, change in changes.items()}
        decoded = compression.decode(compression.encode(arrays), arrays)
        return {name: torch.from_numpy(decoded[name]).to(change) for name, change in changes.items()}

    return restored


def audit_subject(task: Task | type[Task]) -> AuditSubject | None:
    """What an audit attacks in a task; ``None`` if the task cannot be audited. Only now are the attacks imported."""
    if not task.audit_subject:
        return None
    module, _, name = task.audit_subject.partition(":")
    subject: AuditSubject = getattr(import_module(module), name)()
    return subject


def recipe_subject(recipe: Path, overrides: Mapping[str, Any] | None = None) -> AuditSubject:
    """What an audit attacks in the task of a recipe, with ``overrides`` of its keys.

    Raises
    ------
    ValueError
        The recipe has no task that can be audited, or cannot be read.
    """
    name = _task_of(recipe, overrides)
    subject = audit_subject(task_class(name)) if name in task_names() else None
    if subject is None:
        tasks = ", ".join(name for name in usable_tasks() if task_class(name).audit_subject)
        raise ValueError(
            f"recipe {recipe}: task = {name!r}: must be one of {tasks}, because an audit "
            "reconstructs the words of sentences"
        )
    return subject


def has_words(recipe: Path, overrides: Mapping[str, Any] | None = None) -> bool:
    """Whether the examples of a recipe's task have words, whose recovery an audit counts."""
    name = _task_of(recipe, overrides)
    return name not in task_names() or bool(task_class(name).audit_subject)


def _task_of(recipe: Path, overrides: Mapping[str, Any] | None) -> str:
    return str(read_recipe(recipe, overrides).get("task", RunConfig.task))
