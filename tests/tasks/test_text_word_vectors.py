"""Vectors that are drawn by the word."""

import hashlib
import math
import time
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.text.networks import SplitEmbedding
from fedapps.tasks.text.nodes import translated
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.vocabulary import DIGITS, SPECIAL, WordVocabulary
from fedapps.tasks.text.word_vectors import drawn_vectors, with_unknown
from hypothesis import given
from hypothesis import strategies as st
from text_world import (
    FEDRECON,
    FEDVOCAB,
    NODES,
    OWN_START,
    SHARED,
    SMALL,
    TEXTS,
    assert_equal,
    model_for,
    model_of,
    nodes_of,
    renamed,
    state,
    vectors,
)
from tiny_encoder import encoder_folder

from fedapps.base.seeding import derive_seed

MASK = 2**64 - 1
WORDS = st.lists(st.text(max_size=4), max_size=8)


def mixed(number):
    """SplitMix64's output function, in whole numbers."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK
    return number ^ number >> 31


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_numbers_of_one_word_by_hand(width):
    (key,) = (int.from_bytes(hashlib.blake2b(b"rain", digest_size=8).digest(), "little"),)
    key = mixed(key ^ derive_seed(3, "text.words"))
    half = (width + 1) // 2
    bits = [mixed((key + column * 0x9E3779B97F4A7C15) & MASK) for column in range(half)]
    lengths = [math.sqrt(-2 * math.log(((b >> 32) + 0.5) / 2**32)) for b in bits]
    angles = [2 * math.pi * (b & 0xFFFFFFFF) / 2**32 for b in bits]
    expected = [r * math.cos(a) for r, a in zip(lengths, angles, strict=True)]
    expected += [r * math.sin(a) for r, a in zip(lengths, angles, strict=True)]
    found = drawn_vectors(["rain"], width, 3)
    assert (found.dtype, found.shape) == (torch.float32, (1, width))
    torch.testing.assert_close(found[0], torch.tensor(expected[:width]), atol=1e-5, rtol=1e-5)


@given(WORDS, WORDS, st.integers(0, 2**62), st.integers(1, 5))
def test_a_words_vector_depends_on_neither_its_place_nor_other_words(words, others, seed, width):
    table = drawn_vectors([*others, *words], width, seed)
    assert torch.equal(table[len(others) :], drawn_vectors(words, width, seed))
    assert torch.isfinite(table).all()


def test_they_are_normal_and_independent():
    words = [f"w{i}" for i in range(20_000)]
    table = drawn_vectors(words, 4, 0)
    torch.testing.assert_close(table.mean(dim=0), torch.zeros(4), atol=0.03, rtol=0)
    torch.testing.assert_close(torch.cov(table.T), torch.eye(4), atol=0.04, rtol=0)
    torch.testing.assert_close((table**4).mean(dim=0), torch.full((4,), 3.0), atol=0.25, rtol=0)
    other = drawn_vectors(words, 4, 1)
    torch.testing.assert_close((table * other).mean(dim=0), torch.zeros(4), atol=0.03, rtol=0)


def public_table(privacy, scores, unknown):
    """The table with the unknown word, of the first node."""
    task = TextTask(replace(SMALL, unknown=unknown)).under(privacy)
    data = nodes_of(task, scores)[0]
    return model_for(task, data).embedding.weight.detach()


def test_the_vectors_by_hand():
    """Padding and the unknown word first, then two words with the mean (2, 5)."""
    rows = [[9.0, 9.0], [7.0, 7.0], [1.0, 4.0], [3.0, 6.0]]
    expected = {"drawn": [7.0, 7.0], "mean": [2.0, 5.0], "zeros": [0.0, 0.0]}
    for unknown, vector in expected.items():
        table = with_unknown(torch.tensor(rows), unknown)
        assert table.tolist() == [rows[0], vector, *rows[2:]]
    assert with_unknown(torch.ones(2, 3), "mean")[1].tolist() == [0.0, 0.0, 0.0]  # no words to average


@pytest.mark.parametrize("privacy", [SHARED, FEDRECON, FEDVOCAB])
def test_the_unknown_word_of_a_model(scores, privacy):
    drawn = public_table(privacy, scores, "drawn")
    assert torch.equal(public_table(privacy, scores, "mean")[1], drawn[2:].mean(dim=0))
    assert torch.equal(public_table(privacy, scores, "zeros")[1], torch.zeros(4))
    assert torch.equal(public_table(privacy, scores, "zeros")[2:], drawn[2:])


def test_the_table_of_digit_words_has_no_unknown_word(scores):
    tables = []
    for unknown in ("drawn", "zeros"):
        task = TextTask(replace(SMALL, unknown=unknown)).under(FEDRECON)
        tables.append(model_for(task, nodes_of(task, scores)[0]).embedding.private.detach())
    assert torch.equal(*tables)


# What nodes begin with: alike word by word, or with digits of their own.


@pytest.fixture
def words_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("win\n1990\nloss\ngoals\n3\nin\n")
    return path


class TestSameStart:
    """All nodes begin alike."""

    @pytest.mark.parametrize("glove", [False, True])
    def test_a_word_has_the_same_vector_on_every_node(self, scores, tmp_path, glove):
        (tmp_path / "glove.txt").write_text("win 1 2 3 4\ngoals 5 6 7 8\n")
        task = TextTask(replace(SMALL, glove=str(tmp_path / "glove.txt") if glove else "")).under(FEDVOCAB)
        nodes = nodes_of(task, scores)
        assert len({node.extra["vocabulary"].words for node in nodes}) == NODES
        one, other = (vectors(model_for(task, node), node) for node in nodes[:2])
        common = set(one) & set(other)
        assert {*SPECIAL, "win", "goals", "in"} <= common < set(one)
        assert all(torch.equal(one[word], other[word]) for word in common)
        assert (one["goals"].tolist() == [5, 6, 7, 8]) is glove
        again = vectors(model_for(task, nodes[0], seed=1), nodes[0])
        assert not torch.equal(again["in"], one["in"])

    @pytest.mark.parametrize("privacy", [SHARED, FEDVOCAB, FEDRECON, OWN_START])
    @pytest.mark.parametrize("file", [False, True])
    def test_shared_parameters_begin_as_the_servers(self, scores, words_file, privacy, file):
        task = TextTask(replace(SMALL, vocabulary_size=40, vocabulary_file=str(words_file) if file else ""))
        task = task.under(privacy)
        private = {SHARED: "none", FEDRECON: "embedding.private"}.get(privacy, "embedding.")
        server = state(model_of(task), private)
        for node in nodes_of(task, scores):
            assert_equal(state(model_for(task, node), private), server)

    def test_encoders_begin_alike_under_every_method(self, scores):
        encoders = []
        for privacy in (SHARED, FEDVOCAB, FEDRECON, OWN_START):
            task = TextTask(SMALL).under(privacy)
            encoders.append(state(model_for(task, task.load_node(scores, 0, NODES)), "embedding."))
        for encoder in encoders[1:]:
            assert_equal(encoder, encoders[0])

    def test_a_message_waits_little_for_its_model(self):
        task = TextTask(replace(SMALL, embedding_width=100, hidden=100)).under(FEDVOCAB)
        words = WordVocabulary(SPECIAL + tuple(f"w{i}" for i in range(6000)))
        data = NodeData("client-000", {}, extra={"vocabulary": words})
        model_for(task, data)
        took = []
        for _ in range(5):
            begun = time.process_time()
            model_for(task, data)
            took.append(time.process_time() - begun)
        assert min(took) < 0.05


class TestDigitsOfTheirOwn:
    """FedRecon: all is shared but the vectors of digit words."""

    def test_nodes_have_rows_for_their_own_digits_only(self, scores):
        task = TextTask(replace(SMALL, vocabulary_size=40)).under(FEDRECON)
        nodes = nodes_of(task, scores)
        everybody = {word for text in TEXTS for word in text.split()}
        for node in nodes:
            words = node.extra["vocabulary"].words
            own = words[words.index(DIGITS) + 1 :]
            assert all(word.isdigit() for word in own)
            assert set(words) - set(own) == {*SPECIAL, DIGITS, *(w for w in everybody if not w.isdigit())}
            seen = {words[i] for i in node.splits["train"]["ids"].flatten().tolist()}
            assert set(own) == {word for word in seen if word.isdigit()}
            model = model_for(task, node)
            assert model.embedding.weight.shape == (42, 4)
            assert model.embedding.private.shape == (1 + len(own), 4)
        assert len({node.extra["vocabulary"].words for node in nodes}) == NODES
        assert model_of(task).embedding.private.shape == (1, 4)

    def test_common_tests_are_in_the_nodes_own_numbers(self, scores):
        """The test 'win 2050 goals': nobody has seen 2050."""
        task = TextTask(replace(SMALL, vocabulary_size=40)).under(FEDRECON)
        written = sorted([*TEXTS[:6], "win 2050 goals"])
        for node in nodes_of(task, scores):
            words = node.extra["vocabulary"].words
            common = node.extra["common_test"]
            batch = translated(common.examples, common.translation)
            rows = zip(batch["ids"].tolist(), batch["length"].tolist(), strict=True)
            found = sorted(tuple(words[i] for i in ids[:length]) for ids, length in rows)
            expected = sorted(
                tuple(word if word in words or not word.isdigit() else DIGITS for word in text.split())
                for text in written
            )
            assert found == expected
            assert ("win", DIGITS, "goals") in found

    def test_unseen_digits_share_a_private_vector(self, scores):
        task = TextTask(SMALL).under(FEDRECON)
        node = task.load_node(scores, 0, NODES)
        model, vocabulary = model_for(task, node), node.extra["vocabulary"]
        unknown = model.embedding(torch.tensor(vocabulary.encode(["31415"], 9)))
        assert torch.equal(unknown[0, 0], model.embedding.private[0])

    def test_with_words_in_common_it_is_the_model_of_one_table(self, scores, words_file):
        """Digits of the file that are the node's too, so that both models have rows for the words of these texts."""
        words_file.write_text("win\n" + "\n".join(str(n) for n in [*range(8), *range(1990, 1998)]) + "\ngoals\nin\n")
        whole = TextTask(replace(SMALL, vocabulary_file=str(words_file)))
        split = whole.under(FEDRECON)
        one, other = whole.load_all(scores), split.load_all(scores)
        assert isinstance(model_for(split, other).embedding, SplitEmbedding)
        texts = [text for text in TEXTS if all(w in other.extra["vocabulary"].words for w in text.split())]
        assert texts
        logits = []
        for task, data in ((whole, one), (split, other)):
            encoded = data.extra["vocabulary"].encode(texts, 9)
            lengths = torch.tensor([len(ids) for ids in encoded])
            logits.append(model_for(task, data)(torch.tensor(encoded), lengths))
        assert torch.equal(*logits)

    def test_it_learns_and_is_evaluated(self, scores):
        task = TextTask(SMALL).under(FEDRECON)
        node = task.load_node(scores, 0, NODES)
        model = model_for(task, node)
        (batch,) = task.examples(node, "train", 99)
        task.loss(model, batch).backward()
        assert model.embedding.private.grad.abs().sum(dim=1).ne(0).tolist() == [False] + [True] * (
            len(model.embedding.private) - 1
        )
        words = [word for word in node.extra["vocabulary"].words if word not in {*SPECIAL, DIGITS}]
        assert task.evaluate(model, node, seed=0, final=True).metrics["vocabulary.words"] == len(words)

    @pytest.mark.slow
    def test_an_lstm_with_the_tokens_of_a_file(self, scores, tmp_path):
        renamed(encoder_folder(tmp_path), "tokenizer.json", {"two": "##1", "three": "7"})
        task = TextTask(replace(SMALL, vocabulary_file=str(tmp_path / "tokenizer.json"))).under(FEDRECON)
        model = model_for(task, task.load_node(scores, 0, NODES))
        assert (model.embedding.weight.shape, model.embedding.private.shape) == ((6, 4), (2, 4))
        assert_equal(model.state_dict(), model_of(task).state_dict())

    def test_digits_of_a_tokenizer_are_the_same_everywhere(self, scores, tmp_path):
        folder = renamed(encoder_folder(tmp_path), "tokenizer.json", {"two": "##1", "three": "7"})
        whole = TextTask(replace(SMALL, model=folder, max_length=8))
        split = whole.under(FEDRECON)
        server = model_of(split)
        assert server.embedding.word_embeddings.weight.shape == (6, 8)
        assert server.embedding.word_embeddings.private.shape == (2, 8)
        node = split.load_node(scores, 0, NODES)
        model = model_for(split, node)
        assert_equal(state(model, "none"), state(server, "none"))
        (batch,) = split.examples(node, "train", 99)
        expected = model_for(whole, node)(batch["ids"], batch["length"])
        assert torch.equal(model(batch["ids"], batch["length"]), expected)
