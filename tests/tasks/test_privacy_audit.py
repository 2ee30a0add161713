"""Audits: methods, attackers and attacks put together on a small LSTM and on a tiny transformer."""

from fnmatch import fnmatchcase
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.privacy.audit import (
    ATTACKERS,
    Attack,
    Attacker,
    attacker,
    audit,
    gradient_matching,
    permuted,
    row_reading,
    subspace,
)
from fedapps.tasks.privacy.inversion import Inversion, gradient_distance
from fedapps.tasks.privacy.leaks import FIRST_LAYERS
from fedapps.tasks.privacy.sharing import Sentence, Victim
from fedapps.tasks.privacy.tokens import Recovery, TokenTable, score
from fedapps.tasks.text.corpus import Examples
from fedapps.tasks.text.networks import BiLstm
from fedapps.tasks.text.privacy import SHARINGS, above_words, draw_sentences, special_tokens, with_sentences
from fedapps.tasks.text.transformer import load_tokenizer
from fedapps.tasks.text.vocabulary import WordVocabulary, is_digits, padded
from hypothesis import given
from hypothesis import strategies as st
from tiny_encoder import classifier, encoder_folder
from torch import nn

WORDS = ("<pad>", *(f"word{number}" for number in range(20)), *map(str, range(10)))
SENTENCES = [["word3", "1", "word7", "2"], ["word7", "word7"], ["word19", "9", "word0"]]
LABELS = [0, 3, 1]
FAST = Inversion(optimizer="adam", learning_rate=0.05, steps=2, restarts=1, vectorised=False)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return BiLstm(nn.Embedding(len(WORDS), 8), 4, hidden=10, dropout=0.5)


def table_of(vectors):
    return TokenTable(WORDS, vectors.detach().clone(), "<pad>")


@pytest.fixture(scope="module")
def start(model):
    return Victim(above_words(model), table_of(model.embedding.weight))


@pytest.fixture(scope="module")
def victim(model):
    """The same, a little later."""
    torch.manual_seed(1)
    body = above_words(model)
    with torch.no_grad():
        for parameter in body.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return Victim(body, table_of(model.embedding.weight + 0.1 * torch.randn(len(WORDS), 8)))


def anybody(victim):
    return Attacker("anybody", victim.body, victim.table)


def views_of(victim, start):
    return [(sharing, attacker(name, sharing, victim, start, 0)) for sharing in SHARINGS.values() for name in ATTACKERS]


# -- the body -------------------------------------------------------------------------------------------------


def test_above_its_words_an_lstm_is_the_same(model):
    body = above_words(model)
    ids, length = torch.tensor([[3, 4, 5], [7, 0, 0]]), torch.tensor([3, 1])
    torch.testing.assert_close(body(model.embedding(ids), length), model.eval()(ids, length))
    names = [name for name, _ in model.named_parameters() if not name.startswith("embedding.")]
    assert [name for name, _ in body.named_parameters()] == names
    assert SHARINGS["fedvocab"].names(body) == SHARINGS["fedavg"].names(body) == names


@pytest.mark.parametrize("sharing", SHARINGS.values(), ids=SHARINGS)
def test_a_method_says_whether_it_shares_the_first_layer(model, sharing):
    names = sharing.names(above_words(model))
    assert sharing.first_layer == any(fnmatchcase(name, pattern) for name in names for pattern in FIRST_LAYERS)


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
def test_above_its_words_a_transformer_is_the_same_and_can_be_matched(kind, tmp_path):
    model = classifier(encoder_folder(tmp_path, kind), 4, dropout=0.5)
    body, words = above_words(model), model.embedding.word_embeddings.weight.detach()
    ids, length = torch.tensor([[2, 4, 5, 3], [2, 6, 3, 0]]), torch.tensor([4, 3])
    torch.testing.assert_close(body(words[ids], length), model.eval()(ids, length))
    assert SHARINGS["fedavg"].names(body) == [name for name, _ in body.named_parameters()]
    above = {name for name in SHARINGS["fedavg"].names(body) if name.startswith("embedding.")}
    assert above
    assert not any("word_embeddings" in name for name in above)
    assert set(SHARINGS["fedvocab"].names(body)) == set(SHARINGS["fedavg"].names(body)) - above
    table = TokenTable(tuple(map(str, range(8))), words, "0")
    seen = Victim(body, table).share([["2", "4", "5", "3"], ["2", "6", "3"]], [0, 1], SHARINGS["fedvocab"])
    guess = words[ids][None].requires_grad_()
    distance = gradient_distance(seen, body, guess, torch.eye(4)[None, :2], vectorised=False)
    assert distance.item() == pytest.approx(0, abs=1e-10)
    torch.autograd.grad(distance.sum(), guess)


