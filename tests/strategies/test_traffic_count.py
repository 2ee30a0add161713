"""What a round reports of its traffic in training alone, and of metrics with a rule, in whole federations."""

import numpy as np
import pytest
from fedapps.strategies.algorithms.fedweit import FedWeIT
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.replies import count_bytes
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from toys import arithmetic_app, federate, record_of

VALUES = 50_000  # float32: 200 kB
SIZE = 4 * VALUES
KINDS = ("train", "evaluate")
START = {"encoder.w": np.zeros(VALUES, np.float32), "head.w": np.zeros(2 * VALUES, np.float32)}


def unchanged(partition, arrays, config):
    return arrays, {"num-examples": partition + 1, "loss": 0.5}


def reports_of(strategy, app, start=START, *, num_nodes=3, num_rounds=2, **options):
    reports = []
    federate(strategy, app, start, num_nodes=num_nodes, num_rounds=num_rounds, on_round=reports.append, **options)
    return reports


# -- bytes of training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shared", "size"), [(["*"], 3 * SIZE), (["encoder.*"], SIZE), (["head.*"], 2 * SIZE)], ids=["all", "one", "other"]
)
def test_a_nodes_training_costs_the_shared_tensors_each_way(shared, size):
    for report in reports_of(BaseStrategy(shared=shared), arithmetic_app(unchanged)):
        assert (report.train_messages, report.train_replies) == (3, 3)
        assert size <= report.train_bytes_down / report.train_messages <= 1.02 * size
        assert size <= report.train_bytes_up / report.train_replies <= 1.02 * size


def test_training_is_counted_to_the_byte_and_evaluation_is_not_in_it():
    seen, answered = [], []

    def remembered(partition, arrays, config):
        done = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord({"num-examples": 1, "loss": 0.5})})
        answered.append(count_bytes(done))
        return done

    (report,) = reports_of(BaseStrategy(), arithmetic_app(remembered, seen=seen), num_rounds=1)
    sizes = {kind: [count_bytes(m.content) for m in seen if m.metadata.message_type == kind] for kind in KINDS}
    assert [len(sizes[kind]) for kind in KINDS] == [3, 3]
    assert report.train_bytes_down == sum(sizes["train"])
    assert report.train_bytes_up == sum(answered)
    assert report.bytes_down == sum(sizes["train"]) + sum(sizes["evaluate"])
    assert 0 < report.bytes_up - report.train_bytes_up < 300  # three small sets of metrics


SCALARS = (st.booleans(), st.integers(0, 9), st.floats(), st.text(min_size=1), st.binary(min_size=1))
VALUES_OF_CONFIG = st.one_of(*SCALARS, *(st.lists(scalar, min_size=1) for scalar in SCALARS))


@given(st.dictionaries(st.text(), VALUES_OF_CONFIG))
def test_the_bytes_of_a_config_are_those_that_flower_counts(values):
    config = ConfigRecord(values)
    assert count_bytes(RecordDict({"config": config})) == config.count_bytes()


def test_empty_values_of_a_config_have_the_bytes_of_their_keys():
    config = ConfigRecord({"text": "", "bytes": b"", "list": [], "texts": ["", "a"]})
    assert count_bytes(RecordDict({"config": config})) == 4 + 5 + 4 + 5 + 1


def test_a_refused_reply_is_counted_and_a_failure_is_not():
    def train(partition, arrays, config):
        if partition == 0:
            raise RuntimeError("the disk is full")
        return arrays, {"num-examples": partition - 1}  # none at node 1

    (report,) = reports_of(BaseStrategy(), arithmetic_app(train), {"w": np.zeros(VALUES, np.float32)}, num_rounds=1)
    assert (report.train_messages, report.train_replies, report.replies) == (3, 2, 1)
    assert 2 * SIZE <= report.train_bytes_up <= 1.02 * 2 * SIZE


# -- a strategy with messages of its own -----------------------------------------------------------------------


