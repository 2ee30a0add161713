"""Attacks on a small model: what leaks, what does not, and that the objective is what it says."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from fedapps.tasks.privacy.audit import Attacker, audit, subspace
from fedapps.tasks.privacy.inversion import Inversion, gradient_distance, invert
from fedapps.tasks.privacy.leaks import leaked_tokens, residual, span_of_inputs, words_in_span
from fedapps.tasks.privacy.sharing import Observation, Sharing, Victim
from fedapps.tasks.privacy.tokens import Recovery, TokenTable, score
from fedapps.tasks.text.networks import BiLstm
from fedapps.tasks.text.privacy import SHARINGS, above_words, with_loop_lstms
from fedapps.tasks.text.vocabulary import is_digits
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_encoder import classifier, encoder_folder
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

WORDS = ("<pad>", *(f"word{number}" for number in range(20)), *map(str, range(10)))
CLASSES = 4

FEDAVG, FEDRECON, FEDVOCAB = SHARINGS["fedavg"], SHARINGS["fedrecon"], SHARINGS["fedvocab"]


class Body(nn.Module):
    """A BiLSTM and a classifier of its end states."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(8, 16, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(32, CLASSES)
        self.unused = nn.Linear(2, 2)  # as the pooler of some encoders

    def forward(self, embedded, lengths):
        _, (hidden, _) = self.encoder.padded(embedded, lengths)
        return self.classifier(torch.cat([hidden[0], hidden[1]], -1))


class PackedBody(Body):
    def forward(self, embedded, lengths):
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.encoder(packed)
        return self.classifier(torch.cat([hidden[0], hidden[1]], -1))


class UnmaskedBody(Body):
    """Reads the padding as if it were text."""

    def forward(self, embedded, lengths):
        return super().forward(embedded, torch.full_like(lengths, embedded.shape[1]))


def make_victim(body=Body, seed=0):
    torch.manual_seed(seed)
    table = TokenTable(WORDS, torch.randn(len(WORDS), 8, dtype=torch.float64), "<pad>")
    return Victim(with_loop_lstms(body().double()), table)


SENTENCES = [["word3", "1", "word7", "2"], ["word7", "word7"], ["word19", "9", "word0"]]
LABELS = [0, 3, 1]


@pytest.mark.parametrize("body", [Body, PackedBody, UnmaskedBody])
def test_rows_leak_exactly_the_tokens_of_the_batch(body):
    victim = make_victim(body)
    leaked = leaked_tokens(victim.share(SENTENCES, LABELS, FEDAVG), victim.table)
    assert [set(text) for text in leaked] == [{"word3", "word7", "word19", "word0", "1", "2", "9"}]


def test_private_rows_do_not_leak():
    victim = make_victim()
    leaked = leaked_tokens(victim.share(SENTENCES, LABELS, FEDRECON), victim.table)
    assert [set(text) for text in leaked] == [{"word3", "word7", "word19", "word0"}]
    assert leaked_tokens(victim.share(SENTENCES, LABELS, FEDVOCAB), victim.table) == [[]]


def test_what_is_shared_is_the_gradient_of_the_task():
    """Held against torch's own embedding, LSTM and cross-entropy, and a backward pass."""
    victim = make_victim()
    seen = victim.share(SENTENCES, LABELS, Sharing("one", ("encoder.*",), is_digits))
    embedding = nn.Embedding.from_pretrained(victim.table.vectors, freeze=False)
    rows, lengths = victim.table.encode(SENTENCES)
    nn.functional.cross_entropy(victim.body(embedding(rows), lengths), torch.tensor(LABELS)).backward()
    assert all(name.startswith("encoder.") for name in seen.gradients)
    for name, gradient in seen.gradients.items():
        torch.testing.assert_close(gradient, victim.body.get_parameter(name).grad)
    assert seen.row_words == tuple(map(str, range(10)))
    torch.testing.assert_close(seen.rows, embedding.weight.grad[-10:])


def test_distances_are_those_of_plain_gradients_and_packing_changes_nothing():
    victim, packed = make_victim(), make_victim(PackedBody)
    seen = victim.share(SENTENCES, LABELS, FEDVOCAB)
    embedded = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    labels = torch.rand(2, 3, CLASSES, dtype=torch.float64).softmax(-1)
    expected = []
    for guess, label in zip(embedded, labels, strict=True):
        victim.body.zero_grad()
        nn.functional.cross_entropy(victim.body(guess, seen.lengths), label).backward()
        errors = [p.grad - seen.gradients[name] for name, p in victim.body.named_parameters() if p.grad is not None]
        expected.append(sum((error**2).sum() + 0.1 * error.abs().sum() for error in errors))
    for body, vectorised in [(victim.body, True), (victim.body, False), (packed.body, False)]:
        distance = gradient_distance(seen, body, embedded, labels, l1_weight=0.1, vectorised=vectorised)
        torch.testing.assert_close(distance, torch.stack(expected))


