"""Continual learning on a node: EWC, L2 transfer and single-task learning, from stage to stage."""

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import memory_of
from fedapps.clients.local_part import ComposedParts
from fedapps.clients.state import ContextState
from fedapps.strategies import BaseStrategy, FisherExchange
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from toy_nodes import NAMES, SETTINGS, at, initial, nodes_app, staged
from toy_nodes import node as node_of
from toys import ToyTask, arrays_of, federate, same_bits

from fedapps.config.parsing import ConfigError, parse
from fedapps.methods.baselines import StlPart
from fedapps.methods.continual import EwcState
from fedapps.methods.ewc import EwcPart
from fedapps.methods.fedcurv import FisherPrior
from fedapps.methods.fedprox import Proximal
from fedapps.methods.l2_transfer import L2TransferPart
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method


class FrozenEncoder(ToyTask):
    def build_model(self):
        model = super().build_model()
        model.get_submodule("encoder").requires_grad_(False)
        return model


def node(folder, *parts):
    return node_of(folder, *parts, data=staged(1))


def test_a_fresh_stage_forgets_what_is_private(tmp_path):
    """Single-task learning: each stage is as if it were the first."""
    going_on, new = node(tmp_path / "going-on"), node(tmp_path / "new")
    fresh = node(tmp_path / "fresh", StlPart())
    going_on.train_round({}, at(1, 0))
    fresh.train_round({}, at(1, 0))
    for client in (going_on, fresh, new):
        client.train_round({}, at(2, 1))
        client.train_round({}, at(3, 1))

    def weights(client):
        return {name: array for name, array in client.private.load(4).items() if name in NAMES}

    assert same_bits(weights(fresh), weights(new))
    assert not same_bits(weights(fresh), weights(going_on))


@pytest.mark.parametrize("part", [EwcPart(0.5), L2TransferPart(0.5)])
def test_the_past_holds_from_the_second_stage_on(tmp_path, part):
    plain, held = node(tmp_path / "plain"), node(tmp_path / "held", part)
    first = [client.train_round(initial(), at(1, 0)).arrays for client in (plain, held)]
    assert same_bits(*first)
    free, tied = (client.train_round(first[0], at(2, 1)).arrays for client in (plain, held))
    assert not same_bits(free, tied)

    def moved(arrays):
        return sum(float(np.square(arrays[name] - first[0][name]).sum()) for name in NAMES[:3])

    assert moved(tied) < moved(free)


@pytest.mark.parametrize("part", [EwcPart(0.5), L2TransferPart(0.5)])
def test_nothing_is_kept_of_frozen_parameters(tmp_path, part):
    """Below adapters, they are nearly the whole model."""
    client = node_of(tmp_path, part, data=staged(1), task=FrozenEncoder())
    for server_round, stage in ((1, 0), (2, 1)):
        client.train_round({}, at(server_round, stage))
        memory = EwcState.read(memory_of(client.private.load(server_round + 1)))
        assert set(memory.now_precision) == set(memory.now_anchor) == {"head.weight", "head.bias"}
    assert set(memory.precision) == set(memory.linear) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("parts", "trained", "held"),
    [
        ([], 7, 0),
        ([StlPart()], 21, 0),
        ([EwcPart(0.1)], 7, 14),
        ([L2TransferPart(0.1)], 7, 14),
        ([EwcPart(0.1), Proximal(0.1)], 7, 21),
        ([Proximal(0.1), EwcPart(0.1)], 7, 21),
    ],
)
def test_parameters_are_counted(tmp_path, parts, trained, held):
    metrics = node(tmp_path, *parts).train_round(initial(), at(1, 0)).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (trained, held)


def test_a_proximal_term_holds_copies_of_the_received_parameters_alone(tmp_path):
    metrics = node(tmp_path, Proximal(0.1)).train_round(initial(["encoder.weight"]), at(1, 0)).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (7, 4)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("ewc.lambda", -1.0, "a number at least 0"),
        ("ewc.lambda", "high", "a number at least 0"),
        ("ewc.anchors", "all", "one of 'separate', 'online'"),
        ("ewc.estimator", "exact", "one of 'per-sample', 'per-batch', 'per-batch-scaled'"),
        ("l2-transfer.lambda", -1.0, "a number at least 0"),
    ],
)
def test_values_out_of_range_are_errors_that_name_the_key(key, value, allowed):
    with pytest.raises(ConfigError, match=rf"{key} = {value!r}: must be {allowed}"):
        parse({"task": "social", "methods": key.partition(".")[0], "collect-after": 0, key: value})


def test_the_nodes_build_the_parts_from_the_options():
    label = "ewc(mu=0.9,lambda=0.1,anchors=online,estimator=per-batch)"
    parts = build_method(read_expression(label), {}).local_parts()
    assert parts == [Proximal(0.9), EwcPart(0.1, "online", "per-batch")]
    parts = build_method(read_expression("fedavg-l2t(lambda=0.2)"), {}).local_parts()
    assert parts == [L2TransferPart(0.2, "newest")]


