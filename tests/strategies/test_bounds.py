"""What one node can do to all: its finite, well-formed reply is refused for its size, or counts no more than others."""

from math import sqrt

import numpy as np
import pytest
from fedapps.strategies.algorithms.feddyn import FedDyn
from fedapps.strategies.algorithms.fednova import FedNova
from fedapps.strategies.algorithms.fedproto import FedProto
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.algorithms.flora import Flora
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.algorithms.ifca import IteratedClusters
from fedapps.strategies.algorithms.partial import TrainedInTurn
from fedapps.strategies.algorithms.q_ffl import QFedAvg
from fedapps.strategies.algorithms.scaffold import Scaffold
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.bounds import SizeBound, norms_of
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from grouped import assert_resumes_alike
from rogue_fleet import ROGUE, START, Fleet
from toys import arithmetic_app, arrays_of, record_of, same_bits

NUMBERS = {"fednova.norm": 4.0, "scaffold.length": 0.5, "ifca.choice": 0.0, "q-ffl.loss": 1.0}


class Bounded(Fleet):
    """Nodes that send what every method asks for; the rogue one changes its reply from ``first`` on."""

    start = START | {"a": np.ones((1, 3), np.float32), "c": np.ones((2, 1), np.float32)}  # factors of w

    def __init__(self, spoil=None, first=1):
        super().__init__()
        self.change, self.first = spoil, first

    def _train(self, partition, message):
        content = super()._train(partition, message)
        untrained = message.content["config"].get("untrained", [])
        content["arrays"] = ArrayRecord({n: a for n, a in content["arrays"].items() if n not in untrained})
        content["metrics"] = MetricRecord({**content["metrics"], **NUMBERS, "num-examples": 2})
        prototypes = {"classes": np.array([0]), "prototypes": np.ones((1, 3), np.float32), "counts": np.array([2])}
        content["fedproto.local"] = record_of(prototypes)
        if self.change and partition == ROGUE and message.content["config"]["server-round"] >= self.first:
            self.change(content, arrays_of(message.content["arrays"]))
        return content


def update_times(factor):
    def change(content: RecordDict, received):
        arrays = arrays_of(content["arrays"])
        content["arrays"] = record_of({n: (received[n] + factor * (a - received[n])) for n, a in arrays.items()})

    return change


def record_times(record, name, factor):
    def change(content: RecordDict, received):
        arrays = arrays_of(content[record])
        content[record] = record_of({**arrays, name: arrays[name] * np.float32(factor)})

    return change


def number(name, value):
    def change(content: RecordDict, received):
        content["metrics"] = MetricRecord({**content["metrics"], name: value})

    return change


ATTACKS = {
    "FedAvg": (BaseStrategy, {}, update_times(np.float32(1e13)), "the update"),
    "FedDyn": (FedDyn, {}, update_times(np.float32(1e13)), "the update"),
    "IFCA": (IteratedClusters, {"clusters": 2}, update_times(np.float32(1e13)), "the update"),
    "SCAFFOLD": (Scaffold, {}, update_times(np.float32(1e5)), "the update"),
    "SCAFFOLD's length": (Scaffold, {}, number("scaffold.length", 1e-9), "the control variate"),
    "FedNova": (FedNova, {}, number("fednova.norm", 1e9), "fednova.norm"),
    "FedNova's share": (FedNova, {}, number("fednova.norm", 1.0), "1 / fednova.norm"),
    "Fisher terms": (FisherExchange, {"others_now": 0.5}, record_times("fisher.precision", "w", 1e13), "fisher"),
    "FLoRA": (Flora, {"a": "a", "b": "c", "weight": "w"}, update_times(np.float32(1e13)), "the update"),
    "FLoRA's products": (Flora, {"a": "a", "b": "c", "weight": "w"}, update_times(np.float32(40)), "the products"),
    "FedProto": (FedProto, {"shared": []}, record_times("fedproto.local", "prototypes", 9e29), "fedproto.local"),
}


#: Where no median is known, in the first round, these numbers have no other limit.
UNLIMITED = ("SCAFFOLD's length", "FedNova", "FedNova's share", "FLoRA's products")


@pytest.mark.parametrize(
    ("attack", "first"),
    [(attack, first) for attack in ATTACKS for first in (1, 3) if first == 3 or attack not in UNLIMITED],
)
def test_a_reply_that_is_too_large_changes_nothing(attack, first):
    kind, options, change, part = ATTACKS[attack]
    factor = 3.0 if attack == "FedNova's share" else 50.0
    spoiled, without = Bounded(change, first), Bounded(lambda content, received: content.pop("metrics"), first)
    result = spoiled.run(kind(**options, size_bound=factor), rounds=4)
    honest = without.run(kind(**options, size_bound=factor), rounds=4)
    refusals = spoiled.refusals("train")
    assert len(refusals) == 5 - first
    assert len({refusal.node for refusal in refusals}) == 1
    assert all(part in refusal.reason for refusal in refusals)
    assert same_bits(arrays_of(result.arrays), arrays_of(honest.arrays))


