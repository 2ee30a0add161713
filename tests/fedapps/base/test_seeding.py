"""Generators keyed by their purpose: the same draws as torch's own seeding, and nothing else changed."""

from contextlib import suppress

import pytest
import torch

from fedapps.base.seeding import derive_seed, torch_seed


def test_the_draws_are_those_of_manual_seed() -> None:
    with torch_seed(3, "train", 1, "car-7"):
        drawn = torch.rand(4)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(3, "train", 1, "car-7"))
        assert torch.equal(drawn, torch.rand(4))


def test_the_state_is_restored_also_after_an_error() -> None:
    before = torch.get_rng_state()
    with suppress(KeyError), torch_seed(3, "train"):
        torch.rand(4)
        raise KeyError
    assert torch.equal(before, torch.get_rng_state())


def test_gpus_are_seeded_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("fedapps.base.seeding.has_gpus", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with torch_seed(3, "train"):
        assert seeds == [derive_seed(3, "train")]
