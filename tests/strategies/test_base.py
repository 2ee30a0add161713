"""The base strategy, driven through whole federations of foreign clients in one process."""

import re
import weakref

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits, template_app, template_net

from sim.inprocess import InProcessGrid
from strategies.base import BaseStrategy
from strategies.optimizers import SGD, Adam
from strategies.round_records import Snapshot, TooFewRepliesError, TrackedMetric

pytestmark = pytest.mark.usefixtures("flower_identity")
START = {"encoder.w": np.array([1.0, 2.0], np.float32), "head.w": np.array([[4.0]], np.float32)}


def add_partition(partition, arrays, config):
    """Node k adds k + 1 to everything, and has k + 1 examples."""
    trained = {name: array + array.dtype.type(partition + 1) for name, array in arrays.items()}
    return trained, {"num-examples": partition + 1, "loss": float(partition)}


def template_arrays():
    return ArrayRecord(template_net().state_dict())


class MemoryCheckpoints:
    def __init__(self):
        self.snapshots, self.best = [], None

    def save(self, snapshot, *, best):
        self.snapshots.append(snapshot)
        self.best = snapshot if best else self.best

    def oldest_round(self):
        return self.snapshots[0].round if self.snapshots else 0

    def latest(self):
        return self.snapshots[-1] if self.snapshots else None


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


# -- what travels ----------------------------------------------------------------------------------------------


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
    # The reports of earlier rounds are not piled up.
    assert strategy.report.round == 3
    assert [(node.node, node.phase) for node in strategy.report.nodes] == [
        ("part-0", "train"),
        ("part-1", "train"),
        ("part-0", "evaluate"),
        ("part-1", "evaluate"),
    ]


# -- refusals --------------------------------------------------------------------------------------------------


def raises(arrays, metrics):
    raise RuntimeError("the sensor is unplugged")


def with_array(name, change):
    return lambda arrays, metrics: ({**arrays, name: change(arrays[name])}, metrics)


def undecodable(arrays, metrics):
    record = record_of(arrays)
    record["head.w"] = Array(dtype="float32", shape=(1, 1), stype="numpy.ndarray", data=b"no array at all")
    return RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})


