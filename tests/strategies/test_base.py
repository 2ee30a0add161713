"""The base strategy: the mean, and what it sends, in whole federations of foreign clients in one process."""

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.strategies.base import BaseStrategy
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from toys import arithmetic_app, arrays_of, federate, same_bits, template_app, template_net

pytestmark = pytest.mark.usefixtures("flower_identity")


def template_arrays():
    return ArrayRecord(template_net().state_dict())


# -- the mean --------------------------------------------------------------------------------------------------


def test_a_foreign_client_ends_as_under_flowers_own_fedavg():
    app = template_app(lambda partition: 3 + 4 * partition)
    ours = federate(BaseStrategy(), app, template_arrays(), num_nodes=3, num_rounds=3)
    flowers = federate(FedAvg(), app, template_arrays(), num_nodes=3, num_rounds=3)
    for name, array in arrays_of(flowers.arrays).items():
        np.testing.assert_allclose(arrays_of(ours.arrays)[name], array, rtol=1e-5, atol=1e-6)
    for server_round in (1, 2, 3):
        for history, metric in (("train", "train_loss"), ("evaluate", "eval_loss")):
            mine, theirs = (getattr(r, f"{history}_metrics_clientapp")[server_round] for r in (ours, flowers))
            assert mine[metric] == pytest.approx(theirs[metric], rel=1e-5)


def test_two_equal_nodes_end_bit_for_bit_as_under_flowers_own_fedavg():
    app = template_app(lambda partition: 8)  # weights of one half: either way, each sum is rounded once
    ours = federate(BaseStrategy(), app, template_arrays(), num_nodes=2, num_rounds=3)
    flowers = federate(FedAvg(), app, template_arrays(), num_nodes=2, num_rounds=3)
    assert same_bits(arrays_of(ours.arrays), arrays_of(flowers.arrays))
    assert not same_bits(arrays_of(ours.arrays), arrays_of(template_arrays()))


def test_weighted_mean_by_hand():
    result = federate(BaseStrategy(), arithmetic_app(add_partition), START, num_nodes=2, num_rounds=1)
    moved = (1 * 1 + 2 * 2) / 3  # steps 1 and 2 with weights 1 and 2
    arrays = arrays_of(result.arrays)
    np.testing.assert_allclose(arrays["encoder.w"], [1 + moved, 2 + moved], rtol=1e-7)
    np.testing.assert_allclose(arrays["head.w"], [[4 + moved]], rtol=1e-7)
    assert arrays["head.w"].dtype == np.float32
    metrics = result.train_metrics_clientapp[1]
    assert metrics["loss"] == pytest.approx(2 / 3)
    assert metrics["num-examples"] == 3


def test_uniform_weighting_by_hand():
    strategy = BaseStrategy(weighting="uniform")
    result = federate(strategy, arithmetic_app(add_partition), START, num_nodes=2, num_rounds=1)
    np.testing.assert_array_equal(arrays_of(result.arrays)["encoder.w"], [2.5, 3.5])
    assert result.train_metrics_clientapp[1]["loss"] == 0.5


def test_integers_are_never_averaged_into_floats():
    start = {"w": np.zeros(2, np.float32), "steps": np.array(5, np.int64), "mask": np.array([True, False])}

    def train(partition, arrays, config):
        arrays["steps"] = np.asarray(arrays["steps"] + 10 * (partition + 1))
        return arrays, {"num-examples": 1}

    newest = federate(BaseStrategy(), arithmetic_app(train), start, num_nodes=2, num_rounds=1)
    rounded = federate(BaseStrategy(integers="round"), arithmetic_app(train), start, num_nodes=2, num_rounds=1)
    for result, steps in ((newest, 25), (rounded, 20)):
        arrays = arrays_of(result.arrays)
        assert (arrays["steps"].dtype, arrays["steps"].shape, int(arrays["steps"])) == (np.int64, (), steps)
        assert arrays["mask"].dtype == np.bool_
        np.testing.assert_array_equal(arrays["mask"], start["mask"])


# -- what is sent ----------------------------------------------------------------------------------------------


def test_only_shared_names_travel():
    seen = []
    app = arithmetic_app(add_partition, seen=seen)
    result = federate(BaseStrategy(shared=["encoder.*"]), app, START, num_nodes=2, num_rounds=2)
    assert list(result.arrays) == ["encoder.w"]
    assert len(seen) == 8  # two nodes, two rounds, two phases
    assert all(list(message.content["arrays"]) == ["encoder.w"] for message in seen)


def test_an_empty_share_sends_an_empty_record():
    seen = []
    app = arithmetic_app(add_partition, seen=seen)
    result = federate(BaseStrategy(shared=()), app, START, num_nodes=2, num_rounds=2)
    assert dict(result.arrays) == {}
    assert all(dict(message.content["arrays"]) == {} for message in seen)
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("start", [None, Strategy.start], ids=["own loop", "Flower's loop"])
def test_a_pattern_without_a_match_is_an_error(start):
    app = arithmetic_app(add_partition)
    with pytest.raises(ValueError, match=r"'haed\.\*' matches no parameter.*encoder\.w, head\.w"):
        federate(BaseStrategy(shared=["haed.*"]), app, START, num_nodes=1, num_rounds=1, start=start)


def test_shared_must_be_a_list():
    with pytest.raises(ValueError, match=r"shared = 'encoder\.\*': must be a list"):
        BaseStrategy(shared="encoder.*")


def test_the_config_of_the_round_reaches_the_node():
    seen = []
    federate(
        BaseStrategy(),
        arithmetic_app(add_partition, seen=seen),
        START,
        num_nodes=1,
        num_rounds=2,
        train_config=lambda server_round: ConfigRecord({"lr": 0.5**server_round}),
        evaluate_config=ConfigRecord({"split": "test"}),
    )
    configs = [(m.metadata.message_type, dict(m.content["config"])) for m in seen]
    assert len({config.pop("attempts") for _, config in configs}) == 1
    assert configs == [
        ("train", {"lr": 0.5, "server-round": 1, "durable-round": 0}),
        ("evaluate", {"split": "test", "server-round": 1, "durable-round": 0}),
        ("train", {"lr": 0.25, "server-round": 2, "durable-round": 1}),
        ("evaluate", {"split": "test", "server-round": 2, "durable-round": 1}),
    ]


def test_flowers_own_loop_drives_it():
    seen = []
    app = arithmetic_app(add_partition, seen=seen)
    strategy = BaseStrategy(shared=["encoder.*"])
    flowers = federate(strategy, app, START, num_nodes=2, num_rounds=3, start=Strategy.start)
    ours = federate(BaseStrategy(shared=["encoder.*"]), app, START, num_nodes=2, num_rounds=3)
    assert all(list(message.content["arrays"]) == ["encoder.w"] for message in seen)
    assert same_bits(arrays_of(flowers.arrays), arrays_of(ours.arrays))
    assert flowers.train_metrics_clientapp == ours.train_metrics_clientapp
    assert flowers.evaluate_metrics_clientapp == ours.evaluate_metrics_clientapp
    # Each round has a new report.
    assert strategy.report.round == 3
    assert strategy.report.replies == 2
    assert strategy.report.train == dict(ours.train_metrics_clientapp[3])
    assert strategy.report.evaluate == dict(ours.evaluate_metrics_clientapp[3])
    assert [(node.node, node.phase) for node in strategy.report.nodes] == [
        ("part-0", "train"),
        ("part-1", "train"),
        ("part-0", "evaluate"),
        ("part-1", "evaluate"),
    ]