def app_with_adaptive(train):
    app = arithmetic_app(train)

    @app.query("adaptive")
    def on_query(message, context):
        adaptive = {"w": np.ones((500, 100), np.float32)}
        return Message(RecordDict({"fedweit.adaptive": record_of(adaptive)}), reply_to=message)

    return app


def test_queries_of_a_strategy_are_not_training():
    start = {"w": np.zeros((500, 100), np.float32)}
    reports = reports_of(
        FedWeIT(), app_with_adaptive(unchanged), start, train_config=lambda r: {"stage": r - 1}, evaluate_every=9
    )
    quiet, asked = reports
    assert asked.bytes_up - quiet.bytes_up >= 3 * SIZE  # beside the evaluation: three answers to the query
    for report in reports:
        assert (report.train_messages, report.train_replies) == (3, 3)
        assert 3 * SIZE <= report.train_bytes_up <= 3 * 1.02 * SIZE
    # The knowledge of all three nodes comes with the first TRAIN message of the new stage.
    assert 3 * SIZE <= quiet.train_bytes_down <= 3 * 1.02 * SIZE
    assert 3 * 4 * SIZE <= asked.train_bytes_down <= 3 * 4 * 1.02 * SIZE


def test_a_reply_that_the_strategy_itself_refuses_is_counted():
    def train(partition, arrays, config):
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        content = RecordDict({"arrays": record_of(arrays), "metrics": metrics})
        if partition == 1:
            content["fedweit.mask"] = record_of({"w": np.ones((3, 3), np.bool_)})
        return content

    start = {"w": np.zeros((500, 100), np.float32)}
    (report,) = reports_of(FedWeIT(profiles=True), app_with_adaptive(train), start, num_rounds=1)
    assert [refusal.node for refusal in report.refused] == ["part-1"]
    assert (report.train_messages, report.train_replies, report.replies) == (3, 3, 2)
    assert 3 * SIZE <= report.train_bytes_up <= 3 * 1.02 * SIZE


# -- rules of metrics ------------------------------------------------------------------------------------------

RULES = {"global": "geometric", "local": "uniform"}


def with_accuracy(sign=1.0):
    """Accuracies 0.2 and 0.8 at nodes with 1 and 3 examples; the first node's times ``sign``."""

    def work(partition, arrays, config):
        accuracy = 0.8 if partition else 0.2 * sign
        metrics = {"num-examples": 3 if partition else 1, "global": accuracy, "local": accuracy, "other": accuracy}
        return {name: array + np.float32(partition) for name, array in arrays.items()}, metrics

    return arithmetic_app(work, work)


SMALL = {"w": np.zeros(2, np.float32)}


def test_metric_means_hold_in_both_phases():
    (report,) = reports_of(BaseStrategy(metric_means=RULES), with_accuracy(), SMALL, num_nodes=2, num_rounds=1)
    expected = {"global": 0.4, "local": 0.5, "other": 0.65, "num-examples": 4}
    assert report.train == pytest.approx(expected)
    assert report.evaluate == pytest.approx(expected)


def test_a_negative_value_under_a_geometric_mean_is_left_out():
    strategy = BaseStrategy(profiles=True, metric_means=RULES)
    (report,) = reports_of(strategy, with_accuracy(-1.0), SMALL, num_nodes=2, num_rounds=1)
    assert [(m.node, m.phase, m.metric, m.value) for m in report.left_out] == [
        ("part-0", "train", "global", "-0.2"),
        ("part-0", "evaluate", "global", "-0.2"),
    ]
    assert report.evaluate["global"] == pytest.approx(0.8)
    assert report.evaluate["num-examples"] == 4


def test_an_unknown_rule_is_an_error_before_anything_is_sent():
    with pytest.raises(ValueError, match=r"metric_means\['global'\] = 'median': must be one of 'weighted', 'uniform'"):
        BaseStrategy(metric_means={"global": "median"})
