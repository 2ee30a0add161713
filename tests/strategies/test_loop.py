"""The loop over rounds: evaluation, the best round, early stopping, waiting for nodes, and runs that are resumed."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from adding_nodes import START, add_partition
from between_rounds import between
from fedapps.clients.state import Attempts
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BufferedAsync, Callback, ClusteredFedAvg, Save, SpeedTiers
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.callbacks import TrackedMetric
from fedapps.strategies.optimizers import SGD, Adam, Momentum
from fedapps.strategies.records import FailedEvaluationsError, LeftOut, Snapshot, nested
from fedapps.strategies.registry import HeldOut
from flwr.app import ArrayRecord, MetricRecord
from grouped import MemoryCheckpoints, assert_resumes_alike, grouped_app
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits, template_app, template_net


def test_evaluation_rhythm_and_reports(caplog):
    caplog.set_level("INFO", "flwr")
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
    shown = re.findall(r"round (\d), on the server: sum (\d)", caplog.text)
    assert shown == [("0", "4"), ("2", "6"), ("4", "8"), ("5", "9")]
    assert all(report.seconds > 0 and report.replies == 1 for report in reports)
    assert reports[0].train == {"loss": 0.0, "num-examples": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: BaseStrategy(server_optimizer=Adam()),
        lambda: ClusteredFedAvg(num_clusters=2),
        lambda: BufferedAsync(buffer=2),
    ],
)
def test_a_strategy_that_has_run_starts_again_only_from_a_snapshot(make):
    strategy, kept, reports = make(), MemoryCheckpoints(), []
    options = {"num_nodes": 2, "checkpoints": kept, "on_round": reports.append}
    app = arithmetic_app(add_partition)
    federate(strategy, app, START, num_rounds=1, **options)
    elsewhere = {name: array + 100 for name, array in START.items()}
    with pytest.raises(ValueError, match=f"this {type(strategy).__name__} has run before.* create a new strategy"):
        federate(strategy, app, elsewhere, num_rounds=1, **options)
    federate(strategy, app, START, num_rounds=2, resume=True, **options)
    assert [report.round for report in reports] == [1, 2]


def test_strategies_that_are_given_the_same_parts_know_nothing_of_each_other():
    optimizer, held_out, results = Momentum(), HeldOut(0.5), []
    for name in ("car", "van"):
        app = grouped_app(lambda k, name=name: {"key": f"{name}-{k}"}, add_partition)
        strategy = BaseStrategy(server_optimizer=optimizer, held_out=held_out)
        results.append(federate(strategy, app, START, num_nodes=4, num_rounds=2).arrays)
        assert len(strategy.registry.with_examples()) == 2
    assert same_bits(*map(arrays_of, results))


def test_a_state_that_was_loaded_before_the_start_is_that_of_the_run():
    before, after = BaseStrategy(sampler=SpeedTiers(0.5)), BaseStrategy(sampler=SpeedTiers(0.5))
    app = arithmetic_app(add_partition)
    for _ in range(2):
        federate(before, app, START, num_nodes=2, num_rounds=1)
        assert len(nested(before.sampler.state())["seen"]) == 1
        after.load_state(before.state())
        federate(after, app, START, num_nodes=2, num_rounds=1)
        assert len(nested(after.sampler.state())["seen"]) == 2  # another node, as the time of the first is known
        before = BaseStrategy(sampler=before.sampler)  # a new strategy has not learned anything


def losses_app(losses, train=add_partition):
    def evaluate(partition, arrays, config):
        return {}, {"num-examples": 1, "loss": losses[config["server-round"] - 1]}

    return arithmetic_app(train, evaluate)


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


def test_messages_name_the_best_round_so_far():
    seen = []

    def train(partition, arrays, config):
        seen.append((config["server-round"], config.get("best-round")))
        return add_partition(partition, arrays, config)

    for tracked in (TrackedMetric("loss"), None):
        app = losses_app([3.0, 1.0, 2.0, 0.5], train)
        federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=4, tracked=tracked)
    assert seen == [(1, None), (2, 1), (3, 2), (4, 2), *((server_round, None) for server_round in (1, 2, 3, 4))]


def test_training_stops_after_a_round_beyond_its_limit():
    def rounds_of(losses, limits, **keywords):
        reports = []
        tracked = TrackedMetric("loss", limits=limits, **keywords)
        federate(
            BaseStrategy(), losses_app(losses), START, num_nodes=1, num_rounds=len(losses), tracked=tracked,
            on_round=reports.append,
        )  # fmt: skip
        return len(reports)

    losses = [3.0, 2.0, 1.0]
    assert rounds_of(losses, {1: 3.0, 2: 2.0, 3: 0.0}) == 3  # equal is not beyond; the last round ends anyway
    assert rounds_of(losses, {2: 1.9}) == 2
    assert rounds_of(losses, {1: 2.5, 2: 5.0}, mode="max") == 2
    assert TrackedMetric("loss", limits={2: 9.0}).beyond_limit(2, float("nan"))


@pytest.mark.parametrize("nodes_evaluate", [True, False])
def test_a_limit_also_holds_for_a_metric_of_the_server(nodes_evaluate):
    def rounds_of(limits, kept, **keywords):
        reports = []
        federate(
            BaseStrategy(fraction_evaluate=float(nodes_evaluate)), arithmetic_app(add_partition), START, num_nodes=1,
            num_rounds=3, tracked=TrackedMetric("server.score", limits=limits), on_round=reports.append,
            evaluate_fn=lambda r, arrays: MetricRecord({"score": float(r)}), checkpoints=kept, **keywords,
        )  # fmt: skip
        return [report.round for report in reports]

    kept = MemoryCheckpoints()
    assert rounds_of({1: 1.0, 2: 2.0}, MemoryCheckpoints()) == [1, 2, 3]
    assert rounds_of({2: 1.9}, kept) == [1, 2]
    assert rounds_of({2: 1.9}, kept, resume=True) == []


@pytest.mark.parametrize(
    ("mode", "scores", "best"), [("max", [1.0, 3.0, 2.0], 2), ("min", [float("nan"), 2.0, 1.0], 3)]
)
def test_more_may_be_better_and_what_is_no_number_is_never_the_best(mode, scores, best):
    kept = MemoryCheckpoints()
    federate(
        BaseStrategy(),
        arithmetic_app(add_partition),
        START,
        num_nodes=1,
        num_rounds=3,
        evaluate_fn=lambda r, arrays: MetricRecord({"score": scores[r - 1]}) if r else None,
        tracked=TrackedMetric("server.score", mode),
        checkpoints=kept,
    )
    assert kept.best.round == best


@pytest.mark.parametrize(
    ("array", "error", "said"),
    [
        (np.array([0, -np.inf], np.float32), ValueError, r"not finite: mask \(1 of 2\); .* leave these arrays out"),
        (np.ones(2, np.complex64), TypeError, "array 'mask' has dtype complex64: must be floating-point"),
    ],
)
def test_a_model_that_no_node_could_return_is_refused_before_anybody_trains(array, error, said):
    seen = []
    with pytest.raises(error, match=said):
        federate(BaseStrategy(), arithmetic_app(add_partition, seen=seen), {**START, "mask": array}, num_nodes=1)
    assert not seen
    federate(BaseStrategy(shared=["head.*"]), arithmetic_app(add_partition), {**START, "mask": array}, num_nodes=1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "most"}, "mode = 'most': must be one of 'min', 'max'"),
        ({"patience": 1.5}, "patience = 1.5: must be an integer of at least 0"),
        ({"min_delta": float("nan")}, "min_delta = nan: must be finite and at least 0"),
    ],
)
def test_ranges_of_a_tracked_metric(wrong, said):
    with pytest.raises(ValueError, match=said):
        TrackedMetric("loss", **wrong)


def test_an_unknown_tracked_metric_is_an_error():
    with pytest.raises(ValueError, match="'accuracy' is not reported; reported metrics: loss, num-examples"):
        federate(BaseStrategy(), losses_app([1.0]), START, num_nodes=1, num_rounds=1, tracked=TrackedMetric("accuracy"))


# -- evaluations of which nothing can be used ------------------------------------------------------------------


def failing_rounds(evaluate, rounds=6, tracked=None, nodes=2, **options):
    """The rounds that a run records whose nodes evaluate by ``evaluate(round)``, and the error that ends it."""
    reports, kept = [], MemoryCheckpoints()

    def work(partition, arrays, config):
        return {}, {"num-examples": 1, **evaluate(config["server-round"])}

    try:
        federate(
            BaseStrategy(), arithmetic_app(add_partition, work), START, num_nodes=nodes, num_rounds=rounds,
            tracked=tracked, checkpoints=kept, on_round=reports.append, **options,
        )  # fmt: skip
    except FailedEvaluationsError as error:
        assert kept.latest().round == len(reports)  # what is trained is kept
        return len(reports), str(error)
    return len(reports), ""


def refused(server_round):
    raise RuntimeError("no test data")


NAN, FINE = {"loss": float("nan"), "loss.count": 3}, {"loss": 1.0}


@pytest.mark.parametrize(
    ("evaluate", "tracked", "rounds", "said"),
    [
        (refused, None, 3, "all 2 replies were refused, 2 of them because"),
        (lambda r: NAN, None, 3, "no node has a finite loss"),
        (lambda r: NAN | {"accuracy": 0.1}, TrackedMetric("loss"), 3, "no node has a finite loss"),
        (lambda r: NAN | {"accuracy": 0.1}, None, 6, ""),
        (lambda r: NAN | {"accuracy": 0.1}, TrackedMetric("accuracy"), 6, ""),
        (lambda r: FINE if r in (2, 5) else NAN, None, 6, ""),  # never three in a row
        (lambda r: NAN if r > 2 else FINE, None, 5, "round 5: the evaluation failed"),
    ],
)
def test_a_run_ends_after_three_evaluations_in_a_row_of_which_nothing_can_be_used(evaluate, tracked, rounds, said):
    recorded, error = failing_rounds(evaluate, tracked=tracked)
    assert recorded == rounds
    assert said in error


def test_the_limit_of_failed_evaluations_is_the_callers():
    assert failing_rounds(refused, max_failed_evaluations=1)[0] == 1
    assert failing_rounds(refused, max_failed_evaluations=0) == (6, "")
    with pytest.raises(ValueError, match="max_failed_evaluations = -1: must be an integer of at least 0"):
        failing_rounds(refused, max_failed_evaluations=-1)


def test_a_tracked_metric_that_no_node_has_is_no_improvement():
    assert failing_rounds(
        lambda r: {"loss": 1.0 if r == 1 else float("nan"), "accuracy": 0.5}, tracked=TrackedMetric("loss", patience=2)
    ) == (3, "")
    assert failing_rounds(lambda r: NAN, tracked=TrackedMetric("loss", limits={1: 9.0})) == (1, "")


def test_one_metric_that_is_not_finite_leaves_the_reply_its_arrays_and_other_metrics(caplog):
    def train(partition, arrays, config):
        return add_partition(partition, arrays, config)[0], {
            "num-examples": 1, "loss": float(partition), "auc": float("nan") if partition else 0.5
        }  # fmt: skip

    reports = []
    federate(
        BaseStrategy(profiles=True), arithmetic_app(train), START, num_nodes=2, num_rounds=1, on_round=reports.append
    )
    (report,) = reports
    assert (report.replies, report.refused) == (2, [])
    assert report.train == {"num-examples": 2, "loss": 0.5, "auc": 0.5}
    assert report.left_out == [LeftOut("part-1", "train", "auc", "nan")]
    assert "auc = nan" in caplog.text


# -- waiting for nodes -----------------------------------------------------------------------------------------


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


class PowerCut(BaseException):
    """Ends a run between any two steps."""


class Steps:
    """Counts the steps of a server, and cuts the power at one of them."""

    def __init__(self, cut):
        self.left = cut

    def __call__(self, *_):
        self.left -= 1
        if self.left == 0:
            raise PowerCut


class CutGrid(InProcessGrid):
    """A grid that takes a step before and after it sends messages, and before and after it fetches a reply."""

    step = staticmethod(lambda: None)

    def push_messages(self, messages):
        self.step()
        ids = super().push_messages(messages)
        self.step()
        return ids

    def pull_messages(self, message_ids):
        self.step()
        replies = super().pull_messages(message_ids)
        self.step()
        return replies


def killed_twice(cut):
    """A run that is killed twice at its step ``cut``, and resumed: the kills, what nodes trained, and the releases."""
    seen, ledger, kept, kills = [], [], MemoryCheckpoints(), 0
    grid = CutGrid(arithmetic_app(add_partition, seen=seen), [{}, {}], {})
    for steps in (Steps(cut), Steps(cut), Steps(0)):
        grid.step = steps
        try:
            BaseStrategy().start(
                grid, record_of(START), num_rounds=3, **between(
                    checkpoints=kept, resume=True,
                    on_release=lambda *release: ledger.append(release), on_round=steps,
                ),
            )  # fmt: skip
        except PowerCut:
            kills += 1
    trained = Counter(m.metadata.dst_node_id for m in seen if m.metadata.message_type == "train")
    return kills, max(trained.values()), ledger


def test_wherever_a_run_is_killed_each_update_of_a_node_was_recorded_before():
    for cut in range(1, 100):
        kills, released, ledger = killed_twice(cut)
        assert released <= len(ledger) <= released + kills
        assert len(set(ledger)) == len(ledger)  # each has its own attempt
        if not kills:
            break
    assert cut > 20
    assert [server_round for server_round, _ in ledger] == [1, 2, 3]


def test_what_the_ledger_raises_ends_the_run_with_nothing_sent():
    def full(server_round, attempt):
        raise OSError("no space")

    seen = []
    with pytest.raises(OSError, match="no space"):
        federate(BaseStrategy(), arithmetic_app(add_partition, seen=seen), START, num_nodes=1, on_release=full)
    assert not seen


@pytest.mark.parametrize("optimizer", [lambda: SGD(0.7), lambda: Adam(0.05)])
def test_a_resumed_run_ends_bit_for_bit_as_an_undisturbed_one(optimizer):
    assert_resumes_alike(
        lambda: BaseStrategy(server_optimizer=optimizer()),
        template_app(lambda partition: 3 + partition),
        ArrayRecord(template_net().state_dict()),
        num_nodes=3,
        num_rounds=6,
        cut=4,
        evaluate_fn=lambda r, arrays: MetricRecord({"sum": float(arrays["0.weight"].numpy().sum())}),
        tracked=TrackedMetric("eval_loss"),
    )


@dataclass
class Summed(Callback):
    """Adds ``step`` after every round, over resumed runs, too."""

    step: int
    total: int = 0
    kept = ("total",)

    def after_round(self, run, report):
        self.total += self.step


def test_a_resumed_run_has_the_state_of_each_of_two_callbacks_of_a_class():
    kept = MemoryCheckpoints()
    for num_rounds in (1, 3):
        grid, callbacks = InProcessGrid(arithmetic_app(add_partition), [{}], {}), (Summed(1), Summed(10))
        BaseStrategy().start(
            grid, record_of(START), num_rounds=num_rounds, callbacks=[*callbacks, Save(kept, resume=True)]
        )
        assert [one.total for one in callbacks] == [num_rounds, 10 * num_rounds]


def test_nodes_are_told_how_far_the_server_can_go_back():
    seen = []
    app = arithmetic_app(add_partition, seen=seen)
    options = {"num_nodes": 1, "checkpoints": MemoryCheckpoints()}
    federate(BaseStrategy(), app, START, num_rounds=2, **options)
    federate(BaseStrategy(), app, START, num_rounds=3, resume=True, **options)
    trained = [m.content["config"] for m in seen if m.metadata.message_type == "train"]
    told = [(config["server-round"], config["durable-round"]) for config in trained]
    assert told == [(1, 0), (2, 1), (3, 1)]  # these checkpoints keep every round


def test_nodes_are_told_which_start_of_the_server_each_round_belongs_to():
    seen = []
    app = arithmetic_app(add_partition, seen=seen)
    kept = MemoryCheckpoints()
    federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=4, checkpoints=kept)
    kept.snapshots = kept.snapshots[:2]  # the server goes back to round 2
    federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=4, checkpoints=kept, resume=True)
    told = [Attempts.read(str(m.content["config"]["attempts"])) for m in seen if m.metadata.message_type == "train"]
    first, second = told[0], told[-1]
    assert told == [first] * 4 + [second] * 2
    assert [after for after, _ in second.begun] == [0, 2]
    assert [second.of(r) == first.of(r) for r in (1, 2, 3, 4)] == [True, True, False, False]
    assert kept.latest().attempts == second.begun


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


# -- callbacks -------------------------------------------------------------------------------------------------


def test_a_run_ends_after_a_round_when_it_should_stop():
    """As with Flower's own strategies since 1.43, which ask with the round and the result."""
    asked, reports = [], []

    def should_stop(server_round, result):
        asked.append((server_round, arrays_of(result.arrays)["head.w"].item(), sorted(result.train_metrics_clientapp)))
        return server_round == 2

    options = {"num_nodes": 1, "num_rounds": 5, "should_stop": should_stop, "on_round": reports.append}
    result = federate(BaseStrategy(), arithmetic_app(add_partition), START, **options)
    assert [report.round for report in reports] == [1, 2]
    assert asked == [(1, 5.0, [1]), (2, 6.0, [1, 2])]
    np.testing.assert_array_equal(arrays_of(result.arrays)["head.w"], [[6.0]])