def test_an_embedding_that_takes_no_vectors_is_refused(model):
    class Odd(nn.Module):
        def forward(self, ids):
            return ids

    odd = BiLstm(nn.Embedding(3, 4), 2, hidden=2, dropout=0.0)
    odd.embedding = Odd()
    with pytest.raises(ValueError, match=r"Odd accepts no word vectors; expected an argument inputs_embeds"):
        above_words(odd)


# -- attackers ------------------------------------------------------------------------------------------------


def test_what_attackers_hold(victim, start):
    held = {(sharing.method, one.name): one.table.vectors for sharing, one in views_of(victim, start)}
    for method in SHARINGS:
        assert torch.equal(held[method, "public"], start.table.vectors)
        assert not torch.equal(held[method, "foreign"], start.table.vectors)
        assert torch.equal(held[method, "foreign"].sort(0).values, start.table.vectors.sort(0).values)
    assert torch.equal(held["fedavg", "known"], victim.table.vectors)
    assert torch.equal(held["fedvocab", "known"], victim.table.vectors)
    made_up = (held["fedrecon", "known"] != victim.table.vectors).any(1).tolist()
    assert [word for word, differs in zip(WORDS, made_up, strict=True) if differs] == list(map(str, range(10)))
    with pytest.raises(ValueError, match=r"attacker 'clever': must be one of known, public, foreign"):
        attacker("clever", SHARINGS["fedavg"], victim, start, 0)


def test_parameters_that_are_not_shared_are_the_attackers_own(tmp_path):
    folder = str(encoder_folder(tmp_path))
    start = Victim(above_words(classifier(folder, 4)), table_of(torch.randn(31, 8)))
    victim = Victim(above_words(classifier(folder, 4)), start.table)
    with torch.no_grad():
        for parameter in victim.body.parameters():
            parameter += 1
    assert attacker("public", SHARINGS["fedavg"], victim, start, 0).body is victim.body
    assert attacker("known", SHARINGS["fedvocab"], victim, start, 0).body is victim.body
    body = attacker("public", SHARINGS["fedvocab"], victim, start, 0).body
    for name, value in body.named_parameters():
        expected = start if name.startswith("embedding.") else victim
        assert torch.equal(value, expected.body.get_parameter(name))


@given(st.integers(1, 8), st.integers(0, 2**31), st.data())
def test_a_permuted_table_deals_the_same_vectors_to_the_words(count, seed, data):
    words = tuple(map(str, range(count)))
    padding = data.draw(st.sampled_from([None, *words]))
    table = TokenTable(words, torch.arange(2.0 * count).reshape(count, 2), padding)
    other = permuted(table, torch.Generator().manual_seed(seed))
    assert (other.words, other.padding) == (words, padding)
    assert torch.equal(other.vectors.sort(0).values, table.vectors)
    if padding is not None:
        assert torch.equal(other.vectors[int(padding)], table.vectors[int(padding)])


# -- audits ---------------------------------------------------------------------------------------------------


