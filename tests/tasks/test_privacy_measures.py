"""The measures of leaked text, worked out by hand, and the table of tokens."""

import math

import pytest
import torch
from fedapps.tasks.privacy.tokens import Recovery, TokenTable, pair, score
from fedapps.tasks.text.privacy import choose_sentences
from fedapps.tasks.text.vocabulary import is_digits
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.lists(st.sampled_from(["a", "b", "7", "8"]), min_size=1, max_size=8)


def test_precision_and_recall_count_occurrences():
    # Of 4 recovered words "the", "the", "cat" stand in the target: 3/4. Of its 5 words, "the", "cat" and "the": 3/5.
    one = Recovery(("the", "cat", "saw", "the", "dog"), ("the", "the", "cat", "mouse"))
    assert (one.precision, one.recall) == (3 / 4, 3 / 5)


def test_f1_is_of_the_averages_and_ptlr_is_pooled():
    recoveries = [Recovery(("a", "1", "2", "3"), ("a", "1", "2", "3", "3")), Recovery(("b", "4"), ("c", "d", "e", "b"))]
    scores = score(recoveries, is_digits)
    # precision (1 + 1/4)/2, recall (1 + 1/2)/2; digit tokens 1, 2, 3 of 1, 2, 3, 4, although 3 came twice
    assert scores.precision == 5 / 8
    assert scores.recall == 3 / 4
    assert scores.f1 == pytest.approx(2 * (5 / 8) * (3 / 4) / (5 / 8 + 3 / 4))
    assert scores.ptlr == 3 / 4
    assert math.isnan(score(recoveries).ptlr)  # no word is private


def test_nothing_recovered_and_no_digits():
    scores = score([Recovery(("a", "b"), ())])
    assert (scores.precision, scores.recall, scores.f1) == (0, 0, 0)
    assert math.isnan(scores.ptlr)
    with pytest.raises(ValueError, match="no texts"):
        score([])


@given(WORDS, WORDS)
def test_measures_stay_in_range_and_a_copy_is_perfect(target, recovered):
    one = Recovery(tuple(target), tuple(recovered))
    assert 0 <= one.precision <= 1
    assert 0 <= one.recall <= 1
    assert (one.recall == 0) == (one.precision == 0)
    copy = score([Recovery(tuple(target), tuple(target))])
    assert (copy.precision, copy.recall, copy.f1) == (1, 1, 1)


@given(st.permutations([("a", "b"), ("c", "7"), ("d", "e", "f")]))
def test_the_order_of_a_batch_does_not_matter(texts):
    targets = [("a", "b"), ("c", "7"), ("d", "e", "f")]
    assert all(one.target == one.recovered for one in pair(targets, texts))


@pytest.mark.parametrize(
    ("targets", "recovered"),
    [
        ([("a", "b"), ("a", "b", "b", "b")], [("b",), ("a",)]),  # precision 1 either way, recall 1/2 + 1/4 or 1/2 + 3/4
        ([("a",), ("b",)], [("a", "b", "b", "b"), ("a", "b")]),  # recall 1 either way, precision 1/4 + 1/2 or 1/2 + 3/4
    ],
)
def test_precision_and_recall_both_count_in_a_pair(targets, recovered):
    assert [one.recovered for one in pair(targets, recovered)] == recovered[::-1]


def test_one_text_stands_for_the_whole_batch():
    assert pair([("a", "b"), ("b", "c")], [["b", "c"]]) == [Recovery(("a", "b", "b", "c"), ("b", "c"))]
    with pytest.raises(ValueError, match="2 recovered texts for 3 targets"):
        pair([("a",), ("b",), ("c",)], [["a"], ["b"]])


def test_sentences_of_three_digit_tokens_and_thirty_tokens_are_chosen():
    sentences = [["1", "2", "x"], ["1", "2", "3"], ["4", "5", "6", *"x" * 27], ["4", "5", "6", *"x" * 28]]
    assert sorted(choose_sentences(sentences, 2, seed=0)) == [1, 2]
    with pytest.raises(ValueError, match=r"only 2 of 4 have .*use at most 2"):
        choose_sentences(sentences, 3, seed=0)


def test_a_table_encodes_and_finds_the_nearest_words():
    table = TokenTable(("a", "<pad>", "b"), torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]]), "<pad>")
    rows, lengths = table.encode([["a", "b"], ["b"]])
    assert rows.tolist() == [[0, 2], [2, 1]]
    assert lengths.tolist() == [2, 1]
    # (0, 0) is the padding itself, which is never recovered.
    assert table.nearest(torch.tensor([[0.0, 0.0], [0.1, 2.0]])) == ["a", "b"]
    drawn = table.draw((400, 500), torch.Generator().manual_seed(0))
    assert drawn.shape == (400, 500, 2)
    # the numbers 1, 0, 0, 0, 0, 3
    assert drawn.mean().item() == pytest.approx(2 / 3, abs=0.02)
    assert drawn.std().item() == pytest.approx((22 / 3 / 5) ** 0.5, rel=0.02)


def test_a_table_without_its_private_rows_keeps_the_others():
    table = TokenTable(("a", "1", "b"), torch.arange(6.0).reshape(3, 2))
    left = table.without(is_digits, torch.Generator().manual_seed(0))
    assert torch.equal(left.vectors[[0, 2]], table.vectors[[0, 2]])
    assert not torch.isclose(left.vectors[1], table.vectors[1]).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenTable(("a",), torch.zeros(2, 3)), "1 words need one row each"),
        (lambda: TokenTable(("a", "a"), torch.zeros(2, 3)), "distinct"),
        (lambda: TokenTable(("a",), torch.zeros(1, 3), "<pad>"), "padding = '<pad>'"),
        (lambda: TokenTable(("a",), torch.zeros(1, 3)).encode([["b"]]), "without a row in the table: 'b'"),
        (lambda: TokenTable(("a",), torch.zeros(1, 3)).encode([["a"], ["a", "a"]]), "need a padding"),
        (lambda: TokenTable(("a",), torch.zeros(1, 3)).encode([[]]), "at least one word"),
    ],
)
def test_tables_refuse_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()
