"""Private parameters that are not kept, and FedRecon on a node, which reconstructs them in every round."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.clients.state import ContextState
from fedapps.tasks.base import NodeData
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import NAMES, adaptive_updating, at, initial, node, staged
from toys import ToyOptions, ToyTask, same_bits

from fedapps.base.options import with_values
from fedapps.base.seeding import generator
from fedapps.config.parsing import ConfigError, parse
from fedapps.methods.fedrecon import FedReconOptions, FedReconPart, _split
from fedapps.methods.partial import Stateless

ENCODER = ["encoder.weight"]
TASK = ToyTask()
SETTINGS = RoundSettings(training=LocalTraining(epochs=2, learning_rate=0.05, batch_size=6, optimizer="sgd"))


def reconstructing(folder, *, task=TASK):
    return node(folder, FedReconPart(FedReconOptions(epochs=3, support_share=0.5)), data=task.data(1), task=task)


def round_at(server_round, **changes):
    return with_values(SETTINGS, {"server_round": server_round, **changes})


def parts(server_round, share=0.5, partition=1):
    """Support and query of a node in a round, in double precision."""
    data = TASK.data(partition)
    split = _split(data, share, generator(3, "support", server_round, data.key))
    return [[split.splits[name][part].double().numpy() for part in ("x", "y")] for name in ("support", "train")]


def gradients(weights, x, y):
    """Of the mean of (x E' h' + c − y)², by encoder, head and bias."""
    encoder, head, bias = weights
    hidden = x @ encoder.T
    error = 2 * (hidden @ head.T + bias - y) / len(x)
    return [(error @ head).T @ x, error.T @ hidden, error.sum(0)]


def by_hand(server_round, received, *, reconstruct=3, epochs=2, rate=0.05):
    """The weights after reconstruction, and the encoder after the round, in NumPy."""
    encoder, head, bias = (initial()[name].astype(np.float64) for name in NAMES[:3])
    encoder = received["encoder.weight"].astype(np.float64)
    support, query = parts(server_round)
    for _ in range(reconstruct):
        _, at_head, at_bias = gradients((encoder, head, bias), *support)
        head, bias = head - rate * at_head, bias - rate * at_bias
    reconstructed = (encoder, head, bias)
    for _ in range(epochs):
        encoder = encoder - rate * gradients((encoder, head, bias), *query)[0]
    return reconstructed, encoder


@pytest.mark.parametrize("server_round", [1, 2])
def test_a_round_by_hand(tmp_path, server_round):
    received = {"encoder.weight": initial()["encoder.weight"] + np.float32(0.3)}
    client = reconstructing(tmp_path)
    reply = client.train_round(received, round_at(server_round))
    _, encoder = by_hand(server_round, received)
    np.testing.assert_allclose(reply.arrays["encoder.weight"], encoder, rtol=1e-4)
    assert reply.num_examples == 3
    assert reply.metrics["steps"] == 3 + 2


def test_an_evaluation_by_hand(tmp_path):
    received = {"encoder.weight": initial()["encoder.weight"] + np.float32(0.3)}
    (encoder, head, bias), _ = by_hand(4, received)
    test = TASK.data(1).splits["test"]
    outputs = test["x"].double().numpy() @ encoder.T @ head.T + bias
    expected = np.square(outputs - test["y"].double().numpy()).mean()
    assert reconstructing(tmp_path).evaluate_round(received, round_at(4)).metrics["test.loss"] == pytest.approx(
        expected, rel=1e-4
    )


def test_nothing_is_kept_and_the_past_changes_nothing(tmp_path):
    sent = initial(ENCODER)
    old, new = reconstructing(tmp_path / "old"), reconstructing(tmp_path / "new")
    for server_round in (1, 2):
        old.train_round(sent, round_at(server_round))
        old.evaluate_round(sent, round_at(server_round))
    assert old.private.load(before=99) is None
    assert same_bits(old.train_round(sent, round_at(3)).arrays, new.train_round(sent, round_at(3)).arrays)
    assert old.evaluate_round(sent, round_at(3)).metrics == new.evaluate_round(sent, round_at(3)).metrics
    assert not same_bits(new.train_round(sent, round_at(4)).arrays, new.train_round(sent, round_at(3)).arrays)


def test_where_all_is_shared_it_is_fedavg_on_the_query_examples(tmp_path):
    query = parts(1)[1]
    data = replace(
        TASK.data(1), splits={"train": {n: torch.from_numpy(a).float() for n, a in zip("xy", query, strict=True)}}
    )  # fmt: skip
    in_batches = round_at(1, batch_size=2, optimizer="adam")
    expected = node(tmp_path / "plain", data=data).train_round(initial(), in_batches)
    found = reconstructing(tmp_path / "recon").train_round(initial(), in_batches)
    assert same_bits(found.arrays, expected.arrays)
    assert (found.metrics, found.num_examples) == (expected.metrics, expected.num_examples)


def test_only_names_that_came_go_back(tmp_path):
    for names in (ENCODER, ["head.bias", "encoder.weight"], NAMES):
        assert sorted(reconstructing(tmp_path).train_round(initial(names), round_at(1)).arrays) == sorted(names)


@settings(max_examples=50, deadline=None)
@given(count=st.integers(2, 40), share=st.floats(0.001, 0.999), seed=st.integers(0, 9))
def test_support_and_query_are_a_partition_and_neither_is_empty(count, share, seed):
    data = NodeData("n", {"train": {"x": torch.arange(count)}, "test": {"x": torch.zeros(1)}})
    split = _split(data, share, np.random.default_rng(seed))
    support, query = split.splits["support"]["x"], split.splits["train"]["x"]
    assert sorted([*support.tolist(), *query.tolist()]) == list(range(count))
    assert len(query) >= 1
    assert len(support) == min(max(round(share * count), 1), count - 1)
    assert split.splits["test"] is data.splits["test"]


def test_the_split_differs_by_round_and_node_and_can_be_repeated():
    drawn = [parts(1), parts(1), parts(2), parts(1, partition=2)]
    same = [np.array_equal(drawn[0][0][0], other[0][0]) for other in drawn[1:]]
    assert same == [True, False, False]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"support-share": 0.0}, r"fedrecon\.support-share = 0\.0: must be a number above 0 and at most 0\.99"),
        ({"support-share": 1.0}, r"fedrecon\.support-share = 1\.0: must be a number above 0 and at most 0\.99"),
        ({"support-share": "half"}, r"fedrecon\.support-share = 'half': must be a number above 0"),
        ({"epochs": 0}, r"fedrecon\.epochs = 0: must be a whole number at least 1"),
    ],
)
def test_values_out_of_range_are_errors(config, message):
    with pytest.raises(ConfigError, match=message):
        parse({"task": "text", "methods": "fedrecon", **{f"fedrecon.{key}": value for key, value in config.items()}})


def test_the_learning_rate_cannot_follow_a_plateau(tmp_path):
    with pytest.raises(ValueError, match="plateau-patience = 2: must be 0 with reconstruction"):
        reconstructing(tmp_path).train_round(initial(ENCODER), round_at(1, plateau_patience=2))


def test_a_node_with_one_example_cannot_reconstruct(tmp_path):
    client = reconstructing(tmp_path, task=ToyTask(ToyOptions(examples=1)))
    with pytest.raises(ValueError, match="node toy-1 has 1 training examples: reconstruction needs at least 2"):
        client.train_round(initial(ENCODER), round_at(1))


def adapting(state, *parts):
    return node(state, adaptive_updating(2, before_evaluation=True), *parts)


def test_the_first_round_is_that_of_a_node_that_keeps_its_parameters(tmp_path):
    keeping, forgetting = adapting(tmp_path / "keeping"), adapting(tmp_path / "forgetting", Stateless())
    expected = keeping.train_round(initial(ENCODER), at(1))
    found = forgetting.train_round(initial(ENCODER), at(1))
    assert same_bits(found.arrays, expected.arrays)
    assert found.metrics == expected.metrics
    assert keeping.private.load(2) is not None
    assert forgetting.private.load(2) is None


@settings(max_examples=10, deadline=None)
@given(rounds=st.integers(1, 3))
def test_the_past_changes_nothing(rounds):
    old, new = (adapting(ContextState({}), Stateless()) for _ in range(2))
    for server_round in range(1, rounds + 1):
        old.train_round(initial(ENCODER), at(server_round))
    later = at(rounds + 1)
    assert old.evaluate_round(initial(ENCODER), later).metrics == new.evaluate_round(initial(ENCODER), later).metrics
    assert same_bits(old.train_round(initial(ENCODER), later).arrays, new.train_round(initial(ENCODER), later).arrays)


def test_the_memory_of_other_parts_is_kept(tmp_path):
    """A plateau goes on from round to round."""
    client = node(tmp_path, Stateless(), data=staged(1))
    client.train_round(initial(ENCODER), at(1, plateau_patience=5))
    assert sorted(client.private.load(2)) == ["memory.plateau", "memory.stage"]
