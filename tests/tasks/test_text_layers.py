"""Speed-ups of transformers change no result: own rows, frozen layers and their states, halves of a batch."""

import os
from dataclasses import replace

import pytest
import torch
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from fedapps.tasks.base import DataError
from fedapps.tasks.text.encoder_network import has_bfloat16
from fedapps.tasks.text.networks import OwnRows
from fedapps.tasks.text.nodes import mean_vectors
from fedapps.tasks.text.options import STATES, Options
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.transformer import load_tokenizer, transformer
from fedapps.tasks.text.vocabulary import padded
from text_world import FEDVOCAB, NODES, SHARED, SMALL, TEXTS, model_for, write_world
from tiny_encoder import encoder_folder
from torch import nn

KINDS = pytest.mark.parametrize("kind", ["distilbert", "bert"])


def options_with(folder, **keys):
    return replace(SMALL, model=str(folder), max_length=8, **keys)


def trained(task, data, model, optimizer="adamw"):
    """The model after two epochs, with the batches and dropout of seed 3."""
    torch.manual_seed(3)
    training = LocalTraining(optimizer=optimizer, learning_rate=0.01, epochs=2, batch_size=3, clip_norm=1.0)
    run_plan(model, [Phase(training)], lambda size: task.batches(data, "train", size), task.loss)
    return model.state_dict()


@pytest.fixture
def world(tmp_path):
    (tmp_path / "world").mkdir()
    return write_world(tmp_path / "world")


class TestOwnPieces:
    """Nodes with a private embedding train the rows of their texts alone."""

    @pytest.fixture
    def node(self, world, tmp_path):
        """A task, node 1, and its model; digits and "goals" are unknown to the tokenizer."""
        task = TextTask(options_with(encoder_folder(tmp_path / "model"))).under(FEDVOCAB)
        data = task.load_node(world, 1, NODES)
        return task, data, model_for(task, data)

    def test_they_are_those_of_the_training_texts(self, node):
        task, data, model = node
        assert data.extra["vocabulary"].own == (1, 2, 3)  # [UNK], [CLS], [SEP]
        assert data.extra["vocabulary"].words[4:8] == ("one", "two", "three", "##s")
        assert model.embedding.word_embeddings.weight.shape == (3, 8)
        assert task.evaluate(model, data, seed=0, final=True).metrics["vocabulary.words"] == 3

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_training_gives_what_it_gives_with_the_whole_table(self, node, optimizer):
        task, data, model = node
        plain = transformer(task.options, 2)
        table = model.embedding.word_embeddings
        plain.load_state_dict(
            {name: tensor for name, tensor in model.state_dict().items() if "word_embeddings" not in name}
            | {"embedding.word_embeddings.weight": table.whole()}
        )
        found, expected = trained(task, data, model, optimizer), trained(task, data, plain, optimizer)
        assert not torch.equal(table.whole(), table.public)
        torch.testing.assert_close(table.whole(), expected.pop("embedding.word_embeddings.weight"))
        torch.testing.assert_close({name: found[name] for name in expected}, expected)

    def test_the_other_rows_are_neither_sent_nor_kept(self, node):
        task, _, model = node
        assert "embedding.word_embeddings.public" in {*task.fixed} & {*model.state_dict()}
        assert "embedding.word_embeddings.public" not in dict(model.named_parameters())

    def test_a_shared_embedding_is_whole(self, world, tmp_path):
        task = TextTask(options_with(encoder_folder(tmp_path / "model"))).under(SHARED)
        model = model_for(task, task.load_node(world, 1, NODES))
        assert isinstance(model.embedding.word_embeddings, nn.Embedding)

    def test_values_are_those_of_the_table(self):
        table = torch.arange(12.0).reshape(6, 2)
        rows = OwnRows(table, (1, 4))
        with torch.no_grad():
            rows.weight.add_(100)
        assert rows(torch.tensor([[4, 0], [5, 1]])).tolist() == [[[108, 109], [0, 1]], [[10, 11], [102, 103]]]
        assert rows.whole().tolist() == [[0, 1], [102, 103], [4, 5], [6, 7], [108, 109], [10, 11]]


class TestFrozen:
    """Frozen layers stay as they are, without dropout."""

    @KINDS
    def test_only_what_lies_above_is_trained(self, world, tmp_path, kind):
        folder = encoder_folder(tmp_path / "model", kind)
        task = TextTask(options_with(folder, frozen_layers=1, frozen_embedding=True))
        data = task.load_node(world, 0, NODES)
        model = model_for(task, data)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        after = trained(task, data, model)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        still = {name for name in before if "layer.0." in name or name.startswith("embedding.")}
        assert set(before) - changed == still
        fixed = {pattern.removesuffix("*") for pattern in task.fixed}
        assert {name for name in before if name.startswith(tuple(fixed))} == still
        assert [module.training for module in model.still] == [False, False]

    @KINDS
    @pytest.mark.parametrize("pooling", ["first", "mean"])
    def test_with_their_states_in_memory_training_gives_the_same(self, world, tmp_path, kind, pooling):
        folder = encoder_folder(tmp_path / "model", kind)
        plain = options_with(folder, frozen_layers=1, frozen_embedding=True, pooling=pooling)
        states = []
        metrics = []
        for options in (plain, replace(plain, cached_states=True)):
            task = TextTask(options)
            data = task.load_node(world, 0, NODES)
            assert (STATES in data.splits["train"]) == options.cached_states
            model = model_for(task, data)
            states.append(trained(task, data, model))
            metrics.append(task.evaluate(model.eval(), data, seed=0, final=True).metrics)
        torch.testing.assert_close(*states)
        assert metrics[0] == metrics[1]

    def test_data_are_read_without_computing_states(self, world, tmp_path, monkeypatch):
        options = options_with(encoder_folder(tmp_path), frozen_layers=1, frozen_embedding=True, cached_states=True)
        monkeypatch.setattr("fedapps.tasks.text.nodes._model", lambda options: pytest.fail("states were computed"))
        data = TextTask(options).load_node(world, 0, NODES)
        assert data.count("train") == len(data.splits["train"]["ids"]) > 0
        assert set(data.splits["train"]) == {"ids", "length", "label", STATES}

    def test_what_cannot_be_frozen_is_refused(self, tmp_path):
        folder = encoder_folder(tmp_path)
        with pytest.raises(DataError, match=r"text\.frozen-layers = 3: the encoder '.*' has 2 layers"):
            TextTask(options_with(folder, frozen_layers=3)).build_model()
        with pytest.raises(DataError, match=r"text\.cached-states = true: the states of texts change"):
            TextTask(options_with(folder, frozen_layers=1, cached_states=True))
        with pytest.raises(DataError, match=r"text\.frozen-layers = 1 applies to transformers only"):
            TextTask(replace(SMALL, frozen_layers=1))
        with pytest.raises(DataError, match=r"text\.frozen-embedding = true: the method keeps only embedding\.\* priv"):
            TextTask(options_with(folder, frozen_embedding=True)).under(FEDVOCAB)


