"""The attacked node: its sentences, and its model before and after one round of training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from flwr.app import Context, RecordDict

from clients.data_sources import cached_load
from clients.training import run_plan
from fedapps.app.node import choose_device, default_settings
from fedapps.app.profile_query import data_source
from fedapps.config.parsing import Config, parse
from fedapps.launch.launch import check_folder
from sim.seeding import derive_seed
from tasks.base import NodeData
from tasks.private_parameters import PrivateParameters
from tasks.seeding import torch_seed
from tasks.text.corpus import read_corpus
from tasks.text.networks import TextClassifier
from tasks.text.privacy.body import above_words
from tasks.text.privacy.sentences import Sentence, around, draw_sentences, holding
from tasks.text.privacy.sharing import Victim
from tasks.text.privacy.tokens import TokenTable
from tasks.text.scope import source_of_words, word_table
from tasks.text.task import TextTask
from tasks.text.vocabulary import Vocabulary

#: The victim keeps its word vectors for all audited methods, so that they differ only in which gradients are shared.
_PRIVACY = PrivateParameters(("embedding.*",))
_PADDING = ("<pad>", "[PAD]")


@dataclass(frozen=True, eq=False)
class TrainedVictim:
    """Node 0 after one round of training.

    Attributes
    ----------
    victim : Victim
        The node as it shares the gradients of the sentences.
    before_training : Victim
        The same node before the round.
    sentences : sequence of Sentence
        The sentences to attack.
    special_tokens : frozenset of str
        Tokens that a tokenizer adds around a sentence; they do not count as words.
    """

    victim: Victim
    before_training: Victim
    sentences: Sequence[Sentence]
    special_tokens: frozenset[str]


@dataclass(frozen=True, eq=False)
class VictimData:
    """The task and the data of node 0; the data include the ``sentences`` to attack."""

    task: TextTask
    data: NodeData
    sentences: Sequence[Sentence]


def victim_data(config: Config, count: int) -> VictimData:
    """Choose ``count`` sentences and add them to the data of node 0.

    Raises
    ------
    ValueError
        If the task is not "text", there are no data, or there are fewer than ``count`` suitable sentences.
    """
    run = config.run
    if run.task != "text":
        raise ValueError(f"task = {run.task!r}: must be 'text', because an audit reconstructs the words of sentences")
    task = TextTask(config.options)
    check_folder(config, task)
    source = data_source(run, task, {"partition-id": 0, "num-partitions": run.num_nodes})
    task = task.under(_PRIVACY)
    data = cached_load(source, task, False)
    own = source_of_words(task.options, _PRIVACY) == "own"
    texts = read_corpus(source.folder, task.layout).train
    try:
        sentences = draw_sentences(texts, _vocabulary(data), count, own=own, seed=derive_seed(run.seed, "audit"))
    except ValueError as error:
        raise ValueError(f"--sentences {count}: {error}") from error
    return VictimData(task, holding(data, sentences), sentences)


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
    chosen = victim_data(config, count)
    task, data = chosen.task, chosen.data
    with torch_seed(run.seed, "model"):
        model = task.build_model_for(data).to(device)
    before = _victim(task, model, data)
    settings = default_settings(run, Context(0, 0, {}, RecordDict(), {}))
    with torch_seed(run.seed, "train", 1, data.key):
        run_plan(
            model,
            [settings.phase(settings.epochs)],
            lambda batch_size: task.batches(data, "train", batch_size),
            task.loss,
        )
    return TrainedVictim(_victim(task, model, data), before, chosen.sentences, around(_vocabulary(data)))


def _victim(task: TextTask, model: TextClassifier, data: NodeData) -> Victim:
    vectors = model.get_submodule(word_table(task.options)).weight
    assert isinstance(vectors, torch.Tensor)
    # Every row of the table needs a distinct name, including ids that have no token.
    named = _vocabulary(data).words[: len(vectors)]
    words = tuple(word or f"[no. {number}]" for number, word in enumerate(named))
    padding = next((word for word in _PADDING if word in words), None)
    table = TokenTable(words, vectors.detach()[: len(words)].clone(), padding)
    return Victim(above_words(model), table)


def _vocabulary(data: NodeData) -> Vocabulary:
    found: Vocabulary = data.extra["vocabulary"]  # type: ignore[assignment]
    return found
