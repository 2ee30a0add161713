"""Nodes that begin with embeddings of their own."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.word_vectors import assigned_start
from text_world import (
    FEDRECON,
    FEDVOCAB,
    NODES,
    OWN_START,
    SHARED,
    SMALL,
    assert_equal,
    model_for,
    model_of,
    nodes_of,
    renamed,
    state,
    vectors,
)
from tiny_encoder import encoder_folder


class TestOwnStart:
    """Every node begins with an embedding of its own."""

    def test_each_node_draws_its_own_vectors_and_always_the_same(self, scores):
        task = TextTask(SMALL).under(OWN_START)
        nodes = nodes_of(task, scores)
        one, other = (vectors(model_for(task, node), node) for node in nodes[:2])
        assert not any(torch.equal(one[word], other[word]) for word in set(one) & set(other))
        again = vectors(model_for(task, nodes[0]), nodes[0])
        assert all(torch.equal(one[word], again[word]) for word in one)

    def test_of_digits_alone_only_these_are_drawn_by_the_node(self, scores):
        task = TextTask(SMALL).under(replace(FEDRECON, own_start=True))
        one, other = (model_for(task, node).embedding for node in nodes_of(task, scores)[:2])
        assert torch.equal(one.weight, other.weight)
        assert not torch.equal(one.private[0], other.private[0])

    def test_files_of_vectors_are_dealt_by_key(self, scores, tmp_path):
        for name, number in (("a", 1), ("b", 2)):
            (tmp_path / f"{name}.txt").write_text(f"win {number} 0 0 0\n{name} 1 1 1 1\n")
        starts = f"{tmp_path / 'a.txt'}, {tmp_path / 'b.txt'}"
        task = TextTask(replace(SMALL, own_starts=starts)).under(OWN_START)
        for node in nodes_of(task, scores):
            dealt = assigned_start(task.options, OWN_START, node.key)
            model = model_for(task, node)
            assert vectors(model, node)["win"].tolist() == [1 if dealt.endswith("a.txt") else 2, 0, 0, 0]
            assert_equal(state(model, "embedding."), state(model_of(task), "embedding."))
            assert task.evaluate(model, node, seed=0, final=True).metrics["vocabulary.in_glove"] > 0
        plain = TextTask(replace(SMALL, own_starts=starts)).under(FEDVOCAB)
        node = plain.load_node(scores, 0, NODES)
        assert vectors(model_for(plain, node), node)["win"][1] != 0

    def test_a_deal_is_about_even_and_needs_a_private_embedding(self):
        options = replace(SMALL, own_starts="a,b,c")
        dealt = Counter(assigned_start(options, OWN_START, f"client-{k:03d}") for k in range(300))
        assert set(dealt) == {"a", "b", "c"}
        assert min(dealt.values()) > 70
        assert {
            assigned_start(options, privacy, "k") for privacy in (SHARED, FEDVOCAB, PrivateParameters((), True))
        } == {""}
        assert assigned_start(SMALL, OWN_START, "k") == ""

    def test_files_for_digits_alone_are_refused(self):
        with pytest.raises(DataError, match=r"text\.own-starts = 'a': the method keeps only the vectors of digits"):
            TextTask(replace(SMALL, own_starts="a")).under(replace(FEDRECON, own_start=True))


class TestOwnStartOfTransformers:
    """Embeddings of other encoders under one body."""

    @pytest.fixture
    def model(self, tmp_path):
        return str(encoder_folder(tmp_path / "model"))

    def test_each_node_draws_its_own_tables(self, scores, model):
        task = TextTask(replace(SMALL, model=model, max_length=8)).under(OWN_START)
        one, other = (model_for(task, node) for node in nodes_of(task, scores)[:2])
        same = {name for name, tensor in one.state_dict().items() if torch.equal(tensor, other.state_dict()[name])}
        words = "embedding.word_embeddings"
        drawn = {f"{words}.weight", f"{words}.public", "embedding.position_embeddings.weight"}
        assert set(one.state_dict()) - same == drawn
        assert_equal(state(one, "embedding."), state(model_of(task), "embedding."))
        assert one.embedding.word_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.3)

    def test_of_a_private_table_of_words_alone_only_this_is_drawn(self, scores, model):
        table = "embedding.word_embeddings."
        private = PrivateParameters((f"{table}weight",), own_start=True)
        task = TextTask(replace(SMALL, model=model, max_length=8)).under(private)
        assert_equal(state(model_for(task, task.load_node(scores, 0, NODES)), table), state(model_of(task), table))

    @pytest.mark.parametrize("weights", ["pretrained", "random"])
    def test_a_node_has_the_tokens_and_embeddings_of_the_encoder_dealt_to_it(self, scores, tmp_path, model, weights):
        other = encoder_folder(tmp_path / "dealt", "bert")
        dealt = renamed(other, "tokenizer.json", {"one": "win", "two": "goals", "three": "in"})
        options = replace(SMALL, model=model, own_starts=dealt, max_length=8, weights=weights)
        task = TextTask(options).under(OWN_START)
        node = task.load_node(scores, 0, NODES)
        assert node.extra["vocabulary"].words[4:8] == ("win", "goals", "in", "##s")
        built = model_for(task, node)
        assert "embedding.token_type_embeddings.weight" in built.state_dict()
        assert_equal(state(built, "embedding."), state(model_of(task), "embedding."))
        assert_equal(state(model_for(task, node), "none"), state(built, "none"))
        metrics = task.evaluate(built, node, seed=0, final=True).metrics
        assert metrics["test.global_accuracy.count"] == 7

    def test_embeddings_that_do_not_fit(self, scores, tmp_path, model):
        wide = str(encoder_folder(tmp_path / "wide", "bert"))
        config = tmp_path / "wide" / "config.json"
        config.write_text(config.read_text().replace('"hidden_size": 8', '"hidden_size": 12'))
        task = TextTask(replace(SMALL, model=model, own_starts=wide, max_length=8)).under(OWN_START)
        with pytest.raises(
            DataError, match=r"'.*wide' have 12 numbers per token, but .* '.*model' expects 8; name enc"
        ):
            model_for(task, task.load_node(scores, 0, NODES))
        words_alone = PrivateParameters(("embedding.word_embeddings.*",), own_start=True)
        task = TextTask(replace(SMALL, model=model, own_starts=model, max_length=8)).under(words_alone)
        with pytest.raises(DataError, match=r"cannot share embedding\.LayerNorm\.bias, .*leave it empty"):
            model_for(task, task.load_node(scores, 0, NODES))