def test_the_disk_space_of_earlier_stages_does_not_depend_on_the_message():
    """A node is checked before the first message comes: the bound is that of any weight."""
    assert EwcPart().bytes_on_disk(10, 100, 4) == EwcPart(0.5).bytes_on_disk(10, 100, 4) == 3 * 100
    assert L2TransferPart().bytes_on_disk(10, 100, 1) == 0


# -- with strategies -------------------------------------------------------------------------------------------


def staged_app(*parts):
    """A ClientApp of nodes with stages, whose parts read every message."""

    def client_of(partition, message, context):
        config = message.content["config"]
        read = ComposedParts((*parts, FisherPrior())).read(config, message.content).parts
        settings = SETTINGS.with_config(config)
        return node_of(ContextState(context.state), *read, data=staged(partition)), settings

    return nodes_app(client_of)


def run(strategy, *parts):
    result = federate(
        strategy, staged_app(*parts), initial(), num_nodes=3, num_rounds=6,
        train_config=lambda server_round: ConfigRecord({"stage": (server_round - 1) // 2}),
    )  # fmt: skip
    assert not strategy.report.refused
    return arrays_of(result.arrays)


@pytest.mark.slow
@pytest.mark.usefixtures("flower_identity")
@pytest.mark.parametrize("anchors", ["separate", "online"])
def test_ewc_on_the_node_is_the_exchange_of_the_own_past_alone(anchors):
    on_the_node = run(BaseStrategy(), EwcPart(0.5, anchors))
    exchanged = run(FisherExchange(own_past=0.5, anchors=anchors))
    without = run(BaseStrategy())
    for name in NAMES[:3]:
        np.testing.assert_allclose(on_the_node[name], exchanged[name], rtol=1e-4, atol=1e-5)
        assert np.abs(on_the_node[name] - without[name]).max() > 1e-3


F1, A1 = {"w": np.array([1.0, 2.0], np.float32)}, {"w": np.array([3.0, -1.0], np.float32)}
F2, A2 = {"w": np.array([0.5, 0.0], np.float32)}, {"w": np.array([1.0, 5.0], np.float32)}


def pull(prior, theta):
    parameter = nn.Parameter(torch.tensor(theta, dtype=torch.float64))
    parameter.grad = torch.zeros_like(parameter)
    prior.add_gradient({"w": parameter})
    return parameter.grad.tolist()


@pytest.mark.parametrize(
    ("anchors", "expected"),
    [
        # at θ = (2, 2), times λ = 10: F1 (θ − a1) = (−1, 6), F2 (θ − a2) = (.5, 0); online: (F1 + F2)(θ − a2)
        ("separate", [-5.0, 60.0]),
        ("online", [15.0, -60.0]),
        ("newest", [5.0, 0.0]),
    ],
)
def test_two_stages_by_hand(anchors, expected):
    past = EwcState().with_solution(A1, F1).next_stage(anchors).with_solution(A2, F2)
    assert pull(past.prior(10.0), [2.0, 2.0]) == [-10.0, 60.0]  # the current stage holds nothing yet
    assert pull(past.next_stage(anchors).prior(10.0), [2.0, 2.0]) == expected


def test_a_newer_solution_replaces_the_last_one():
    past = EwcState().with_solution(A2, F2).with_solution(A1, F1).next_stage("separate")
    assert pull(past.prior(1.0), [3.0, 0.0]) == [0.0, 2.0]


def test_without_a_finished_stage_or_a_weight_there_is_no_prior():
    assert EwcState().prior(1.0) is None
    assert EwcState().with_solution(A1, F1).prior(1.0) is None
    assert EwcState().with_solution(A1, F1).next_stage("separate").prior(0.0) is None


def test_a_stage_without_a_solution_leaves_the_past():
    past = EwcState().with_solution(A1, F1).next_stage("separate")
    assert past.next_stage("separate") is past


def test_it_survives_being_kept():
    past = EwcState().with_solution(A1, F1).next_stage("online").with_solution(A2, F2)
    again = EwcState.read(past.arrays() | {"plateau": np.zeros(3)})
    assert again.arrays().keys() == past.arrays().keys()
    for name, array in past.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)


numbers = st.floats(-5, 5, width=32)


@given(st.lists(st.tuples(st.floats(0, 5, width=32), numbers), min_size=1, max_size=6), numbers)
def test_separate_anchors_pull_as_all_the_stages_do(stages, theta):
    past = EwcState()
    for precision, anchor in stages:
        past = past.with_solution({"w": np.array([anchor], np.float32)}, {"w": np.array([precision], np.float32)})
        past = past.next_stage("separate")
    expected = sum(precision * (theta - anchor) for precision, anchor in stages)
    np.testing.assert_allclose(pull(past.prior(1.0), [theta]), [expected], atol=1e-9)