FAULTS = {
    "NaN": (with_array("head.w", lambda a: a * np.nan), r"not finite: head\.w \(1 of 1\)"),
    "infinity": (with_array("encoder.w", lambda a: a * np.inf), r"not finite: encoder\.w \(2 of 2\)"),
    "shape": (with_array("head.w", lambda a: a[0]), r"shapes differ: head\.w is \[1\] instead of \[1, 1\]"),
    "dtype": (with_array("head.w", lambda a: a.astype(float)), "float64 instead of float32"),
    "missing name": (lambda a, m: ({"head.w": a["head.w"]}, m), r"missing encoder\.w"),
    "extra name": (lambda a, m: ({**a, "mine": a["head.w"]}, m), "unexpected mine"),
    "no examples": (lambda a, m: (a, {"loss": 0.0}), "num-examples is missing"),
    "zero examples": (lambda a, m: (a, {**m, "num-examples": 0}), "num-examples is 0, not positive"),
    "negative examples": (lambda a, m: (a, {**m, "num-examples": -2.5}), "-2.5, not positive"),
    "list of examples": (lambda a, m: (a, {**m, "num-examples": [1, 2]}), "not a number"),
    "NaN metric": (lambda a, m: (a, {**m, "loss": float("nan")}), "metric 'loss' is nan"),
    "no arrays": (lambda a, m: RecordDict({"metrics": MetricRecord(m)}), "expected one ArrayRecord"),
    "no metrics": (lambda a, m: RecordDict({"arrays": record_of(a)}), "expected one MetricRecord"),
    "undecodable": (undecodable, r"array 'head\.w' cannot be decoded"),
    "exception": (raises, r"(?s)Traceback.*the sensor is unplugged"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_node_is_refused_and_the_others_make_the_mean(fault):
    spoil, reason = FAULTS[fault]

    def train(partition, arrays, config):
        trained, metrics = add_partition(partition, arrays, config)
        return spoil(trained, metrics) if partition == 1 else (trained, metrics)

    reports = []
    result = federate(BaseStrategy(), arithmetic_app(train), START, num_nodes=4, num_rounds=1, on_round=reports.append)
    moved = (1 * 1 + 3 * 3 + 4 * 4) / 8
    np.testing.assert_allclose(arrays_of(result.arrays)["encoder.w"], [1 + moved, 2 + moved], rtol=1e-6)
    (report,) = reports
    (refusal,) = report.refused
    assert (refusal.node, refusal.phase) == ("part-1", "train")
    assert re.search(reason, refusal.reason)
    assert report.replies == 3
    assert [node.node for node in report.nodes if node.phase == "train"] == ["part-0", "part-2", "part-3"]


def test_a_round_without_usable_replies_tells_every_reason():
    def train(partition, arrays, config):
        raise RuntimeError(f"camera {partition} is dark")

    with pytest.raises(TooFewRepliesError) as caught:
        federate(BaseStrategy(), arithmetic_app(train), START, num_nodes=2, num_rounds=1)
    told = str(caught.value)
    assert "round 1: 0 usable replies, but min-replies is 1" in told
    for partition in (0, 1):
        assert f"part-{partition}: Traceback" in told
        assert f"camera {partition} is dark" in told
    assert "test_base.py" in told  # the node's own traceback


def test_min_replies_counts_usable_replies():
    def train(partition, arrays, config):
        arrays, metrics = add_partition(partition, arrays, config)
        return arrays, {**metrics, "num-examples": partition}  # none at node 0

    app = arithmetic_app(train)
    assert federate(BaseStrategy(min_replies=2), app, START, num_nodes=3, num_rounds=1).arrays is not None
    with pytest.raises(TooFewRepliesError, match="2 usable replies, but min-replies is 3"):
        federate(BaseStrategy(min_replies=3), app, START, num_nodes=3, num_rounds=1)


def test_a_bad_evaluation_is_refused_and_costs_no_round():
    def evaluate(partition, arrays, config):
        return {}, {"num-examples": 2 - 2 * partition, "loss": 0.5 + partition}

    reports = []
    app = arithmetic_app(add_partition, evaluate)
    federate(BaseStrategy(), app, START, num_nodes=2, num_rounds=1, on_round=reports.append)
    assert [(r.node, r.phase) for r in reports[0].refused] == [("part-1", "evaluate")]
    assert reports[0].evaluate == {"loss": 0.5, "num-examples": 2}


# -- memory and bytes ------------------------------------------------------------------------------------------


class CountingGrid(InProcessGrid):
    """Counts the replies that somebody still holds."""

    live = most = total = 0

    def pull_messages(self, message_ids):
        for reply in super().pull_messages(message_ids):
            if reply.has_content() and "arrays" in reply.content:
                self.total += 1
                self.live += 1
                self.most = max(self.most, self.live)
                weakref.finalize(reply.content["arrays"], self._freed)
            yield reply

    def _freed(self):
        self.live -= 1


def test_one_reply_is_in_memory_at_a_time():
    grid = CountingGrid(arithmetic_app(add_partition), [{} for _ in range(6)], {})
    BaseStrategy().start(grid, record_of(START), num_rounds=2)
    assert grid.total == 12
    assert grid.most == 1
    assert grid.live == 0


def test_the_report_counts_the_bytes_of_both_ways():
    start = {"w": np.zeros(5000, np.float32), "private": np.zeros(7000, np.float32)}
    reports = []
    app = arithmetic_app(add_partition)
    federate(BaseStrategy(shared=["w"]), app, start, num_nodes=3, num_rounds=2, on_round=reports.append)
    size, framing = 5000 * 4, 300
    for report in reports:
        # down: to train and to evaluate; up: from training only
        assert 6 * size <= report.bytes_down <= 6 * (1.02 * size + framing)
        assert 3 * size <= report.bytes_up <= 3 * (1.02 * size + framing)


def test_a_refused_reply_has_travelled_too():
    def train(partition, arrays, config):
        arrays, metrics = add_partition(partition, arrays, config)
        return arrays, {**metrics, "num-examples": partition}

    reports = []
    start = {"w": np.zeros(5000, np.float32)}
    federate(BaseStrategy(), arithmetic_app(train), start, num_nodes=2, num_rounds=1, on_round=reports.append)
    assert len(reports[0].refused) == 1
    assert reports[0].bytes_up >= 2 * 5000 * 4


# -- rounds ----------------------------------------------------------------------------------------------------


def test_evaluation_rhythm_and_reports():
    reports = []
    result = federate(
        BaseStrategy(),
        arithmetic_app(add_partition),
        START,
        num_nodes=1,
        num_rounds=5,
        evaluate_every=2,
        evaluate_fn=lambda server_round, arrays: MetricRecord({"sum": float(arrays["head.w"].numpy().sum())}),
        on_round=reports.append,
    )
    assert [report.round for report in reports] == [1, 2, 3, 4, 5]
    assert [sorted(report.evaluate) for report in reports if report.evaluate] == (
        [["loss", "num-examples", "server.sum"]] * 3
    )
    assert list(result.evaluate_metrics_clientapp) == [2, 4, 5]  # the last round is always evaluated
    assert {r: m["sum"] for r, m in result.evaluate_metrics_serverapp.items()} == {0: 4, 2: 6, 4: 8, 5: 9}
    assert all(report.seconds > 0 and report.replies == 1 for report in reports)
    assert reports[0].train == {"loss": 0.0, "num-examples": 1}


def losses_app(losses):
    def evaluate(partition, arrays, config):
        return {}, {"num-examples": 1, "loss": losses[config["server-round"] - 1]}

    return arithmetic_app(add_partition, evaluate)


def test_the_best_round_is_kept_and_training_stops_early():
    kept, reports = MemoryCheckpoints(), []
    federate(
        BaseStrategy(),
        losses_app([3.0, 1.0, 1.5, 0.95, 2.0, 2.0, 0.0]),
        START,
        num_nodes=1,
        num_rounds=7,
        tracked=TrackedMetric("loss", patience=3, min_delta=0.1),
        checkpoints=kept,
        on_round=reports.append,
    )
    assert [report.round for report in reports] == [1, 2, 3, 4, 5]  # 0.95 is no gain of more than 0.1
    assert kept.best.round == 2
    np.testing.assert_array_equal(kept.best.arrays["shared.head.w"], [[6.0]])


def test_more_may_be_better():
    kept = MemoryCheckpoints()
    tracked = TrackedMetric("loss", mode="max")
    options = {"num_nodes": 1, "num_rounds": 3, "tracked": tracked, "checkpoints": kept}
    federate(BaseStrategy(), losses_app([1.0, 3.0, 2.0]), START, **options)
    assert kept.best.round == 2


def test_a_metric_that_is_no_number_is_never_the_best():
    kept, scores = MemoryCheckpoints(), [float("nan"), 2.0, 1.0]
    federate(
        BaseStrategy(),
        arithmetic_app(add_partition),
        START,
        num_nodes=1,
        num_rounds=3,
        evaluate_fn=lambda r, arrays: MetricRecord({"score": scores[r - 1]}) if r else None,
        tracked=TrackedMetric("server.score"),
        checkpoints=kept,
    )
    assert kept.best.round == 3


def test_an_unknown_tracked_metric_is_an_error():
    with pytest.raises(ValueError, match="'accuracy' is not reported; the nodes report: loss, num-examples"):
        federate(
            BaseStrategy(),
            losses_app([1.0]),
            START,
            num_nodes=1,
            num_rounds=1,
            tracked=TrackedMetric("accuracy"),
        )


def test_it_waits_for_nodes_and_then_gives_up():
    with pytest.raises(TooFewRepliesError, match="1 nodes connected within 0 s, but 2 are wanted"):
        federate(
            BaseStrategy(min_nodes=2, node_wait=0.15),
            arithmetic_app(add_partition),
            START,
            num_nodes=1,
            num_rounds=1,
        )


def test_it_waits_until_enough_nodes_are_there():
    class LateGrid(InProcessGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            nodes = super().get_node_ids()
            return nodes if self.looks > 3 else nodes[:1]

    grid = LateGrid(arithmetic_app(add_partition), [{}, {}], {})
    result = BaseStrategy(min_nodes=2).start(grid, record_of(START), num_rounds=1)
    assert grid.looks > 3
    assert result.train_metrics_clientapp[1]["num-examples"] == 3


# -- checkpoints -----------------------------------------------------------------------------------------------

OPTIMIZERS = {"SGD": lambda: SGD(0.7), "Adam": lambda: Adam(0.05)}


class PowerCutError(Exception):
    pass


def histories(result):
    names = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
    return {name: {r: dict(m) for r, m in getattr(result, name).items()} for name in names}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_ends_bit_for_bit_as_an_undisturbed_one(optimizer):
    options = {
        "num_nodes": 3,
        "num_rounds": 6,
        "evaluate_fn": lambda r, arrays: MetricRecord({"sum": float(arrays["0.weight"].numpy().sum())}),
        "tracked": TrackedMetric("eval_loss"),
    }
    app = template_app(lambda partition: 3 + partition)

    def run(checkpoints, **more):
        strategy = BaseStrategy(server_optimizer=OPTIMIZERS[optimizer]())
        return federate(strategy, app, template_arrays(), checkpoints=checkpoints, **options, **more)

    def cut(report):
        if report.round == 4:
            raise PowerCutError

    whole, parts = MemoryCheckpoints(), MemoryCheckpoints()
    undisturbed = run(whole)
    with pytest.raises(PowerCutError):
        run(parts, on_round=cut)
    assert parts.latest().round == 3
    rounds = []
    resumed = run(parts, resume=True, on_round=lambda report: rounds.append(report.round))
    assert rounds == [4, 5, 6]
    assert same_bits(arrays_of(resumed.arrays), arrays_of(undisturbed.arrays))
    assert histories(resumed) == histories(undisturbed)
    assert same_bits(parts.latest().arrays, whole.latest().arrays)
    assert parts.latest().facts == whole.latest().facts
    # A run that is already over gives the same once more.
    again = run(parts, resume=True)
    assert same_bits(arrays_of(again.arrays), arrays_of(undisturbed.arrays))
    assert histories(again) == histories(undisturbed)


def test_nodes_are_told_how_far_the_server_can_go_back():
    seen = []
    app = arithmetic_app(add_partition, seen=seen)
    options = {"num_nodes": 1, "checkpoints": MemoryCheckpoints()}
    federate(BaseStrategy(), app, START, num_rounds=2, **options)
    federate(BaseStrategy(), app, START, num_rounds=3, resume=True, **options)
    trained = [m.content["config"] for m in seen if m.metadata.message_type == "train"]
    told = [(config["server-round"], config["durable-round"]) for config in trained]
    assert told == [(1, 0), (2, 1), (3, 1)]  # these checkpoints keep every round


def test_without_resume_a_run_begins_anew():
    kept, rounds = MemoryCheckpoints(), []
    options = {"num_nodes": 1, "checkpoints": kept, "on_round": lambda report: rounds.append(report.round)}
    for _ in range(2):
        federate(BaseStrategy(), arithmetic_app(add_partition), START, num_rounds=2, **options)
    assert rounds == [1, 2, 1, 2]


def test_a_snapshot_of_another_model_is_refused():
    kept = MemoryCheckpoints()
    kept.save(Snapshot(2, {"shared.encoder.w": np.zeros(3, np.float32)}, {}), best=False)
    with pytest.raises(ValueError, match=r"checkpoint of round 2 does not fit this model.*missing head\.w"):
        federate(
            BaseStrategy(),
            arithmetic_app(add_partition),
            START,
            num_nodes=1,
            num_rounds=3,
            checkpoints=kept,
            resume=True,
        )


def test_a_snapshot_of_another_optimizer_is_refused():
    kept, app = MemoryCheckpoints(), arithmetic_app(add_partition)
    federate(BaseStrategy(server_optimizer=Adam()), app, START, num_nodes=1, num_rounds=1, checkpoints=kept)
    with pytest.raises(ValueError, match="unknown to SGD"):
        federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=2, checkpoints=kept, resume=True)
