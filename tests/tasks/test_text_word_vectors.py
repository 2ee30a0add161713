"""Vectors that are drawn by the word."""

import hashlib
import math
import time
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.word_vectors import drawn_vectors, with_unknown
from hypothesis import given
from hypothesis import strategies as st
from text_world import FEDRECON, FEDVOCAB, SHARED, SMALL, model_for, nodes_of

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


def test_no_words_have_no_vectors():
    assert drawn_vectors([], 3, 0).shape == (0, 3)


def test_a_nodes_vocabulary_costs_little_again_and_again():
    words = tuple(f"w{i}" for i in range(6000))
    drawn_vectors(words, 100, 0)
    took = []
    for _ in range(5):
        begun = time.process_time()
        drawn_vectors(words, 100, 0)
        took.append(time.process_time() - begun)
    assert min(took) < 0.05


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


@given(words=st.integers(0, 5), unknown=st.sampled_from(["drawn", "mean", "zeros"]))
def test_no_other_vector_changes(words, unknown):
    table = torch.randn(2 + words, 3)
    found = with_unknown(table.clone(), unknown)
    others = [0, *range(2, 2 + words)]
    assert torch.equal(found[others], table[others])


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


def test_a_transformer_has_no_such_option():
    with pytest.raises(DataError, match=r"text\.unknown = 'mean': only the LSTM has an unknown word"):
        TextTask(Options(model="distilbert-base-uncased", unknown="mean"))
