"""The subspace attack: numbers worked out by hand, its invariant, and the layers that it reads."""

import pytest
import torch
from fedapps.tasks.privacy.audit import Attacker, audit, subspace
from fedapps.tasks.privacy.leaks import residual, span_of_inputs, words_in_span
from fedapps.tasks.privacy.sharing import Observation, Sharing, Victim
from fedapps.tasks.privacy.tokens import TokenTable, score
from fedapps.tasks.text.networks import BiLstm
from fedapps.tasks.text.privacy import SHARINGS, above_words
from fedapps.tasks.text.vocabulary import is_digits
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_encoder import classifier, encoder_folder
from torch import nn

PLAIN = nn.Identity()


def seen(gradient, *lengths, name="encoder.weight_ih_l0"):
    return Observation({name: gradient}, (), torch.zeros(0, gradient.shape[1]), torch.tensor(lengths))


def read(observation, body, table):
    (words,) = subspace.run(observation, body).read(table)
    return words


def test_two_words_of_a_small_table_by_hand():
    # Inputs a and b with the derivatives (1, 0) and (0, 2): rows (1, 0, 0, 0) and (2, 2, 0, 0).
    gradient = torch.tensor([[1.0, 0, 0, 0], [2, 2, 0, 0]])
    vectors = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0], [2, 1, 1, 0], [0, 0, 0, 0]])
    basis = span_of_inputs(gradient, 2)
    assert basis.shape == (2, 4)
    # The last two coordinates are outside. A random direction has half of its squared norm outside: divide by √½.
    assert residual(basis, vectors[:5]).tolist() == pytest.approx(
        [0, 0, 1, 2**0.5, (1 / 6) ** 0.5 / 0.5**0.5], abs=1e-7
    )
    table = TokenTable(("a", "b", "c", "d", "e", "<pad>"), vectors, "<pad>")
    assert set(read(seen(gradient, 2), PLAIN, table)) == {"a", "b"}
    without_b = TokenTable(("a", "c", "d", "e"), vectors[[0, 2, 3, 4]])
    assert read(seen(gradient, 2), PLAIN, without_b) == ["a"]
    # e has 0.577 of a random residual.
    assert words_in_span(basis, PLAIN, without_b, 2, tolerance=0.6) == ["a", "e"]


def test_one_word_is_read_alone_and_a_zero_gradient_reads_nothing():
    table = TokenTable(("a", "twice a", "b"), torch.tensor([[1.0, 2, 3], [2, 4, 6], [3, 2, 1]]))
    gradient = torch.tensor([[0.5], [-1.0]]) @ table.vectors[2:]
    assert read(seen(gradient, 4), PLAIN, table) == ["b"]
    assert read(seen(torch.zeros(2, 3), 4), PLAIN, table) == []


def test_a_gradient_of_full_rank_still_tells_the_words_with_large_influence():
    gradient = torch.diag(torch.tensor([5.0, 4, 3, 2, 1]))
    table = TokenTable(tuple("abcde"), torch.eye(5))
    assert read(seen(gradient, 5), PLAIN, table) == list("abcd")
    # At most as many directions as tokens, which the attacker knows.
    assert span_of_inputs(gradient, 2).abs().tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]


def test_residuals_are_relative_to_a_random_direction():
    torch.manual_seed(0)
    basis = span_of_inputs(torch.randn(100, 300), 100)
    assert len(basis) == 100
    assert residual(basis, torch.randn(500, 300)).mean().item() == pytest.approx(1, abs=0.01)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 10), st.integers(10, 30), st.sampled_from([torch.float32, torch.float64]))
@example(0, 10, 10, torch.float32)
def test_fewer_words_than_dimensions_are_read_exactly(seed, count, rows, dtype):
    generator = torch.Generator().manual_seed(seed)
    table = TokenTable(tuple(map(str, range(60))), torch.randn(60, 12, generator=generator, dtype=dtype))
    written = torch.randperm(60, generator=generator)[:count]
    gradient = torch.randn(rows, count, generator=generator, dtype=dtype) @ table.vectors[written]
    assert set(read(seen(gradient, count), PLAIN, table)) == {table.words[row] for row in written}


def lstm_victim(width=16):
    torch.manual_seed(0)
    model = BiLstm(nn.Embedding(30, width), 4, hidden=10, dropout=0.5)
    words = ("<pad>", *map(str, range(29)))
    return Victim(above_words(model), TokenTable(words, model.embedding.weight.detach(), "<pad>"))


def test_the_gradient_of_an_lstm_gives_all_words_and_no_others():
    victim = lstm_victim()
    sentences = [["1", "2", "3", "2", "4"], ["5", "6"], ["7", "8", "1", "9"]]
    observation = victim.share(sentences, [0, 3, 1], SHARINGS["fedvocab"])
    written = {word for sentence in sentences for word in sentence}
    assert set(read(observation, victim.body, victim.table)) == written
    # A table that training has moved reads them, too.
    public = TokenTable(victim.table.words, victim.table.vectors + 0.02 * torch.randn(30, 16), "<pad>")
    assert set(read(observation, victim.body, public)) == written
    views = [(SHARINGS["fedvocab"], Attacker("known", victim.body, victim.table))]
    (result,) = audit(victim, sentences, [0, 3, 1], views=views, attack=subspace, batch_size=3)
    assert (result.attack, result.distances) == ("subspace", ())
    scores = score(result.recoveries, is_digits)
    assert (scores.precision, scores.recall, scores.ptlr) == (1, 1, 1)


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
def test_the_first_projections_of_a_transformer_give_the_words(kind, tmp_path):
    torch.manual_seed(1)
    folder = str(encoder_folder(tmp_path, kind))
    torch.manual_seed(1)
    model = classifier(folder, 4, dropout=0.5)
    table = TokenTable(tuple("PUCSabcd"), model.embedding.word_embeddings.weight.detach(), "P")
    victim = Victim(above_words(model), table)
    for sentences in ([list("CbaS")], [list("CaS"), list("CdS")]):
        observation = victim.share(sentences, list(range(len(sentences))), SHARINGS["fedvocab"])
        written = {word for sentence in sentences for word in sentence}
        assert set(read(observation, victim.body, table)) == written


def test_the_first_layer_must_be_shared():
    victim = lstm_victim()
    observation = victim.share([["1"]], [0], Sharing("lg-fedavg", ("classifier.*",), lambda word: False))
    with pytest.raises(ValueError, match=r"no first layer among classifier.weight, classifier.bias"):
        read(observation, victim.body, victim.table)
