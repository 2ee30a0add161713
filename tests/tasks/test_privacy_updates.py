"""Updates after local training: what an attacker computes from them."""

import math
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.privacy.audit import Attack, Attacker, audit, subspace
from fedapps.tasks.privacy.leaks import first_noise, leaked_tokens, longest_noise
from fedapps.tasks.privacy.sharing import Observation, Victim, first_adam_gradient
from fedapps.tasks.text.privacy import SHARINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from updated_victims import RATE, SENTENCES, WRITTEN, clipped_noise, rounded_to, updated_victim


def test_adams_first_step_by_hand():
    # g = 3e-8 and -1e-8 move the weights by 0.1 times 3/4 and -1/2.
    change = torch.tensor([[0.075, -0.05]], dtype=torch.float64)
    (found,) = first_adam_gradient(change, torch.tensor([[0.0, -0.1]], dtype=torch.float64), 0.1)
    assert (found[0] / found[1]).item() == pytest.approx(-3)
    # The error of an element is its rounding times (|g| + ε)² / ε, with |g| + ε = 4e-8 and 2e-8. The rounding of a
    # step is ρ, and that of a weight as large as it another ρ: 16e-8 ρ and 8e-8 ρ.
    rounding = torch.finfo(torch.float64).eps
    assert found[0].item() == pytest.approx(3 / rounding / ((16**2 + 8**2) / 2) ** 0.5)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31))
def test_adams_first_step_keeps_the_row_space_of_small_gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    gradient = 1e-7 * torch.randn(8, 5, generator=generator)
    weights = nn.Parameter(torch.rand(8, 5, generator=generator) - 0.5)
    before = weights.detach().clone()
    weights.grad = gradient
    torch.optim.Adam([weights], lr=RATE).step()
    found = first_adam_gradient(before - weights.detach(), before, RATE)
    assert nn.functional.cosine_similarity(found, gradient).min() > 0.999


def test_one_step_of_sgd_is_one_gradient():
    victim = updated_victim(torch.optim.SGD)
    update = victim.share(SENTENCES, [0, 3], SHARINGS["fedavg"])
    gradient = Victim(victim.body, victim.table).share(SENTENCES, [0, 3], SHARINGS["fedavg"])
    for name, change in update.gradients.items():
        torch.testing.assert_close(change, RATE * gradient.gradients[name], atol=1e-7, rtol=1e-4)
    torch.testing.assert_close(update.rows, RATE * gradient.rows, atol=1e-7, rtol=1e-4)
    assert leaked_tokens(update, victim.table) == leaked_tokens(gradient, victim.table)
    assert update.row_words == gradient.row_words
    assert torch.equal(update.lengths, gradient.lengths)


@pytest.mark.parametrize(("optimizer", "steps"), [(torch.optim.SGD, 1), (torch.optim.SGD, 4), (torch.optim.Adam, 1)])
def test_words_of_an_update_are_read(optimizer, steps):
    victim = updated_victim(optimizer, steps)
    update = victim.share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
    assert set(subspace.run(update, victim.body).read(victim.table)[0]) == WRITTEN
    # Of a step of Adam, gradients in units of their rounding follow.
    assert set(update.errors.values()) == ({12**-0.5} if optimizer is torch.optim.Adam else set())


def test_several_steps_of_adam_hide_the_row_space_but_not_the_rows():
    victim = updated_victim(torch.optim.Adam, 6)
    update = victim.share(SENTENCES, [0, 3], SHARINGS["fedavg"])
    read = subspace.run(update, victim.body).read(victim.table)[0]
    assert len(WRITTEN.intersection(read)) < len(WRITTEN)
    (rows,) = leaked_tokens(update, victim.table)
    assert set(rows) == WRITTEN


# -- clipping and noise ----------------------------------------------------------------------------------------


