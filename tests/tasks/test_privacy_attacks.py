"""Attacks on a small model: what leaks, what does not, and that the objective is what it says."""

from functools import partial

import pytest
import torch
from fedapps.tasks.privacy.inversion import Inversion, gradient_distance, invert
from fedapps.tasks.privacy.leaks import leaked_tokens
from fedapps.tasks.privacy.sharing import Sharing, Victim
from fedapps.tasks.privacy.tokens import Recovery, TokenTable
from fedapps.tasks.text.privacy import SHARINGS, with_loop_lstms
from fedapps.tasks.text.vocabulary import is_digits
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


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("l1_weight", [0.0, 0.1])
def test_the_truth_has_no_distance(vectorised, l1_weight):
    victim = make_victim()
    seen = victim.share(SENTENCES, LABELS, FEDVOCAB)
    rows, _ = victim.table.encode(SENTENCES)
    truth, labels = victim.table.vectors[rows], torch.eye(CLASSES, dtype=torch.float64)[LABELS]
    guesses = torch.stack([truth, truth + 0.1]), torch.stack([labels, labels])
    distance = gradient_distance(seen, victim.body, *guesses, l1_weight=l1_weight, vectorised=vectorised)
    assert distance[0].item() == pytest.approx(0, abs=1e-13)
    assert distance[1].item() > 1e-6


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


def test_tag_without_its_l1_is_dlg_bit_for_bit():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)
    search = partial(invert, seen, victim.body, victim.table)
    dlg = search(Inversion(optimizer="adam", steps=5, restarts=2))
    tag = search(Inversion(optimizer="adam", steps=5, restarts=2, l1_weight=0.0))
    other = search(Inversion(optimizer="adam", steps=5, restarts=2, l1_weight=0.1))
    assert torch.equal(dlg.embedded, tag.embedded)
    assert torch.equal(dlg.labels, tag.labels)
    assert dlg.distance == tag.distance
    assert not torch.equal(dlg.embedded, other.embedded)


def test_a_search_tells_its_progress_and_stops_when_it_is_close():
    victim = make_victim()
    seen = victim.share([TARGET], [2], FEDVOCAB)
    told = []
    settings = Inversion(optimizer="adam", learning_rate=0.05, steps=7, restarts=2, check_every=3)
    invert(seen, victim.body, victim.table, settings, lambda step, distance: told.append((step, distance.tolist())))
    assert [step for step, _ in told] == [3, 6, 7]
    least = torch.tensor([distance for _, distance in told])
    assert (least.diff(dim=0) <= 0).all()
    told.clear()
    easy = Inversion(optimizer="adam", steps=7, restarts=2, check_every=3, tolerance=1e9)
    invert(seen, victim.body, victim.table, easy, lambda step, distance: told.append((step, distance.tolist())))
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