@pytest.mark.parametrize("attack", ATTACKS)
def test_honest_nodes_do_not_feel_the_bound(attack):
    kind, options, _, _ = ATTACKS[attack]
    bounded, free = (Bounded().run(kind(**options, size_bound=bound), rounds=3) for bound in (50.0, 0.0))
    assert same_bits(arrays_of(bounded.arrays), arrays_of(free.arrays))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("scale", [1e-5, 1.0, 400.0])
def test_the_bound_is_the_same_for_any_dtype(dtype, scale):
    """The squares of float16 overflow above 255 and are 0 below 1.7e-4."""

    class Scaled(Bounded):
        def _train(self, partition, message):
            content, factor = super()._train(partition, message), 10.0 if partition == ROGUE else 1.0
            content["arrays"] = record_of({"w": arrays_of(message.content["arrays"])["w"] + dtype(factor * scale)})
            return content

    fleet = Scaled()
    fleet.start = {"w": np.full((2, 3), scale, dtype)}
    fleet.run(BaseStrategy(size_bound=3.0, profiles=True), rounds=3)
    assert [refusal.node for report in fleet.reports[1:] for refusal in report.refused] == [f"part-{ROGUE}"] * 2


class Apart(Fleet):
    """Nodes of two groups, whose models are far from each other: each moves the model that it trains by 0.1."""

    def _train(self, partition, message):
        number, group = message.content["config"]["server-round"], partition % 2
        record = "ifca.model.1" if group and "ifca.model.1" in message.content else "arrays"
        step = 0.1 if record != "arrays" or number > 1 or not group else 10.0
        step += 100.0 if partition == ROGUE and number == 3 else 0.0
        moved = {n: a + a.dtype.type(step) for n, a in arrays_of(message.content[record]).items()}
        metrics = MetricRecord({"num-examples": 1, "ifca.choice": float(group)})
        return RecordDict({"arrays": record_of(moved), "metrics": metrics})


@pytest.mark.parametrize("method", ["IFCA", "H-FL"])
def test_the_size_of_an_update_counts_from_the_model_that_its_node_trains(method):
    """Only the false update of round 3 is too large, although that of most nodes is as far away as it is."""
    if method == "IFCA":
        strategy = IteratedClusters(clusters=2, size_bound=200.0)
        strategy.models = [START, {name: array + array.dtype.type(100) for name, array in START.items()}]
    else:
        strategy = HierarchicalFedAvg(groups=["city"], intervals=[0], size_bound=200.0)
    fleet = Apart()
    fleet.run(strategy, [0, 2, 4, ROGUE, 3], rounds=4)
    (refusal,) = fleet.refusals("train")
    assert "the update" in refusal.reason
    assert refusal in fleet.reports[2].refused


def test_a_large_loss_does_not_own_the_rounds_of_q_ffl():
    def flipped(content, received):
        number("q-ffl.loss", 100.0)(content, received)
        update_times(np.float32(-1))(content, received)

    bounded, free = (Bounded(flipped, 2).run(QFedAvg(weight_bound=b, lipschitz=1e6), rounds=3) for b in (1.0, 0.0))
    moved = [float(arrays_of(result.arrays)["own"][0]) for result in (bounded, free)]
    assert moved[0] > 0 > moved[1], "the mean of 0.1, −0.2, 0.3 and 0.4 is positive"


def test_a_loss_of_zero_does_not_stop_q_ffl():
    """F^(q−1) of a node without loss would be 10^8 times that of the others, and as much shorten the step."""

    def perfect(content, received):
        number("q-ffl.loss", 0.0)(content, received)

    steps = {}
    for bound in (5.0, 0.0):
        strategy = QFedAvg(q=0.1, weight_bound=bound)
        Bounded(perfect, 2).run(strategy, rounds=3)
        steps[bound] = strategy.round_info()["q-ffl"]["step"]
    assert steps[5.0] > 0.5
    assert steps[0.0] < 1e-6