class AttentiveBody(nn.Module):
    """Attention as transformers have it by default, whose fast ways cannot be differentiated twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 24)
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, embedded, lengths):
        inside = torch.arange(embedded.shape[1])[None] < lengths[:, None]
        query, key, value = self.encoder(embedded)[:, None].chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, inside[:, None, None])
        return self.classifier(mixed[:, 0, 0])


@pytest.mark.parametrize("vectorised", [True, False])
def test_attention_can_be_matched(vectorised):
    victim = make_victim(AttentiveBody)
    seen = victim.share(SENTENCES, LABELS, FEDVOCAB)
    settings = Inversion(optimizer="adam", learning_rate=0.05, steps=20, restarts=2, vectorised=vectorised)
    assert invert(seen, victim.body, victim.table, settings).distance < 0.5


TARGET = ["word3", "4", "word11", "7", "2"]
SMALL = Inversion(steps=20, restarts=2)


@pytest.fixture(scope="module")
def inverted():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)
    return victim, seen, invert(seen, victim.body, victim.table, SMALL)


def test_gradients_give_a_sentence_to_who_knows_the_table(inverted):
    victim, seen, found = inverted
    assert found.read(seen.lengths, victim.table) == [TARGET]
    assert found.labels.argmax().item() == 2
    assert found.distance < 1e-2


def test_gradients_give_a_sentence_to_who_knows_what_the_table_was(inverted):
    """Training moves a table a little: somebody who holds the public one it began as reads as well."""
    victim, seen, found = inverted
    public = TokenTable(WORDS, victim.table.vectors + 0.1 * torch.randn_like(victim.table.vectors), "<pad>")
    assert found.read(seen.lengths, public) == [TARGET]


def test_a_foreign_table_reads_no_better_than_chance(inverted):
    victim, seen, found = inverted
    generator = torch.Generator().manual_seed(1)

    def permuted():
        order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(30, generator=generator)])
        return victim.table.vectors[order]

    def fresh():
        return torch.randn(victim.table.vectors.shape, generator=generator, dtype=torch.float64)

    # Five of thirty words at random have a given word with probability 1/6.
    chance, trials = 1 / 6, 400
    for draw in (permuted, fresh):
        texts = [found.read(seen.lengths, TokenTable(WORDS, draw(), "<pad>"))[0] for _ in range(trials)]
        recall = sum(Recovery(tuple(TARGET), tuple(text)).recall for text in texts) / trials
        assert recall < chance + 4 * (chance * (1 - chance) / 5 / trials) ** 0.5


@pytest.mark.slow
def test_adam_finds_it_too():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)
    settings = Inversion(optimizer="adam", learning_rate=0.1, steps=200, restarts=1, check_every=50)
    assert invert(seen, victim.body, victim.table, settings).read(seen.lengths, victim.table) == [TARGET]


def test_a_search_is_the_same_each_time_and_the_l1_distance_changes_it():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)
    search = partial(invert, seen, victim.body, victim.table)
    one, same, other = (search(Inversion(optimizer="adam", steps=5, restarts=2, l1_weight=w)) for w in (0.0, 0.0, 0.1))
    assert torch.equal(one.embedded, same.embedded)
    assert not torch.equal(one.embedded, other.embedded)


def test_a_search_tells_its_progress_and_stops_when_it_is_close():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)
    told = []
    settings = Inversion(optimizer="adam", learning_rate=0.05, steps=7, restarts=2, check_every=3)
    tell = lambda step, distance: told.append((step, distance.tolist()))  # noqa: E731
    invert(seen, victim.body, victim.table, settings, tell)
    assert [step for step, _ in told] == [3, 6, 7]
    for seed in range(3):  # steps that are far too long
        told.clear()
        rough = replace(settings, learning_rate=5.0, check_every=1, restarts=4, seed=seed)
        found = invert(seen, victim.body, victim.table, rough, tell)
        least = torch.tensor([distance for _, distance in told])
        assert (least.diff(dim=0) <= 0).all(), "an earlier guess that is nearer is kept"
        assert found.distance == pytest.approx(least[-1].min().item()), "that of the best restart"
    told.clear()
    easy = Inversion(optimizer="adam", steps=7, restarts=2, check_every=3, tolerance=1e9)
    invert(seen, victim.body, victim.table, easy, tell)
    assert [step for step, _ in told] == [3]


def test_a_search_stops_when_its_distance_hardly_falls():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)

    def steps(**options):
        checked = []
        options = {"optimizer": "adam", "steps": 12, "restarts": 1, "check_every": 3} | options
        invert(seen, victim.body, victim.table, Inversion(**options), lambda step, distance: checked.append(step))
        return checked

    # The first check has no earlier distance.
    assert steps(learning_rate=1e-12) == [3, 6]
    assert steps(learning_rate=0.01) == [3, 6, 9, 12]
    assert steps(learning_rate=0.01, decrease=0.999) == [3, 6]


def test_errors_of_settings_come_together():
    with pytest.raises(
        ValueError, match=r"steps = 0: must be at least 1; decrease = 1: .* below 1; learning_rate = 0: .*'sgd'"
    ):
        Inversion(steps=0, learning_rate=0, optimizer="sgd", decrease=1)


def test_a_method_shares_some_parameter():
    with pytest.raises(ValueError, match=r"no parameter matches decoder"):
        make_victim().share(SENTENCES, LABELS, Sharing("none", ("decoder.*",), is_digits))


# The subspace attack: numbers worked out by hand, its invariant, and the layers that it reads.


PLAIN = nn.Identity()


def seen(gradient, *lengths, name="encoder.weight_ih_l0"):
    return Observation({name: gradient}, (), torch.zeros(0, gradient.shape[1]), torch.tensor(lengths))


def read(observation, body, table):
    (words,) = subspace.run(observation, body).read(table)
    return words


def test_two_words_of_a_small_table_by_hand():
    # Inputs a and b with the derivatives (1, 0) and (0, 2): rows (1, 0, 0, 0) and (2, 2, 0, 0).
    gradient = torch.tensor([[1.0, 0, 0, 0], [2, 2, 0, 0]])
    vectors = torch.tensor(
        [[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0], [2, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    )
    basis = span_of_inputs(gradient, 2)
    assert basis.shape == (2, 4)
    # The last two coordinates are outside. A random direction has half of its squared norm outside: divide by √½.
    assert residual(basis, vectors[:6]).tolist() == pytest.approx(
        [0, 0, 1, 2**0.5, (1 / 6) ** 0.5 / 0.5**0.5, torch.inf], abs=1e-7
    )
    table = TokenTable(("a", "b", "c", "d", "e", "zero", "<pad>"), vectors, "<pad>")
    assert set(read(seen(gradient, 2), PLAIN, table)) == {"a", "b"}
    without_b = TokenTable(("a", "c", "d", "e"), vectors[[0, 2, 3, 4]])
    assert read(seen(gradient, 2), PLAIN, without_b) == ["a"]
    # e has 0.577 of a random residual.
    assert words_in_span(basis, PLAIN, without_b, torch.tensor([2]), tolerance=0.6) == ["a", "e"]


def test_one_word_is_read_alone_and_a_zero_gradient_reads_nothing():
    table = TokenTable(("a", "twice a", "b"), torch.tensor([[1.0, 2, 3], [2, 4, 6], [3, 2, 1]]))
    gradient = torch.tensor([[0.5], [-1.0]]) @ table.vectors[2:]
    assert read(seen(gradient, 4), PLAIN, table) == ["b"]
    assert read(seen(torch.zeros(2, 3), 4), PLAIN, table) == []


def test_a_gradient_of_full_rank_still_tells_the_words_with_large_influence():
    gradient = torch.diag(torch.tensor([5.0, 4, 3, 2, 1]))
    table = TokenTable(tuple("abcde"), torch.eye(5))
    assert read(seen(gradient, 5), PLAIN, table) == list("abcd")
    more = TokenTable(tuple("abcdef"), torch.cat([torch.eye(5), torch.tensor([[1.0, 1, 0, 0, 0]])]))
    assert set(read(seen(gradient, 6), PLAIN, more)) == set("abcdf"), "more words than directions, one per token"
    # A rank of 9 in 10 dimensions is full, because normalised inputs span no more.
    ranks = [len(span_of_inputs(torch.diag(torch.arange(10.0).clamp(min=least) - least), 10)) for least in (0, 2)]
    assert ranks == [8, 7]
    # At most as many directions as tokens, which the attacker knows.
    assert span_of_inputs(gradient, 2).abs().tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]


def test_directions_that_noise_alone_can_have_do_not_count():
    gradient = torch.tensor([[5.0, 0, 0, 0], [0, 1, 0, 0]])
    # σ (√2 + √4) is 0.68 and 1.71
    assert [len(span_of_inputs(gradient, 2, noise)) for noise in (0.2, 0.5)] == [2, 1]


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
