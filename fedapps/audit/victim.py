"""A node to be listened to: its model after one round, and the sentences whose gradients it shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from flwr.app import Context, RecordDict

from clients.data_sources import cached_load
from clients.training import run_plan
from fedapps.app.client_app import choose_device, data_source, default_settings
from fedapps.catalogue import privacy_of
from fedapps.config.parsing import Config, parse
from fedapps.launch.launch import check_folder
from sim.seeding import derive_seed, torch_seed
from tasks.base import NodeData
from tasks.text.corpus import read_corpus
from tasks.text.networks import TextClassifier
from tasks.text.privacy.body import above_words
from tasks.text.privacy.sentences import Sentence, draw_sentences, special_tokens, with_sentences
from tasks.text.privacy.sharing import Victim
from tasks.text.privacy.tokens import TokenTable
from tasks.text.private_words import vocabulary_source, word_table
from tasks.text.task import TextTask
from tasks.text.vocabulary import Vocabulary

#: The method whose node, with words of its own, is the victim under all methods: then what differs is what is shared.
VICTIM = "fedvocab"
_PRIVACY = privacy_of(VICTIM)
_PADDING = ("<pad>", "[PAD]")


@dataclass(frozen=True, eq=False)
class Scene:
    """``victim`` as it shares gradients of the ``sentences``, and ``start``, the same node before its training.

    The words ``ignored`` are no text: those that a tokenizer puts around one.
    """

    victim: Victim
    start: Victim
    sentences: Sequence[Sentence]
    ignored: frozenset[str]


@dataclass(frozen=True, eq=False)
class Cast:
    """The node 0 of a run: its task, and its data with the sentences among them."""

    task: TextTask
    data: NodeData
    sentences: Sequence[Sentence]


def cast(config: Config, count: int) -> Cast:
    """Choose ``count`` sentences and give them to node 0.

    Raises ``ValueError`` when the task is another than "text", there are no data, or too few sentences.
    """
    run = config.run
    if run.task != "text":
        raise ValueError(f"task = {run.task!r}: must be 'text', because an audit looks for the words of sentences")
    task = TextTask(config.options)
    check_folder(config, task)
    source = data_source(run, task, {"partition-id": 0, "num-partitions": run.num_nodes})
    task = task.under(_PRIVACY)
    data = cached_load(source, task, False)
    own = vocabulary_source(task.options, _PRIVACY) == "own"
    texts = read_corpus(source.folder, task.layout).train
    try:
        sentences = draw_sentences(texts, _vocabulary(data), count, own=own, seed=derive_seed(run.seed, "audit"))
    except ValueError as error:
        raise ValueError(f"--sentences {count}: {error}") from error
    return Cast(task, with_sentences(data, sentences), sentences)


@lru_cache(maxsize=1)
def scene(flat: tuple[tuple[str, Any], ...], count: int) -> Scene:
    """Node 0 of a run config, its items sorted, before and after one round of local training; see :func:`cast`.

    It begins as in round 1 of the run and trains its whole model, as FedAvg's nodes do. The same config gives the same
    numbers in every process. Raises what :func:`cast` does.
    """
    config = parse(dict(flat))
    run = config.run
    torch.set_num_threads(1)
    device = choose_device(run.device)
    played = cast(config, count)
    task, data = played.task, played.data
    with torch_seed(run.seed, "model"):
        model = task.build_model_for(data).to(device)
    start = _victim(task, model, data)
    settings = default_settings(run, Context(0, 0, {}, RecordDict(), {}))
    with torch_seed(run.seed, "train", 1, data.key):
        run_plan(
            model,
            [settings.phase(settings.epochs)],
            lambda batch_size: task.batches(data, "train", batch_size),
            task.loss,
        )
    return Scene(_victim(task, model, data), start, played.sentences, special_tokens(_vocabulary(data)))


def _victim(task: TextTask, model: TextClassifier, data: NodeData) -> Victim:
    vectors = model.get_submodule(word_table(task.options)).weight
    assert isinstance(vectors, torch.Tensor)
    # A number without a token needs a name all the same; tables and tokenizers may end with numbers of their own.
    named = _vocabulary(data).words[: len(vectors)]
    words = tuple(word or f"[no. {number}]" for number, word in enumerate(named))
    padding = next((word for word in _PADDING if word in words), None)
    table = TokenTable(words, vectors.detach()[: len(words)].clone(), padding)
    return Victim(above_words(model), table)


def _vocabulary(data: NodeData) -> Vocabulary:
    found: Vocabulary = data.extra["vocabulary"]  # type: ignore[assignment]
    return found