@pytest.mark.parametrize("cut", [2, 4])
def test_losses_of_earlier_rounds_bound_those_of_a_resumed_run_of_q_ffl(cut):
    """The first reply of a round is bounded by the rounds before it."""

    def train(partition, arrays, config):
        loss = 50.0 if partition == 0 else 1.0 + partition
        return {"w": arrays["w"] + partition + 1}, {"num-examples": 1, "q-ffl.loss": loss, "loss": loss}

    assert_resumes_alike(
        lambda: QFedAvg(weight_bound=2.0), arithmetic_app(train), {"w": np.zeros(2)}, num_nodes=4, num_rounds=5, cut=cut
    )


def test_arrays_that_are_trained_in_turn_are_compared_with_those_of_their_turn():
    class InTurn(Bounded):
        """The updates of ``a`` are a thousand times those of ``c``."""

        def _train(self, partition, message):
            content, received = super()._train(partition, message), arrays_of(message.content["arrays"])
            steps = {"a": 1.0, "c": 1e-3}
            arrays = {n: received[n] + np.float32(steps.get(n, 0.0)) for n in content["arrays"]}
            content["arrays"] = record_of(arrays)
            return content

    fleet = InTurn()
    fleet.run(TrainedInTurn(still=[["c", "w"], ["a", "w"]], size_bound=100.0), rounds=10)
    assert fleet.refusals("train") == []


def test_sizes_and_their_first_limits_by_hand():
    start = {"w": np.array([3.0, 4.0]), "bn.running_mean": np.array([2.0]), "mask": np.array([True])}
    arrays = {"w": np.array([6.0, 8.0]), "bn.running_mean": np.array([5.0]), "mask": np.array([False])}
    further = {"fisher.precision": record_of({"w": arrays["w"]}), "own.facts": MetricRecord({"steps": 9})}
    content = RecordDict({"arrays": record_of(arrays), **further})
    sizes = norms_of(arrays, start, content, Buffers())
    assert sizes == {"the update": 5.0, "the buffers": 3.0, "fisher.precision": 10.0}
    limits = SizeBound(3.0).first_limits(start, content, Buffers())
    assert limits == {"the update": 3 * (5 + sqrt(2)), "the buffers": 3 * (2 + 1), "fisher.precision": 9 * sqrt(2)}


def test_the_median_follows_what_all_nodes_send():
    bound = SizeBound(2.0)
    for sizes, refused in (([1, 1, 1], 0), ([9, 9, 9], 3), ([9, 9, 9], 0)):
        bound.begin_round()
        assert sum(bound.refusal_reason({"the update": size}, {}) is not None for size in sizes) == refused


def test_the_median_is_that_of_three_sizes_or_more_in_the_last_five_rounds():
    bound, medians = SizeBound(2.0), []
    for size in (1, 9, 9, 9, 1, 1, 9):
        bound.begin_round()
        medians.append(bound.median("the update"))
        bound.note("the update", size)
    assert medians == [None, None, None, 9, 9, 9, 9]  # the last one of 9, 9, 9, 1 and 1, without the first 1


def test_replies_that_are_refused_do_not_give_the_median_of_the_first_round():
    bound = SizeBound(2.0)
    bound.begin_round()
    refused = [
        bound.refusal_reason({"the update": size}, {"the update": 5.0}) is not None for size in [9] * 4 + [1] * 3
    ]
    assert refused == [True] * 4 + [False] * 3
    assert bound.median("the update") == 1.0


def test_a_refusal_says_whether_there_are_others_to_compare():
    bound = SizeBound(2.0)
    bound.begin_round()
    assert "there are no others" in str(bound.refusal_reason({"the update": 9}, {"the update": 5.0}))
    for _ in range(3):
        assert bound.refusal_reason({"the update": 0}, {"the update": 5.0}) is None
    assert "the recent median is 0;" in str(bound.refusal_reason({"the update": 9}, {"the update": 5.0}))


def test_a_new_stage_of_the_data_begins_anew():
    bound = SizeBound(2.0)
    for stage, sizes, refused in ((0, [1, 1, 1], 0), (1, [9, 9, 9], 0), (1, [9, 9, 19], 1)):
        bound.begin_round(stage)
        assert sum(bound.refusal_reason({"the update": size}, {}) is not None for size in sizes) == refused


def test_the_sizes_are_in_a_snapshot():
    bound, other = SizeBound(2.0), SizeBound(2.0)
    bound.begin_round(stage=1)
    for size in (1.0, 2.0, 3.0):
        bound.note("the update", size)
    other.load_state(bound.state())
    other.begin_round(stage=1)
    assert other.median("the update") == 2.0


@pytest.mark.parametrize("factor", [1.0, -2.0, float("nan"), float("inf"), "3"])
def test_a_factor_that_bounds_nothing_is_refused(factor):
    with pytest.raises(ValueError, match="size_bound = "):
        SizeBound(factor)
