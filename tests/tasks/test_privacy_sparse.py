"""The attack by sparse Bayesian learning, and the guess that it is compared with."""

import math
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.privacy.audit import Attack, frequency, sparse, sparse_prior, subspace
from fedapps.tasks.privacy.leaks import MISFIT, occurrence, row_evidence, word_evidence, word_frequencies, word_powers
from fedapps.tasks.privacy.sharing import Observation
from fedapps.tasks.privacy.tokens import TokenTable
from fedapps.tasks.text.privacy import SHARINGS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from updated_victims import SENTENCES, WRITTEN, clipped_noise, rounded_to, updated_victim

PLAIN = nn.Identity()


def seen(gradient, *lengths, noise=0.0):
    rows = torch.zeros(0, gradient.shape[1])
    return Observation({"encoder.weight_ih_l0": gradient}, (), rows, torch.tensor(lengths), noise)


def read(attack: Attack, observation, table):
    (words,) = attack.run(observation, PLAIN).read(table)
    return words


# -- γ ---------------------------------------------------------------------------------------------------------


def test_orthogonal_words_by_hand():
    # C is diagonal, with 3/4 and 1/4. The likelihood of each coordinate is largest at γ + σ² = C, with σ² = MISFIT / 2.
    rows = torch.tensor([[2.0, 0], [-1, 0], [0, 5], [3, 0], [0, 0]])
    inputs = torch.tensor([[4.0, 0], [0, 0.5], [0, 0]])
    variance = MISFIT / 2
    assert word_powers(rows, inputs).tolist() == pytest.approx([0.75 - variance, 0.25 - variance, 0], abs=1e-5)


def test_known_noise_explains_what_no_word_needs_to():
    # All rows have norm 1. Noise of deviation ½ has a quarter of the energy in each of two coordinates.
    rows = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    variance = MISFIT / 2 + 0.25
    first, second = word_powers(rows, torch.eye(2), noise=0.5).tolist()
    assert first == pytest.approx(0.75 - variance, abs=1e-5)
    assert second < 0.06, "it decays towards 0, because 1/4 is less than σ²"
    # Noise has at most all of the energy, half of it in each coordinate.
    most = word_powers(rows, torch.eye(2), noise=9.0).tolist()
    assert most == pytest.approx([0.75 - MISFIT / 2 - 0.5, 0], abs=1e-3)


def test_two_words_explain_what_a_third_would_explain_worse():
    """Rows along a = (1, 0) and b = (0, 1) alone: c, between them, would also explain products of both coordinates."""
    inputs = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
    a, b, c = word_powers(torch.eye(2), inputs).tolist()
    assert a == pytest.approx(b)
    assert c < a / 5


def test_nothing_is_read_of_nothing():
    assert word_powers(torch.zeros(3, 2), torch.eye(2)).tolist() == [0, 0]
    assert word_powers(torch.ones(3, 2), torch.zeros(4, 2)).tolist() == [0] * 4
    assert word_powers(torch.ones(3, 2), torch.eye(2), start=torch.zeros(2)).tolist() == [0, 0]
    table = TokenTable(("a", "b"), torch.eye(2))
    assert read(sparse, seen(torch.zeros(3, 2), 2), table) == []


def test_the_padding_is_no_word_even_if_it_explains_the_rows_best():
    table = TokenTable(("<pad>", "a", "b"), torch.eye(3), "<pad>")
    assert read(sparse, seen(torch.tensor([[9.0, 0, 0], [9, 1, 0]]), 3), table) == ["a"]


def test_noise_rounding_and_errors_add_up_by_their_squares(monkeypatch):
    noises, name = [], "encoder.weight_ih_l0"

    def evidence(rows, inputs, noise, prior):
        noises.append(noise)
        return torch.zeros(len(inputs))

    monkeypatch.setattr("fedapps.tasks.privacy.leaks.word_evidence", evidence)
    observation = replace(seen(torch.eye(2), 1, noise=3.0), rounding={name: 4.0}, errors={name: 12.0})
    assert read(sparse, observation, TokenTable(("a", "b"), torch.eye(2))) == []
    assert noises == [13.0]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31))
