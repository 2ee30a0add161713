"""The frozen language model of an agent or a speaker: its states, its vectors, what trains, and its errors."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from drawn_houses import OPTIONS, message_of, saved, speaking, task_with, write_world
from fedapps.tasks.base import DataError
from fedapps.tasks.vln.agent import agent_of
from fedapps.tasks.vln.instructions import BEGIN, END, UNKNOWN, Vocabulary
from fedapps.tasks.vln.layers import PretrainedVectors, PretrainedWords, language_model
from fedapps.tasks.vln.nodes import label_paths
from fedapps.tasks.vln.trained import VlnTrained
from tiny_encoder import encoder_folder

WORDS = Vocabulary(("ones", "two", "?"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return encoder_folder(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    return task_with().load_node(write_world(tmp_path_factory.mktemp("world")), 0, 3)


def test_the_state_of_a_word_is_the_mean_of_its_pieces(folder):
    """[CLS] one ##s two [SEP] has the numbers 2, 4, 7, 5, 3."""
    from transformers import AutoModel

    with torch.no_grad():
        pieces = AutoModel.from_pretrained(folder)(torch.tensor([[2, 4, 7, 5, 3]])).last_hidden_state[0]
    expected = torch.stack([pieces[0], (pieces[1] + pieces[2]) / 2, pieces[3], pieces[4]])
    model = language_model(folder)
    found = model.states(("ones", "two"))
    torch.testing.assert_close(found, expected)
    assert model.states(("ones", "two")) is found
    long = model.states(("one",) * 30)  # the encoder reads 12 pieces, of which 10 are words
    assert long.shape == (32, 8)
    assert [bool(row.any()) for row in long] == [True] * 11 + [False] * 20 + [True]


def test_the_vector_of_a_word_is_the_mean_of_its_pieces(folder):
    from transformers import AutoModel

    rows = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()
    first, unknown, ones, two, mark, last = torch.stack(
        [rows[2], rows[1], (rows[4] + rows[7]) / 2, rows[5], rows[1], rows[3]]
    )
    expected = torch.stack([unknown, last, first, ones, two, mark])
    vectors = PretrainedVectors(language_model(folder), 9)
    vectors.learn(WORDS)
    found = vectors(torch.arange(9))
    torch.testing.assert_close(found[1:7], expected / expected.std())
    assert not found[[0, 7, 8]].any()
    assert not vectors.state_dict()


def test_a_speaker_keeps_its_vectors_and_labels_paths(folder, tmp_path):
    world = write_world(tmp_path / "world")
    language = {"language_model": str(folder), "dropout": 0.0, "feature_dropout": 0.0}
    task = task_with(stage="speaker", **language)
    node = task.load_node(world, 0, 3)
    torch.manual_seed(0)
    model = task.build_model_for(node)
    assert "decoder.embedding.weight" not in model.state_dict()
    vectors = model.decoder.embedding.table.clone()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = task.loss(model.train(), next(iter(task.examples(node, "train", 12))))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.equal(model.decoder.embedding.table, vectors)
    given = {"speaker_file": saved(model, tmp_path / "speaker.safetensors"), "feature_cache": str(tmp_path / "cache")}
    labelled = task_with(stage="pre-exploration", **language, **given).load_node(world, 2, 3)
    houses, paths = labelled.extra["houses"], labelled.extra["paths"]["train"]
    assert label_paths(model, houses, node.extra["vocabulary"], paths, OPTIONS.max_length) == paths
    assert any(path.instructions != ("",) for path in paths)
    network = VlnTrained(task, model, task.facts(node)).network()
    assert network.module(*network.inputs).shape == (2, 7, 30)
    plain = task_with(stage="pre-exploration", **given)
    assert message_of(plain.load_node, world, 2, 3) == (
        f"vln.speaker-file = '{given['speaker_file']}': this speaker has the word vectors of a language model; name "
        "its folder as vln.language-model"
    )


def test_padding_and_other_texts_change_no_state(folder):
    words = PretrainedWords(language_model(folder))
    words.words = WORDS
    short, long = [BEGIN, 4, END, 0, 0], [BEGIN, 5, UNKNOWN, 4, END]
    both = words(torch.tensor([short, long]))
    assert torch.equal(both[0, :3], words(torch.tensor([short[:3]]))[0])
    assert not both[0, 3:].any()
    assert torch.equal(both[1], words.model.states(("two", "[UNK]", "ones")))


def test_an_agent_trains_what_lies_above_the_frozen_encoder(folder, node):
    task = task_with(language_model=str(folder), learning="imitation", dropout=0.0, feature_dropout=0.0)
    torch.manual_seed(0)
    model = task.build_model_for(node)
    plain = task_with().build_model()
    assert set(plain.state_dict()) - set(model.state_dict()) == {"encoder.embedding.weight"}
    assert model.encoder.lstm.forwards.weight_ih_l0.shape[1] == 8
    states = model.encoder.embedding.model
    assert deepcopy(model).encoder.embedding.model is states
    before = {name: tensor.clone() for name, tensor in states._encoder.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        batch = next(iter(task.examples(node, "train", 12)))
        optimizer.zero_grad()
        loss = task.loss(model.train(), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in states._encoder.state_dict().items())
    scores = task.evaluate(model, node, seed=0, final=False).metrics
    again = task.model_of(task.facts(node), None)
    again.load_state_dict(model.state_dict())
    again.houses = model.houses
    assert task.evaluate(again, node, seed=0, final=False).metrics == scores


def test_a_model_without_words_says_so(folder):
    agent = agent_of(replace(OPTIONS, language_model=str(folder)))
    with pytest.raises(DataError, match="the words of the model are unknown"):
        agent.begin(torch.tensor([[BEGIN, 4, END]]), torch.tensor([3]))


def test_folders_and_stages_that_are_refused(tmp_path):
    absent = task_with(language_model=str(tmp_path))
    assert message_of(absent.build_model) == (
        f"vln.language-model = '{tmp_path}': lacks config.json, model.safetensors, tokenizer.json; name a folder with "
        "an encoder of the library transformers, or leave it empty for learned word vectors"
    )
    assert message_of(absent.check_nodes, 3) == message_of(absent.build_model)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    assert "cannot be read as an encoder of transformers" in message_of(absent.build_model)


def test_a_listener_reads_with_the_same_language_model(folder, tmp_path):
    world = write_world(tmp_path / "world")
    language = {"language_model": str(folder)}
    file = saved(task_with(**language).build_model(), tmp_path / "agent.safetensors")
    task = task_with(
        stage="pre-exploration",
        agent_file=file,
        speaker_temperature=1.0,
        speaker_samples=2,
        **language,
        **speaking(tmp_path),
    )
    assert len(task.load_node(world, 2, 3).extra["paths"]["train"]) == 5