def test_the_joint_norm_is_clipped_by_hand():
    found = clipped_noise(2.5, 0.0)({"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0])})
    assert {name: change.tolist() for name, change in found.items()} == {"a": [[1.5, 0.0]], "b": [2.0]}
    same = clipped_noise(6.0, 0.0)({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    assert {name: change.tolist() for name, change in same.items()} == {"a": [3.0], "b": [4.0]}
    assert clipped_noise(1.0, 0.0)({"a": torch.zeros(2)})["a"].tolist() == [0.0, 0.0]


def test_noise_has_its_deviation():
    found = clipped_noise(1.0, 0.3)({"a": torch.zeros(100, 100)})["a"]
    assert found.std().item() == pytest.approx(0.3, rel=0.03)
    assert found.mean().item() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(("optimizer", "steps"), [(torch.optim.SGD, 1), (torch.optim.Adam, 1)])
def test_clipping_alone_hides_nothing(optimizer, steps):
    """Neither the row space of an update of SGD, nor that of a first step of Adam."""
    victim = replace(updated_victim(optimizer, steps), privacy=clipped_noise(0.01, 0.0))
    update = victim.share(SENTENCES, [0, 3], SHARINGS["fedavg"])
    assert set(subspace.run(update, victim.body).read(victim.table)[0]) == WRITTEN
    assert set(leaked_tokens(update, victim.table)[0]) == WRITTEN


@pytest.mark.parametrize(("privacy", "observations"), [(None, 1), (clipped_noise(0.01, 0.0), 2)])
def test_methods_that_share_other_rows_are_observed_apart_under_a_joint_norm(privacy, observations):
    victim, seen = replace(updated_victim(torch.optim.SGD), privacy=privacy), []

    def run(observation, body):
        seen.append(observation)
        return subspace.run(observation, body)

    views = [(SHARINGS[name], Attacker("known", victim.body, victim.table)) for name in ("fedavg", "fedvocab")]
    audit(victim, SENTENCES, [0, 3], views=views, attack=Attack("counted", run), batch_size=2)
    assert len(seen) == observations


def test_noise_hides_words_that_it_exceeds():
    victim = updated_victim(torch.optim.SGD)
    for deviation, expected in ((1e-9, WRITTEN), (10.0, set())):
        noisy = replace(victim, privacy=clipped_noise(1.0, deviation))
        update = noisy.share(SENTENCES, [0, 3], SHARINGS["fedavg"])
        # Few words that were not written can be among the found: the longest rows of noise.
        assert WRITTEN.intersection(subspace.run(update, victim.body).read(victim.table)[0]) == expected
        assert WRITTEN.intersection(leaked_tokens(update, victim.table)[0]) == expected


def test_the_longest_row_of_noise_by_hand():
    def observed(rows, noise):
        return Observation({}, ("a",) * len(rows), rows, torch.tensor([1]), noise)

    # Half of all |N(0, 1)| are below 0.6745.
    assert longest_noise(observed(torch.zeros(1, 1), 2.0)) == pytest.approx(2 * 0.6745, rel=1e-4)
    # A squared norm in two dimensions is exponential: P(norm² > x) = exp(-x/2) = 1/6.
    assert longest_noise(observed(torch.zeros(3, 2), 1.0)) == pytest.approx((2 * math.log(6)) ** 0.5)
    assert longest_noise(observed(torch.zeros(3, 2), 0.0)) == 0
    assert longest_noise(observed(torch.zeros(0, 2), 1.0)) == 0


# -- compression -----------------------------------------------------------------------------------------------


def test_the_rounding_of_a_compression_by_hand():
    noise, victim = clipped_noise(1e9, 0.0), updated_victim(torch.optim.SGD)
    update = replace(victim, privacy=noise, compress=rounded_to(0.5)).share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
    exact = victim.share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
    for name, change in update.gradients.items():
        assert torch.equal(change, (exact.gradients[name] / 0.5).round() * 0.5)
        error = (change - exact.gradients[name]).square().mean().sqrt().item()
        assert update.rounding[name] == pytest.approx(error)
    first = max(update.rounding[name] for name in update.rounding if "weight_ih" in name)
    assert first_noise(replace(update, noise=3 * first)) == pytest.approx(first * 10**0.5)
    assert first_noise(exact) == 0.0


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_rounding_hides_no_row_that_changed_by_more_than_a_step(optimizer):
    victim = updated_victim(optimizer)
    exact = victim.share(SENTENCES, [0, 3], SHARINGS["fedavg"])
    least = exact.rows.abs().amax(dim=1)
    step = 1.9 * float(least[least > 0].min())  # the largest number of a row that changed is rounded up
    rounded = replace(victim, compress=rounded_to(step)).share(SENTENCES, [0, 3], SHARINGS["fedavg"])
    assert set(leaked_tokens(rounded, victim.table)[0]) == WRITTEN


def test_a_compression_that_changes_nothing_hides_nothing_but_adams_first_gradient():
    for optimizer, read_all in ((torch.optim.SGD, True), (torch.optim.Adam, False)):
        victim = replace(updated_victim(optimizer), compress=lambda changes: changes)
        update = victim.share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
        assert not any(update.rounding.values())
        assert (set(subspace.run(update, victim.body).read(victim.table)[0]) == WRITTEN) is read_all


def test_coarse_rounding_hides_the_row_space():
    victim = updated_victim(torch.optim.SGD)
    exact = victim.share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
    step = max(float(change.abs().max()) for name, change in exact.gradients.items() if "weight_ih" in name)
    rounded = replace(victim, compress=rounded_to(step)).share(SENTENCES, [0, 3], SHARINGS["fedvocab"])
    read = subspace.run(rounded, victim.body).read(victim.table)[0]
    assert len(WRITTEN.intersection(read)) < len(WRITTEN) / 2