def test_neither_the_scale_of_rows_and_vectors_nor_the_order_of_words_matters(seed):
    generator = torch.Generator().manual_seed(seed)
    rows, inputs = torch.randn(40, 6, generator=generator), torch.randn(20, 6, generator=generator)
    found = word_powers(rows, inputs)
    assert (found >= 0).all()
    scales = [0.1 + torch.rand(count, 1, generator=generator) for count in (40, 20)]
    torch.testing.assert_close(word_powers(-scales[0] * rows, scales[1] * inputs), found, rtol=0.02, atol=1e-4)
    order = torch.randperm(20, generator=generator)
    torch.testing.assert_close(word_powers(rows, inputs[order]), found[order], rtol=0.02, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 5), st.booleans())
def test_few_words_are_read_from_the_gradient_and_from_its_signs(seed, count, signs):
    assume(count > 1 or not signs)  # the signs of one vector can be nearer to another one
    generator = torch.Generator().manual_seed(seed)
    table = TokenTable(tuple(map(str, range(60))), torch.randn(60, 20, generator=generator))
    written = torch.randperm(60, generator=generator)[:count]
    gradient = torch.randn(400, count, generator=generator) @ table.vectors[written]
    strongest = read(sparse, seen(gradient.sign() if signs else gradient, 20), table)[:count]
    assert set(strongest) == {table.words[row] for row in written}


@pytest.mark.parametrize("seed", range(4))
def test_more_words_than_a_vector_has_numbers_are_read(seed):
    """A subspace of 8 dimensions has no room for 12 words, but their covariance has 36 numbers."""
    generator = torch.Generator().manual_seed(seed)
    table = TokenTable(tuple(map(str, range(40))), torch.randn(40, 8, generator=generator))
    gradient = torch.randn(5000, 12, generator=generator) @ table.vectors[:12]
    powers = word_powers(gradient, table.vectors)
    assert len(set(powers.argsort(descending=True)[:12].tolist()).intersection(range(12))) > 8


# -- updates that hide the row space ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "defence"),
    [
        (1, {"compress": rounded_to(0.01)}),  # the learning rate: signs alone are left of a step of Adam
        (1, {"privacy": clipped_noise(1e9, 0.001)}),
        (6, {}),
    ],
    ids=["rounding", "noise", "steps"],
)
def test_what_hides_the_row_space_does_not_hide_the_words(steps, defence):
    victim = replace(updated_victim(torch.optim.Adam, steps), **defence)
    update = victim.share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
    assert not update.errors, "no gradient follows from it"
    hits = {
        attack.name: len(WRITTEN.intersection(attack.run(update, victim.body).read(victim.table)[0]))
        for attack in (subspace, sparse)
    }
    assert hits["sparse"] > hits["subspace"]
    assert hits["sparse"] > len(WRITTEN) / 2


# -- the guess, and what it adds -------------------------------------------------------------------------------


def test_frequencies_and_occurrences_by_hand():
    table = TokenTable(("<pad>", "a", "b", "c"), torch.eye(4), "<pad>")
    frequencies = word_frequencies({"a": 5, "b": 1, "elsewhere": 9, "<pad>": 3}, table)
    assert frequencies.tolist() == pytest.approx([0, 6 / 9, 2 / 9, 1 / 9])
    assert occurrence(torch.tensor([0, 0.5, 1]), 2).tolist() == [0, 0.75, 1]