class Diary(Callback):
    kept = ("lines",)

    def __init__(self, last=9):
        self.lines, self.last = [], last

    def begin(self, run):
        self.lines.append(["begin", run.round])

    def before_training(self, run, server_round):
        self.lines.append(["before", server_round, run.round])

    def after_round(self, run, report):
        self.lines.append(["after", run.round, float(arrays_of(run.result.arrays)["head.w"][0, 0])])

    def reason_to_stop(self, run):
        return "enough" if run.round == self.last else ""


def test_callbacks_are_called_between_rounds_and_can_stop_the_run(caplog):
    diary = Diary(last=2)
    app = arithmetic_app(add_partition)
    federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=5, start=with_callbacks(diary))
    assert diary.lines == [["begin", 0], ["before", 1, 0], ["after", 1, 5.0], ["before", 2, 1], ["after", 2, 6.0]]
    assert "stopping early: enough" in caplog.text


def with_callbacks(*callbacks):
    return lambda strategy, grid, initial, **options: strategy.start(grid, initial, callbacks=callbacks, **options)


def test_what_a_callback_keeps_is_restored_with_the_snapshot():
    kept, app = MemoryCheckpoints(), arithmetic_app(add_partition)
    for rounds in (1, 2):
        diary = Diary()
        start = with_callbacks(diary, Save(kept, resume=True))
        federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=rounds, start=start)
    assert diary.lines == [["begin", 0], ["before", 1, 0], ["after", 1, 5.0], ["before", 2, 1], ["after", 2, 6.0]]
