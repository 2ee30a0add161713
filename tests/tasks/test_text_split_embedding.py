"""An embedding in two parameters says and learns what one table would."""

import pytest
import torch
from fedapps.tasks.text.networks import SplitEmbedding, places_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn


def table(rows, width=3):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


def test_places_by_hand():
    assert places_of([False, True, False, True, True]).tolist() == [0, -1, 1, -2, -3]
    assert places_of([]).tolist() == []


def test_only_the_two_parameters_are_state():
    split = SplitEmbedding.of(table(5), [False, True, False, True, True])
    assert {name: tuple(t.shape) for name, t in split.state_dict().items()} == {"weight": (2, 3), "private": (3, 3)}
    assert torch.equal(split.weight, table(5)[[0, 2]])
    assert torch.equal(split.private, table(5)[[1, 3, 4]])
    assert split.embedding_dim == 3


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_says_and_learns_what_one_table_would(private, data):
    whole = nn.Embedding(len(private), 3, _weight=table(len(private)))
    split = SplitEmbedding.of(whole.weight.detach(), private)
    numbers = st.integers(0, len(private) - 1)
    ids = torch.tensor(data.draw(st.lists(st.tuples(numbers, numbers), max_size=5)), dtype=torch.int32).reshape(-1, 2)
    found, expected = split(ids), whole(ids)
    assert torch.equal(found, expected)
    (found**2).sum().backward()
    (expected**2).sum().backward()
    mask = torch.tensor(private)
    for part, chosen in ((split.weight, ~mask), (split.private, mask)):
        rows = int(chosen.sum())
        torch.testing.assert_close(part.grad[:rows], whole.weight.grad[chosen])
        assert part.grad[rows:].abs().sum() == 0


@pytest.mark.parametrize("private", [True, False])
def test_a_part_without_rows_has_one_that_nothing_points_at(private):
    split = SplitEmbedding.of(table(4), [private] * 4)
    empty = split.weight if private else split.private
    assert empty.tolist() == [[0, 0, 0]]
    assert torch.equal(split(torch.arange(4)), table(4))


def test_rows_beyond_the_words_are_allowed():
    split = SplitEmbedding(table(9), table(2), places_of([False, True, False]))
    assert torch.equal(split(torch.arange(3)), torch.stack([table(9)[0], table(2)[0], table(9)[1]]))