def test_a_guess_names_the_most_frequent_words_and_sees_nothing():
    table = TokenTable(("<pad>", "a", "b", "c"), torch.eye(4), "<pad>")
    guessed = frequency({"b": 7, "c": 2})
    for gradient in (torch.zeros(2, 4), torch.eye(4)):
        assert read(guessed, seen(gradient, 2), table) == ["b", "c"]
    assert read(guessed, seen(torch.eye(4), 9), table) == ["b", "c", "a"], "the padding is no word"
    assert read(guessed, seen(torch.eye(4), 1), table) == ["b"], "one word per token"


def test_evidence_by_hand():
    """One word of norm 1 in two dimensions, and all rows along it; σ² = MISFIT / 2.

    Without the word, C is σ² and the rows have x C⁻¹ x = 1 / σ² and x C⁻¹ S C⁻¹ x = 1 / σ⁴.
    """
    inputs, variance = torch.eye(2)[:1], MISFIT / 2
    likelihoods = [
        (1 + share / variance) ** -1.5 * math.exp(1.5 * share / variance**2 / (1 + share / variance))
        for share in (0, 0.001, 0.01, 0.1)
    ]
    found = word_evidence(torch.tensor([[1.0, 0]] * 10), inputs, 0.0, torch.ones(1))
    assert found.item() == pytest.approx(math.log(sum(likelihoods) / 4), rel=0.01)


def test_the_evidence_of_a_noisy_row_by_hand():
    """Numbers of mean square 16, and noise of variance 4, in two dimensions: (1 + γ)⁻¹ exp(4 γ / (1 + γ))."""
    table = TokenTable(("a", "b"), torch.eye(2))
    observation = Observation({}, ("b",), torch.tensor([[4.0, -4.0]]), torch.tensor([1]), 2.0)
    expected = math.log(sum(math.exp(4 * power / (1 + power)) / (1 + power) for power in (0, 0.1, 1, 10)) / 4)
    assert row_evidence(observation, table).tolist() == pytest.approx([0, expected])
    assert row_evidence(replace(observation, noise=0.0), table).tolist() == [0, 0], "the rows are read otherwise"


@pytest.mark.parametrize("seed", range(3))
def test_without_evidence_the_words_are_those_of_the_guess(seed):
    generator = torch.Generator().manual_seed(seed)
    table = TokenTable(tuple(map(str, range(60))), torch.randn(60, 8, generator=generator))
    counts = {word: 1000 // (1 + row) for row, word in enumerate(table.words)}
    guessed = read(frequency(counts), seen(torch.zeros(40, 8), 20), table)
    assert read(sparse_prior(counts), seen(torch.zeros(40, 8), 20), table) == guessed
    noise = seen(torch.randn(400, 8, generator=generator), 20, noise=1.0)
    assert len(set(read(sparse_prior(counts), noise, table)).intersection(guessed)) >= 18


def test_evidence_adds_rare_words_to_the_guess_and_loses_no_frequent_one():
    """Batches of ten draws by Zipf's law, of which only the last three words move the gradient."""
    generator = torch.Generator().manual_seed(1)
    table = TokenTable(tuple(map(str, range(60))), torch.randn(60, 12, generator=generator))
    counts = {word: 1000 // (1 + row) for row, word in enumerate(table.words)}
    frequencies = word_frequencies(counts, table)
    hits = {"frequency": 0, "sparse-prior": 0}
    for _ in range(10):
        drawn = frequencies.multinomial(10, replacement=True, generator=generator)
        update = seen(torch.randn(200, 3, generator=generator) @ table.vectors[drawn[-3:]], 10)
        for attack in (frequency(counts), sparse_prior(counts)):
            found = read(attack, update, table)
            hits[attack.name] += sum(table.words[row] in found for row in drawn.tolist())
    assert hits["sparse-prior"] > hits["frequency"]


def test_frequencies_decide_between_equal_words():
    twins = TokenTable(("one", "other", "third"), torch.tensor([[1.0, 0], [1, 0], [0, 1]]))
    assert read(sparse_prior({"other": 50}), seen(torch.tensor([[1.0, 0]]), 1), twins) == ["other"]
