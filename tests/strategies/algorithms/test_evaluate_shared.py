"""Clusters' models beside the shared one: what evaluating nodes get, and what is written of them."""

import numpy as np
import pytest
from fedapps.strategies.algorithms.clustered import ClusteredFedAvg
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from grouped import grouped_app
from toys import federate

START = {"w": np.array([0.0], np.float32)}
CITIES = ["rome", "rome", "oslo"]


def city(partition):
    return {"group.city": CITIES[partition]}


def add(partition, arrays, config):
    """Node k moves everything by k + 1."""
    return {name: a + a.dtype.type(partition + 1) for name, a in arrays.items()}, {"num-examples": 1}


def evaluate(partition, arrays, config):
    value = float(arrays["w"][0])
    return {}, {"num-examples": 1 + partition, "level": value, "shared.level": value}


def run(strategy, rounds):
    """The messages that asked for an evaluation, and the reports of the rounds."""
    seen, reports = [], []
    federate(strategy, grouped_app(city, add, evaluate, seen), START, num_nodes=3, num_rounds=rounds,
             on_round=reports.append)  # fmt: skip
    return [m for m in seen if m.metadata.message_type == "evaluate"], reports


def value(record):
    return float(record["w"].numpy()[0])


def test_an_evaluating_node_gets_the_model_of_its_cluster_and_the_shared_one():
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2], evaluate_shared=True)
    messages, _ = run(strategy, 2)
    sent = [(value(m.content["arrays"]), value(m.content["hierarchical.shared"])) for m in messages]
    # Rome moves by (1 + 2) / 2, Oslo by 3; in round 2 again, and then all begin from the average.
    assert sent == [(1.5, 2.25), (1.5, 2.25), (3.0, 2.25), (4.5, 4.5), (4.5, 4.5), (4.5, 4.5)]


def test_found_clusters_too():
    strategy = ClusteredFedAvg(num_clusters=2, evaluate_shared=True)
    messages, _ = run(strategy, 1)
    assert ["hierarchical.shared" in m.content for m in messages] == [True] * 3


def test_it_is_not_sent_unless_asked_for():
    messages, _ = run(HierarchicalFedAvg(groups=["city"], intervals=[2]), 1)
    assert len(messages) == 3
    assert all("hierarchical.shared" not in m.content for m in messages)


def test_its_metrics_are_averaged_as_those_of_the_clusters_are():
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2], evaluate_shared=True,
                                  metric_means={"level": "uniform"})  # fmt: skip
    _, (report,) = run(strategy, 1)
    assert report.evaluate["level"] == report.evaluate["shared.level"] == pytest.approx((1.5 + 1.5 + 3) / 3)


def test_reports_name_the_groups_of_nodes_and_their_cluster():
    _, (report,) = run(HierarchicalFedAvg(groups=["city"], intervals=[2]), 1)
    for phase in ("train", "evaluate"):
        found = {node.node: node.groups for node in report.nodes if node.phase == phase}
        assert found == {f"part-{k:04d}": {"city": name, "cluster": name} for k, name in enumerate(CITIES)}