@KINDS
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_batch_in_two_halves_gives_the_logits_and_gradients_of_the_whole(tmp_path, kind, pooling):
    """Texts of one token and of eight, whose halves cost 36 in place of 64 tokens."""
    model = transformer(options_with(encoder_folder(tmp_path, kind), pooling=pooling), 3).eval()
    length = torch.tensor([1, 8, 1, 1, 8, 1, 8, 8])
    ids = torch.randint(8, (8, 8))
    calls = []
    model.embedding.register_forward_hook(lambda *given: calls.append(given[2].shape[:2]))
    whole = model.head(model.vectors(ids, length))
    whole.sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    halves = model(ids, length)
    halves.sum().backward()
    assert calls == [(8, 8), (4, 8), (4, 1)]
    torch.testing.assert_close(halves, whole)
    torch.testing.assert_close({name: p.grad for name, p in model.named_parameters() if name in expected}, expected)


def test_mean_vectors_by_hand(tmp_path):
    model = transformer(options_with(encoder_folder(tmp_path), pooling="mean"), 2).eval()
    ids, length = torch.tensor([[2, 4, 3], [2, 3, 0]]), torch.tensor([3, 2])
    vectors = model.vectors(ids, length)
    one = model.encoder(inputs_embeds=model.embedding(ids[1:, :2]), attention_mask=torch.ones(1, 2))
    mean = one.last_hidden_state[0].mean(0)
    torch.testing.assert_close(vectors[1], mean / (mean**2).mean().sqrt())
    assert "pre_classifier.weight" not in model.state_dict()


def test_bfloat16_rounds_products_and_keeps_weights_and_logits_exact_numbers(tmp_path):
    folder = encoder_folder(tmp_path)
    torch.manual_seed(0)
    plain = transformer(options_with(folder), 2).eval()
    brief = transformer(options_with(folder, precision="bfloat16"), 2).eval()
    brief.load_state_dict(plain.state_dict())
    ids, length = torch.tensor([[2, 4, 5, 3]]), torch.tensor([4])
    found, expected = brief(ids, length), plain(ids, length)
    assert found.dtype == brief.classifier.weight.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("own", [True, False])
def test_auto_computes_in_bfloat16_where_the_device_does(tmp_path, monkeypatch, own):
    monkeypatch.setattr("fedapps.tasks.text.encoder_network.has_bfloat16", lambda device: own)
    folder = encoder_folder(tmp_path)
    torch.manual_seed(0)
    fixed = transformer(options_with(folder, precision="bfloat16" if own else "float32"), 2).eval()
    auto = transformer(options_with(folder, precision="auto"), 2).eval()
    auto.load_state_dict(fixed.state_dict())
    ids, length = torch.tensor([[2, 4, 5, 3]]), torch.tensor([4])
    assert torch.equal(auto(ids, length), fixed(ids, length))


@pytest.mark.parametrize(("known", "own"), [({"amx_bf16": True}, True), ({"avx2": True, "avx512_bf16": False}, False)])
def test_a_processor_says_whether_it_has_bfloat16(monkeypatch, known, own):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert has_bfloat16.__wrapped__("cpu") is own
    assert not has_bfloat16.__wrapped__("meta")


@pytest.mark.skipif("FEDAPPS_MINILM" not in os.environ, reason="FEDAPPS_MINILM names no folder of MiniLM's files")
def test_mean_vectors_of_the_published_encoder_tell_what_texts_are_about():
    """Its cosines for such pairs are above .5 and about 0 (sentence-transformers, pretrained models)."""
    options = Options(model=os.environ["FEDAPPS_MINILM"], max_length=24)
    texts = ["A man is playing a guitar.", "Somebody plays the guitar.", "Shares of oil companies fell on Monday."]
    vectors = mean_vectors(padded(load_tokenizer(options.model).encode(texts, options.length)), options)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.5
    assert cosines[:2, 2].abs().max() < 0.2


def test_a_node_uses_as_many_texts_as_asked_for(world):
    task = TextTask(replace(SMALL, train_examples=3, test_examples=1))
    every = TextTask(SMALL).load_node(world, 0, NODES)
    data = task.load_node(world, 0, NODES)
    assert (data.count("train"), data.count("test")) == (3, 1)
    assert data.splits["test"]["label"].item() in every.splits["test"]["label"]
    assert task.node_profile(world, 0, NODES).num_examples == 3
    assert len(TEXTS) // NODES > 3