def test_an_audit_holds_what_came_back_against_what_was_written(victim):
    def run(method, batch_size):
        views = [(SHARINGS[method], anybody(victim))]
        (result,) = audit(victim, SENTENCES, LABELS, views=views, attack=row_reading, batch_size=batch_size)
        return result, score(result.recoveries, is_digits)

    alone, scores = run("fedrecon", 1)
    facts = (alone.method, alone.attacker, alone.attack, alone.batch_size, alone.sentences)
    assert facts == ("fedrecon", "anybody", "rows", 1, 3)
    assert alone.recoveries[0] == Recovery(("word3", "1", "word7", "2"), ("word3", "word7"))
    # Recall 2/4, 2/2 and 2/3; the digits 1, 2 and 9 are private.
    assert (scores.precision, scores.ptlr) == (1, 0)
    assert scores.recall == pytest.approx((1 / 2 + 1 + 2 / 3) / 3)
    # Batches of two and one: 4 of 6 words, and 2 of 3.
    assert run("fedrecon", 2)[1].recall == pytest.approx((4 / 6 + 2 / 3) / 2)
    everything = run("fedavg", 3)[1]
    assert (everything.precision, everything.recall, everything.f1, everything.ptlr) == (1, 1, 1, 1)
    assert run("fedvocab", 3)[1].f1 == 0


def test_words_that_everybody_knows_do_not_count(victim):
    views = [(SHARINGS["fedavg"], anybody(victim))]
    (result,) = audit(victim, SENTENCES, LABELS, views=views, attack=row_reading, batch_size=1, ignored={"word7", "1"})
    assert result.recoveries[0] == Recovery(("word3", "2"), ("word3", "2"))
    assert result.recoveries[1] == Recovery((), ())


@pytest.mark.parametrize(("l1_weight", "name"), [(0.0, "dlg"), (0.1, "tag")])
def test_gradient_matching_gives_every_sentence_its_own_text(victim, start, l1_weight, name):
    settings = Inversion(l1_weight, optimizer="adam", learning_rate=0.05, steps=2, restarts=1, vectorised=False)
    attack = gradient_matching(settings, start.table)
    views = views_of(victim, start)
    for result in audit(victim, SENTENCES, LABELS, views=views, attack=attack, batch_size=2):
        assert result.attack == name
        assert [one.target for one in result.recoveries] == list(map(tuple, SENTENCES))
        assert sorted(len(one.recovered) for one in result.recoveries) == [2, 3, 4]
        assert result.seconds > 0
        assert len(result.distances) == 2  # one for each batch
        assert min(result.distances) > 0


def counting(attack):
    runs = []

    def run(observation, body):
        runs.append(observation)
        return attack.run(observation, body)

    return Attack(attack.name, run, attack.reads_rows), runs


def test_one_search_serves_all_who_would_search_the_same(victim, start):
    # LG-FedAvg shares fewer parameters, so its attackers search for themselves.
    views = [(sharing, one) for sharing, one in views_of(victim, start) if sharing.first_layer]
    dlg, searches = counting(gradient_matching(FAST, start.table))
    run = partial(audit, victim, SENTENCES, LABELS, batch_size=2)
    together = run(views=views, attack=dlg)
    assert len(searches) == 2  # one for each batch
    for view, result in zip(views, together, strict=True):
        (alone,) = run(views=[view], attack=gradient_matching(FAST, start.table))
        assert alone.recoveries == result.recoveries
        assert (alone.method, alone.attacker) == (result.method, result.attacker)
    rows, readings = counting(row_reading)
    found = run(views=[(sharing, anybody(victim)) for sharing in SHARINGS.values()], attack=rows)
    assert len(readings) == 2 * len(SHARINGS)
    assert [score(result.recoveries).recall for result in found] == [1, 0, pytest.approx((4 / 6 + 2 / 3) / 2), 0]


def test_a_batch_is_shared_once_for_all_attackers(victim, start):
    shared = []

    class Counting(Victim):
        def share(self, sentences, labels, sharing):
            shared.append(sharing.method)
            return super().share(sentences, labels, sharing)

    own, other = (Attacker(name, body, victim.table) for name, body in (("own", victim.body), ("other", start.body)))
    attack, searches = counting(row_reading)
    views = [(SHARINGS[method], one) for method in ("fedavg", "fedrecon") for one in (own, other)]
    audit(Counting(victim.body, victim.table), SENTENCES, LABELS, views=views, attack=attack, batch_size=3)
    assert shared == ["fedavg", "fedrecon"]
    assert len(searches) == 4


