"""The base strategy in whole federations: the mean, who is asked, and what happens while nodes take their time."""

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import registry as node_registry
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.records import TooFewRepliesError
from fedapps.strategies.samplers import UniformFraction
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from grouped import grouped_app
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits, template_app, template_net


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
    app = template_app(lambda partition: 8)  # weights of one half and short steps: either way, each sum is rounded once
    short = ConfigRecord({"lr": 1e-3})
    ours = federate(BaseStrategy(), app, template_arrays(), num_nodes=2, num_rounds=3, train_config=short)
    flowers = federate(FedAvg(), app, template_arrays(), num_nodes=2, num_rounds=3, train_config=short)
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


@pytest.mark.parametrize(
    ("part", "given", "module"),
    [("sampler", 0.5, "samplers"), ("compression", "int8", "compression"), ("server_optimizer", "yogi", "optimizers")],
)
def test_a_part_must_be_an_object_of_its_kind(part, given, module):
    with pytest.raises(ValueError, match=rf"{part} = {given!r}: must be an object of a class of .*{module}, or None"):
        BaseStrategy(**{part: given})


def test_the_number_of_rounds_of_a_run_config_must_be_a_number():
    with pytest.raises(ValueError, match="num_rounds = '3'"):
        federate(BaseStrategy(), arithmetic_app(add_partition), START, num_nodes=1, num_rounds="3")


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
    strategy = BaseStrategy(profiles=True, shared=["encoder.*"])
    flowers = federate(strategy, app, START, num_nodes=2, num_rounds=3, start=Strategy.start)
    ours = federate(BaseStrategy(profiles=True, shared=["encoder.*"]), app, START, num_nodes=2, num_rounds=3)
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


PHASES = ("train", "evaluate")
PAIR = {"w": np.array([1.0, 2.0], np.float32)}


def train(partition, arrays, config):
    return arrays, {"num-examples": partition + 1}


def evaluate(partition, arrays, config):
    return {}, {"num-examples": 1}


def test_equal_samplers_draw_different_nodes_to_train_and_to_evaluate():
    def cohorts():
        reports = []
        strategy = BaseStrategy(sampler=UniformFraction(0.5, seed=1), evaluate_sampler=UniformFraction(0.5, seed=1))
        app = arithmetic_app(train, evaluate)
        federate(strategy, app, PAIR, num_nodes=8, num_rounds=6, on_round=reports.append)
        return [[{n.node for n in report.nodes if n.phase == phase} for phase in PHASES] for report in reports]

    first = cohorts()
    assert all(len(cohort) == 4 for pair in first for cohort in pair)
    assert sum(trained == evaluated for trained, evaluated in first) <= 1
    assert first == cohorts()


def test_a_node_with_zero_examples_evaluates_but_does_not_train():
    examples, seen = [4, 0, None, 0], []

    def profile(partition):
        return {} if examples[partition] is None else {"num-examples": examples[partition]}

    federate(BaseStrategy(profiles=True), grouped_app(profile, train, evaluate, seen), PAIR, num_nodes=4, num_rounds=1)
    kinds = [message.metadata.message_type for message in seen]
    assert (kinds.count("train"), kinds.count("evaluate")) == (2, 4)


def test_a_node_without_data_gets_no_message():
    seen = []
    app = grouped_app(lambda partition: {"no-data": "gone"} if partition else {}, train, seen=seen)
    federate(BaseStrategy(profiles=True), app, PAIR, num_nodes=2, num_rounds=2)
    assert [message.metadata.message_type for message in seen].count("train") == 2
    assert {message.metadata.dst_node_id for message in seen} == {seen[0].metadata.dst_node_id}


def test_a_round_fails_if_no_node_has_examples():
    app = grouped_app(lambda partition: {"num-examples": 0}, train)
    with pytest.raises(
        TooFewRepliesError,
        match=r"0 usable replies.*\. No node was asked to train\. Connected, but left out or without data",
    ):
        federate(BaseStrategy(profiles=True), app, PAIR, num_nodes=2, num_rounds=1)


