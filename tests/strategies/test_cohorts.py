"""Which nodes a strategy asks to train and to evaluate."""

import numpy as np
import pytest
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.nodes.samplers import UniformFraction
from fedapps.strategies.rounds.records import TooFewRepliesError
from grouped import grouped_app
from toys import arithmetic_app, federate

pytestmark = pytest.mark.usefixtures("flower_identity")
PHASES = ("train", "evaluate")
START = {"w": np.array([1.0, 2.0], np.float32)}


def train(partition, arrays, config):
    return arrays, {"num-examples": partition + 1}


def evaluate(partition, arrays, config):
    return {}, {"num-examples": 1}


def test_equal_samplers_draw_different_nodes_to_train_and_to_evaluate():
    def cohorts():
        reports = []
        strategy = BaseStrategy(sampler=UniformFraction(0.5, seed=1), evaluate_sampler=UniformFraction(0.5, seed=1))
        app = arithmetic_app(train, evaluate)
        federate(strategy, app, START, num_nodes=8, num_rounds=6, on_round=reports.append)
        return [[{n.node for n in report.nodes if n.phase == phase} for phase in PHASES] for report in reports]

    first = cohorts()
    assert all(len(cohort) == 4 for pair in first for cohort in pair)
    assert sum(trained == evaluated for trained, evaluated in first) <= 1
    assert first == cohorts()


def test_a_node_with_zero_examples_evaluates_but_does_not_train():
    examples, seen = [4, 0, None, 0], []

    def profile(partition):
        return {} if examples[partition] is None else {"num-examples": examples[partition]}

    federate(BaseStrategy(), grouped_app(profile, train, evaluate, seen), START, num_nodes=4, num_rounds=1)
    kinds = [message.metadata.message_type for message in seen]
    assert (kinds.count("train"), kinds.count("evaluate")) == (2, 4)


def test_a_node_without_data_gets_no_message():
    seen = []
    app = grouped_app(lambda partition: {"no-data": "gone"} if partition else {}, train, seen=seen)
    federate(BaseStrategy(), app, START, num_nodes=2, num_rounds=2)
    assert [message.metadata.message_type for message in seen].count("train") == 2
    assert {message.metadata.dst_node_id for message in seen} == {seen[0].metadata.dst_node_id}


def test_a_round_fails_if_no_node_has_examples():
    app = grouped_app(lambda partition: {"num-examples": 0}, train)
    with pytest.raises(
        TooFewRepliesError,
        match=r"0 usable replies.*\. No node was asked to train\. Connected, but left out or without data",
    ):
        federate(BaseStrategy(), app, START, num_nodes=2, num_rounds=1)