def test_each_method_is_charged_with_the_search_and_its_own_reading_of_all_batches(victim, monkeypatch):
    """A clock that moves by 1 whenever it is read: 1 for the search of each of two batches, and 1 for each reading."""
    monkeypatch.setattr("fedapps.tasks.privacy.audit.process_time", partial(next, count()))
    views = [(SHARINGS[method], anybody(victim)) for method in ("fedavg", "fedvocab")]
    results = audit(victim, SENTENCES, LABELS, views=views, attack=subspace, batch_size=2)
    assert [result.seconds for result in results] == [4, 4]


def test_audits_refuse_what_does_not_fit(victim):
    narrow = Attacker("narrow", victim.body, TokenTable(WORDS, torch.zeros(len(WORDS), 5)))
    run = partial(audit, victim, attack=row_reading)
    with pytest.raises(ValueError, match=r"attacker 'narrow' has width 5: must be 8"):
        run(SENTENCES, LABELS, views=[(SHARINGS["fedavg"], narrow)], batch_size=1)
    with pytest.raises(ValueError, match="3 sentences, 2 labels"):
        run(SENTENCES, LABELS[:2], views=[(SHARINGS["fedavg"], anybody(victim))], batch_size=1)


# Which sentences are attacked, and what it means that a node has them.


TEXTS = ("Sold 12 of 40 in 2004. No digits here! On 1 May, 2 of 3 fell by 4.5 percent", "Only 7.", "3 3 3 three")
EXAMPLES = Examples(TEXTS, np.array([2, 0, 1]))
ALL = WordVocabulary.of(TEXTS)


def test_texts_are_cut_into_sentences_and_three_digit_tokens_qualify():
    found = draw_sentences(EXAMPLES, ALL, 3, own=False, seed=0)
    assert {(one.label, " ".join(one.words)) for one in found} == {
        (2, "sold 12 of 40 in 2004 ."),
        (2, "on 1 may , 2 of 3 fell by 4 . 5 percent"),
        (1, "3 3 3 three"),
    }
    assert draw_sentences(EXAMPLES, ALL, 3, own=False, seed=0) == found
    with pytest.raises(ValueError, match=r"sentences = 4: only 3 of 4 have .*use at most 3"):
        draw_sentences(EXAMPLES, ALL, 4, own=False, seed=0)


def test_all_words_are_known_unless_the_vocabulary_is_the_nodes_own():
    few = WordVocabulary.of(TEXTS[2:])
    assert [one.words for one in draw_sentences(EXAMPLES, few, 1, own=False, seed=0)] == [("3", "3", "3", "three")]
    with pytest.raises(ValueError, match="only 1 of 1"):
        draw_sentences(EXAMPLES, few, 2, own=False, seed=0)
    assert len(draw_sentences(EXAMPLES, few, 3, own=True, seed=0)) == 3


def node(vocabulary, texts):
    train = {**padded(vocabulary.encode(texts, 30)), "label": torch.zeros(len(texts), dtype=torch.int64)}
    return NodeData("node", {"train": train}, extra={"vocabulary": vocabulary})


def test_a_node_that_holds_sentences_knows_their_words_and_trains_on_them():
    vocabulary = WordVocabulary.of(["b a"])
    given = node(vocabulary, ["a b", "b"])
    held = with_sentences(given, [Sentence(("7", "a", "7", "8"), 3)])
    words = held.extra["vocabulary"].words
    assert words == (*vocabulary.words, "7", "8")
    train = held.splits["train"]
    texts = [[words[i] for i in ids[:n]] for ids, n in zip(train["ids"], train["length"], strict=True)]
    assert texts == [["a", "b"], ["b"], ["7", "a", "7", "8"]]
    assert train["label"].tolist() == [0, 0, 3]
    assert train["ids"].dtype == torch.int32
    assert given.count("train") == 2
    assert with_sentences(given, [Sentence(("a",), 0)]).extra["vocabulary"] is vocabulary


def test_what_a_tokenizer_adds_is_no_text(tmp_path):
    tokenizer = load_tokenizer(str(encoder_folder(tmp_path)))
    assert special_tokens(tokenizer) == {"[CLS]", "[SEP]"}
    assert special_tokens(ALL) == frozenset()
    assert with_sentences(node(tokenizer, ["one"]), [Sentence(("[CLS]", "two", "[SEP]"), 1)]).splits["train"][
        "ids"
    ].tolist() == [[2, 4, 3], [2, 5, 3]]
