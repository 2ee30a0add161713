"""The initial vector of the unknown word."""

from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.word_vectors import with_unknown
from hypothesis import given
from hypothesis import strategies as st
from text_world import FEDRECON, FEDVOCAB, SHARED, SMALL, model_for, nodes_of, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("scores"))


def public_table(privacy, world, unknown):
    """The table with the unknown word, of the first node."""
    task = TextTask(replace(SMALL, unknown=unknown)).under(privacy)
    data = nodes_of(task, world)[0]
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
def test_the_unknown_word_of_a_model(world, privacy):
    drawn = public_table(privacy, world, "drawn")
    assert torch.equal(public_table(privacy, world, "mean")[1], drawn[2:].mean(dim=0))
    assert torch.equal(public_table(privacy, world, "zeros")[1], torch.zeros(4))
    assert torch.equal(public_table(privacy, world, "zeros")[2:], drawn[2:])


def test_the_table_of_digit_words_has_no_unknown_word(world):
    tables = []
    for unknown in ("drawn", "zeros"):
        task = TextTask(replace(SMALL, unknown=unknown)).under(FEDRECON)
        tables.append(model_for(task, nodes_of(task, world)[0]).embedding.private.detach())
    assert torch.equal(*tables)


def test_a_transformer_has_no_such_option():
    with pytest.raises(DataError, match=r"text\.unknown = 'mean': only the LSTM has an unknown word"):
        TextTask(Options(model="distilbert-base-uncased", unknown="mean"))
