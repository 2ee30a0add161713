"""VirtualClients: what nodes are told, how they are drawn and counted, and FedAvg as the equal case."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from grouped import grouped_app, interrupted
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arrays_of, federate, same_bits

from strategies.base import BaseStrategy
from strategies.optimizers import Adam
from strategies.profiles import Profile
from strategies.samplers import ProportionalToSize, UniformFraction
from strategies.virtual_clients import IndependentDraws, VirtualClients

pytestmark = pytest.mark.usefixtures("flower_identity")
START = {"w": np.array([0.3, -1.7], np.float32)}


def sized(sizes):
    return lambda partition: {"num-examples": sizes[partition]}


def add(partition, arrays, config):
    """Node k moves by k + 1 and says that it has 10^k examples."""
    return {"w": arrays["w"] + np.float32(partition + 1)}, {"num-examples": 10**partition, "loss": float(partition)}


def train_configs(seen):
    return [dict(m.content["config"]) for m in seen if m.metadata.message_type == "train"]


@pytest.mark.parametrize(("work", "told"), [({"examples": 64}, "virtual-examples"), ({"steps": 64}, "steps")])
def test_every_node_is_told_the_same_work(work, told):
    seen, reports = [], []
    strategy = VirtualClients(sampler=ProportionalToSize(2), **work)
    app = grouped_app(sized([5, 5000, 50]), add, seen=seen)
    federate(
        strategy,
        app,
        START,
        num_nodes=3,
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.5}),
        on_round=reports.append,
    )
    configs = train_configs(seen)
    assert len(configs) == 4
    assert all((c[told], c["lr"], c["virtual-draw"]) == (64, 0.5, 0) for c in configs)
    assert {c["server-round"] for c in configs} == {1, 2}
    assert not any(told in m.content["config"] for m in seen if m.metadata.message_type == "evaluate")
    assert [r.strategy for r in reports] == [{"virtual-clients": 2, "nodes": 2, told: 64}] * 2


def test_all_count_alike_by_hand():
    strategy = VirtualClients(sampler=ProportionalToSize(3), examples=8)
    result = federate(strategy, grouped_app(sized([1, 10, 100]), add), START, num_nodes=3, num_rounds=1)
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], START["w"] + 2, rtol=1e-6)
    assert result.train_metrics_clientapp[1]["loss"] == 1


def test_a_node_drawn_more_than_once_is_more_than_one_client():
    seen, reports = [], []
    strategy = VirtualClients(sampler=IndependentDraws(4, seed=1), examples=8)
    app = grouped_app(sized([1, 1_000_000]), add, seen=seen)
    result = federate(strategy, app, START, num_nodes=2, num_rounds=1, on_round=reports.append)
    assert [c["virtual-draw"] for c in train_configs(seen)] == [0, 1, 2, 3]
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], START["w"] + 2, rtol=1e-6)
    assert reports[0].strategy == {"virtual-clients": 4, "nodes": 1, "virtual-examples": 8}


@pytest.mark.parametrize("optimizer", [None, lambda: Adam(0.05)])
def test_equal_nodes_that_all_take_part_are_fedavg_bit_for_bit(optimizer):
    def train(partition, arrays, config):
        moved = {"w": arrays["w"] + np.float32(0.1 * partition) * np.cos(arrays["w"])}
        return moved, {"num-examples": 6, "loss": float(partition)}

    app = grouped_app(sized([6] * 7), train)
    parts = {"num_nodes": 7, "num_rounds": 4}

    def stepping():
        return {"server_optimizer": optimizer()} if optimizer else {}

    ours = federate(VirtualClients(sampler=ProportionalToSize(7), examples=6, **stepping()), app, START, **parts)
    fedavg = federate(BaseStrategy(**stepping()), app, START, **parts)
    assert same_bits(arrays_of(ours.arrays), arrays_of(fedavg.arrays))
    assert ours.train_metrics_clientapp == fedavg.train_metrics_clientapp


@settings(max_examples=30, deadline=None)
@given(
    moves=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6),
    examples=st.lists(st.integers(1, 10**6), min_size=6, max_size=6),
)
def test_the_mean_does_not_depend_on_what_nodes_say_they_have(moves, examples):
    def train(sizes):
        return lambda partition, arrays, config: (
            {"w": arrays["w"] + np.float32(moves[partition])},
            {"num-examples": sizes[partition]},
        )

    results = [
        federate(
            VirtualClients(sampler=UniformFraction(1.0), steps=3),
            grouped_app(sized(examples), train(sizes)),
            START,
            num_nodes=len(moves),
            num_rounds=1,
        )
        for sizes in (examples, [1] * 6)
    ]
    assert same_bits(*[arrays_of(result.arrays) for result in results])


def test_a_resumed_run_ends_bit_for_bit_as_an_undisturbed_one():
    def make():
        return VirtualClients(sampler=IndependentDraws(3, seed=4), steps=5, server_optimizer=Adam(0.05))

    app = grouped_app(sized([1, 2, 3, 4, 5]), add)
    whole, parts = interrupted(make, app, START, num_nodes=5, num_rounds=6, cut=4)
    assert same_bits(arrays_of(parts[0].arrays), arrays_of(whole[0].arrays))
    assert same_bits(parts[1].arrays, whole[1].arrays)
    assert parts[1].facts == whole[1].facts


# -- independent draws -----------------------------------------------------------------------------------------


def nodes(sizes):
    return [Profile(100 - k, f"part-{k}", size) for k, size in enumerate(sizes)]


def test_nodes_come_in_proportion_to_their_examples():
    sampler, rounds = IndependentDraws(8, seed=3), 2000
    drawn = [node.key for r in range(rounds) for node in sampler.sample(nodes([1, 2, 5, 0]), r, "train")]
    assert len(drawn) == 8 * rounds
    shares = [drawn.count(f"part-{k}") / len(drawn) for k in range(4)]
    # within four standard errors of n_k / n
    for share, wanted in zip(shares, [1 / 8, 2 / 8, 5 / 8, 0], strict=True):
        assert abs(share - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / len(drawn))


def test_a_draw_depends_on_seed_and_round_and_not_on_ids_or_order():
    profiles = nodes([3, 1, 4, 1, 5])
    renamed = [Profile(k, p.key, p.num_examples) for k, p in enumerate(reversed(profiles))]
    draw = [p.key for p in IndependentDraws(6, seed=1).sample(profiles, 2, "train")]
    assert draw == sorted(draw) == [p.key for p in IndependentDraws(6, seed=1).sample(renamed, 2, "train")]
    assert draw != [p.key for p in IndependentDraws(6, seed=1).sample(profiles, 3, "train")]
    assert draw != [p.key for p in IndependentDraws(6, seed=2).sample(profiles, 2, "train")]
    assert draw != [p.key for p in IndependentDraws(6, seed=1).sample(profiles, 2, "evaluate")]


def test_training_draws_are_those_of_published_results():
    sampler = IndependentDraws(4, seed=3)
    drawn = [[p.key for p in sampler.sample(nodes(range(10, 100, 10)), r, "train")] for r in (1, 2, 3, 4)]
    assert drawn == [[f"part-{k}" for k in round_] for round_ in ("4555", "1278", "2348", "2258")]


def test_an_unknown_size_counts_as_the_mean():
    drawn = [p.key for r in range(2000) for p in IndependentDraws(4).sample(nodes([2, None, 4]), r, "train")]
    assert abs(drawn.count("part-1") / len(drawn) - 3 / 9) < 0.03


@pytest.mark.parametrize("sizes", [[], [0, 0]])
def test_without_examples_nobody_is_drawn(sizes):
    assert IndependentDraws(4).sample(nodes(sizes), 1, "train") == []


# -- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "examples = 0, steps = 0: exactly one of them must be above 0"),
        ({"examples": 2, "steps": 2}, "exactly one of them"),
        ({"examples": -1}, "examples = -1: must be an integer of at least 1"),
        ({"steps": 1.5}, "steps = 1.5: must be an integer"),
        ({"steps": True}, "steps = True: must be an integer"),
        (
            {"steps": 2, "weighting": "num-examples"},
            "weighting = 'num-examples': virtual clients all have equal weights",
        ),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VirtualClients(sampler=ProportionalToSize(1), **options)


@pytest.mark.parametrize("count", [0, 1.5])
def test_a_bad_number_of_draws_is_refused(count):
    with pytest.raises(ValueError, match=r"count = .*: must be an integer of at least 1"):
        IndependentDraws(count)


def test_a_config_that_asks_for_other_work_is_refused():
    with pytest.raises(ValueError, match="train_config has steps = 9, but the strategy sets it to 5"):
        federate(
            VirtualClients(sampler=ProportionalToSize(1), steps=5),
            grouped_app(sized([1]), add),
            START,
            num_nodes=1,
            num_rounds=1,
            train_config=ConfigRecord({"steps": 9}),
        )