ONES = {"w": np.ones(3, np.float32)}


class SlowGrid(InProcessGrid):
    """Every reply is there at the third look; a ``latecomer``, the last node, joins when the others train."""

    immediate = False

    def __init__(self, nodes, latecomer=False):
        super().__init__(arithmetic_app(doubled), [{}] * nodes, {}, errors="reply")
        self.latecomer, self.out, self.looks, self.log = latecomer, set(), {}, []

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        waits = self.latecomer and all(kind != "train" for _, kind, _ in self.log)
        return nodes[:-1] if waits else nodes

    def push_messages(self, messages):
        sent = list(messages)
        ids = list(super().push_messages(sent))
        self.out |= set(ids)
        self.log += [("out", message.metadata.message_type, len(self.out)) for message in sent]
        return ids

    def pull_messages(self, message_ids):
        (wanted,) = message_ids
        self.looks[wanted] = self.looks.get(wanted, 0) + 1
        if wanted not in self.out or self.looks[wanted] < 3:
            return []
        self.out.remove(wanted)
        replies = list(super().pull_messages([wanted]))
        self.log += [("reply", reply.metadata.message_type, len(self.out)) for reply in replies]
        return replies


def doubled(partition, arrays, config):
    return {"w": arrays["w"] * 2 + partition}, {"num-examples": partition + 1}


def run(grid, **options):
    result = BaseStrategy(poll=1e-4, profiles=True, **options).start(grid, record_of(ONES), num_rounds=2)
    return arrays_of(result.arrays)


def test_profiles_training_and_evaluation_keep_to_the_number_and_to_the_bits():
    free, bound = SlowGrid(5), SlowGrid(5)
    assert same_bits(run(free), run(bound, in_flight=2))
    for kind in ("query.profile", "train", "evaluate"):
        assert max(out for what, told, out in free.log if (what, told) == ("out", kind)) == 5
        assert max(out for what, told, out in bound.log if (what, told) == ("out", kind)) == 2


def test_who_joins_in_a_round_is_asked_before_it_is_over(monkeypatch):
    monkeypatch.setattr(node_registry, "POLL_SECONDS", 0.0)
    grid = SlowGrid(3, latecomer=True)
    run(grid)
    asked = [index for index, (what, kind, _) in enumerate(grid.log) if (what, kind) == ("out", "query.profile")]
    trained = [index for index, (what, kind, _) in enumerate(grid.log) if (what, kind) == ("reply", "train")]
    assert len(asked) == 3
    assert asked[2] < trained[0]
    assert len(trained) == 2 + 3, "and takes part in the next round"


def test_who_joins_in_a_round_is_asked_when_there_is_room(monkeypatch):
    monkeypatch.setattr(node_registry, "POLL_SECONDS", 0.0)
    grid = SlowGrid(4, latecomer=True)
    run(grid, in_flight=2)
    out = [(kind, number) for what, kind, number in grid.log if what == "out"]
    assert max(number for _, number in out) == 2, "profile queries count as the others do"
    kinds = [kind for kind, _ in out]
    assert kinds.index("query.profile", 3) > kinds.index("train") + 1
    assert kinds.count("train") == 3 + 4, "and takes part in the next round"


@pytest.mark.parametrize(("name", "least"), [("in_flight", 1), ("min_nodes", 1), ("min_replies", 0)])
def test_numbers_that_are_too_small_or_no_integers_are_refused(name, least):
    for wrong in (least - 1, 2.5, "3"):
        with pytest.raises(ValueError, match=f"{name} = {wrong!r}: must be an integer of at least {least}"):
            BaseStrategy(**{name: wrong})


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "60"])
def test_a_wait_that_is_no_time_is_refused(wrong):
    with pytest.raises(ValueError, match=rf"node_wait = {wrong!r}: must be a number of seconds of at least 0"):
        BaseStrategy(node_wait=wrong)
