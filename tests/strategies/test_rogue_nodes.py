"""Every fault of ``rogue`` under every strategy: the run ends as that of the honest nodes alone, bit for bit."""

import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from between_rounds import between
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies.algorithms.apfl import AdaptiveRates
from fedapps.strategies.algorithms.clustered import ClusteredFedAvg
from fedapps.strategies.algorithms.fedvc import VirtualClients
from fedapps.strategies.algorithms.fedweit import FedWeIT
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.algorithms.partial import PartialAggregation
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import SGD, Adam
from fedapps.strategies.profiles import ExampleLimits
from fedapps.strategies.records import DivergedError
from fedapps.strategies.samplers import ProportionalToSize
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import ServerApp
from grouped import MemoryCheckpoints
from rogue import ARRAY_FAULTS, METRIC_FAULTS, TRAIN_FAULTS, with_metrics, with_record
from rogue_fleet import PARTITIONS, ROGUE, START, Fleet
from toys import arrays_of, record_of, same_bits

FIXED = ExampleLimits(maximum=10_000, may_grow=False)
STRATEGIES: dict[str, Callable[[], BaseStrategy]] = {
    "FedAvg": lambda: BaseStrategy(example_limits=FIXED),
    "FedAdam": lambda: BaseStrategy(example_limits=FIXED, server_optimizer=Adam(0.1)),
    "AdaptiveRates": lambda: AdaptiveRates(example_limits=FIXED),
    "FisherExchange": lambda: FisherExchange(example_limits=FIXED, others_now=0.5, own_past=0.1),
    "FedWeIT": lambda: FedWeIT(example_limits=FIXED, shared=["w", "b"]),
    "HierarchicalFedAvg": lambda: HierarchicalFedAvg(example_limits=FIXED, groups=["city"], intervals=[2]),
    "ClusteredFedAvg": lambda: ClusteredFedAvg(example_limits=FIXED, num_clusters=2),
    "PartialAggregation": lambda: PartialAggregation(example_limits=FIXED, shared=["w", "b"]),
    "VirtualClients": lambda: VirtualClients(example_limits=FIXED, sampler=ProportionalToSize(9), examples=7),
}


@pytest.fixture(scope="module")
def alone():
    """What a strategy comes to with the honest nodes alone, told once."""
    known = {}

    def result(name):
        if name not in known:
            known[name] = Fleet().run(STRATEGIES[name](), [p for p in PARTITIONS if p != ROGUE])
        return known[name]

    return result


def assert_as_alone(result, honest):
    assert same_bits(arrays_of(result.arrays), arrays_of(honest.arrays))
    assert result.train_metrics_clientapp == honest.train_metrics_clientapp


def assert_bounded(fleet):
    """What a node wrote a megabyte of leaves a few lines in the records."""
    for report in fleet.reports:
        assert len(json.dumps(asdict(report), allow_nan=False)) < 20_000


#: One fault of each kind, for the strategies that read replies as FedAvg does.
KINDS = ("count beyond counting", "1e300 examples", "a crash", "pickle", "shape", "NaN", "no record")


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name in STRATEGIES for fault in TRAIN_FAULTS if name == "FedAvg" or fault in KINDS],
)
def test_a_bad_train_reply_leaves_no_trace_but_its_refusal(name, fault, alone):
    spoil, reason = TRAIN_FAULTS[fault]
    fleet = Fleet(train=spoil)
    result = fleet.run(STRATEGIES[name]())
    assert_as_alone(result, alone(name))
    refusals = fleet.refusals("train")
    assert [refusal.node for refusal in refusals] == ["part-1", "part-1"]
    assert all(reason in refusal.reason for refusal in refusals)
    assert_bounded(fleet)


@pytest.mark.parametrize("fault", METRIC_FAULTS)
def test_a_bad_evaluation_leaves_no_trace_but_its_refusal(fault):
    spoil, reason = METRIC_FAULTS[fault]
    fleet = Fleet(evaluate=spoil)
    fleet.run(STRATEGIES["FedAvg"]())
    assert [report.evaluate["loss"] for report in fleet.reports] == [(0 + 2 + 3) / 3] * 2
    assert all(reason in refusal.reason for refusal in fleet.refusals("evaluate"))
    assert len(fleet.refusals("evaluate")) == 2
    assert_bounded(fleet)


@pytest.mark.parametrize("fault", ARRAY_FAULTS)
def test_a_bad_precision_is_refused(fault, alone):
    spoil, reason = ARRAY_FAULTS[fault]
    fleet = Fleet(train=spoil("fisher.precision"))
    assert_as_alone(fleet.run(STRATEGIES["FisherExchange"]()), alone("FisherExchange"))
    assert all(
        refusal.reason.startswith("fisher.precision: ") or "bytes" in refusal.reason
        for refusal in fleet.refusals("train")
    )
    assert [reason in refusal.reason for refusal in fleet.refusals("train")] == [True, True]
    assert_bounded(fleet)


@pytest.mark.parametrize("fault", ["bomb", "overflowing shape", "broken header", "pickle", "zip", "NaN", "huge arrays"])
def test_a_bad_mask_is_refused(fault, alone):
    spoil, _ = ARRAY_FAULTS[fault]
    spoils = {"NaN": with_record("fedweit.mask", record_of({"w": np.full((2, 3), np.nan)}))}
    fleet = Fleet(train=spoils.get(fault) or spoil("fedweit.mask"))
    assert_as_alone(fleet.run(STRATEGIES["FedWeIT"]()), alone("FedWeIT"))
    assert len(fleet.refusals("train")) == 2
    assert_bounded(fleet)


@pytest.mark.parametrize("fault", ARRAY_FAULTS)
def test_a_bad_answer_is_no_part_of_the_knowledge(fault):
    spoil, reason = ARRAY_FAULTS[fault]
    fleet = Fleet(
        query=lambda content: spoil("fedweit.adaptive")(content) if "fedweit.adaptive" in content else content
    )
    strategy = STRATEGIES["FedWeIT"]()
    fleet.run(strategy, stages=2)
    assert list(strategy.knowledge) == ["part-0", "part-2", "part-3"]
    (refusal,) = fleet.refusals("train")
    assert refusal.node == "part-1"
    assert reason in refusal.reason
    told = [message for message in fleet.sent if any(name.startswith("fedweit.knowledge.") for name in message.content)]
    assert len(told) == 4
    assert_bounded(fleet)


@pytest.mark.parametrize("value", ["", b"", [], [""]], ids=repr)
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_empty_value_of_a_further_record_stops_no_round(name, value):
    """Flower's own count of the bytes raises an error."""
    spoil = with_record("more", ConfigRecord({"empty": value}))
    fleet = Fleet(train=spoil, evaluate=spoil, query=lambda content: spoil(content) if name == "FedWeIT" else content)
    assert same_bits(arrays_of(fleet.run(STRATEGIES[name]()).arrays), arrays_of(Fleet().run(STRATEGIES[name]()).arrays))
    assert not fleet.refusals("train") + fleet.refusals("evaluate")


def test_the_precision_is_never_taken_for_the_parameters():
    """A foreign node may name its only ArrayRecord freely, but not after an algorithm's."""

    def only_precision(content):
        return RecordDict({"metrics": content["metrics"], "fisher.precision": content["arrays"]})

    fleet = Fleet(train=only_precision)
    fleet.run(STRATEGIES["FisherExchange"]())
    assert ["expected one ArrayRecord 'arrays'" in refusal.reason for refusal in fleet.refusals("train")] == [
        True,
        True,
    ]


LIES = {
    "a number of examples beyond all bounds": {"num-examples": 10**9},
    "a key of a megabyte": {"key": "part-1" * 200_000},
    "a key of two lines": {"key": "part-1\nERROR: all is lost"},
    "a key with an escape sequence": {"key": "\x1b[2Jpart-1"},
    "thousands of groups": {f"group.{index}": "x" for index in range(5000)},
    "a label of a megabyte": {"group.city": "x" * 1_000_000},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["FedAvg", "HierarchicalFedAvg", "VirtualClients"])
def test_a_lie_in_a_profile_costs_nobody_else_anything(name, lie):
    def profile(content):
        if "profile" not in content:
            return content
        return RecordDict({"profile": ConfigRecord({**content["profile"], **LIES[lie]})})

    fleet = Fleet(query=profile, train=with_metrics(num_examples=10_001))
    fleet.run(STRATEGIES[name]())
    refusals = fleet.refusals("train")
    assert len(refusals) == 2
    assert all("num-examples is 10001: at most 10000 are accepted" in refusal.reason for refusal in refusals)
    assert all(len(refusal.node) < 50 and refusal.node.isprintable() for refusal in refusals)
    assert_bounded(fleet)


def test_nodes_that_tell_no_profile_are_bound_by_the_most_alone():
    app, fleet, reports = ClientApp(), Fleet(), []
    app.train()(fleet)
    app.evaluate()(fleet)
    server_app = ServerApp()

    @server_app.main()
    def main(grid, context):
        strategy = BaseStrategy(example_limits=ExampleLimits(maximum=4, may_grow=False))
        strategy.start(grid, record_of(START), num_rounds=1, **between(on_round=reports.append))

    run_inprocess(server_app, app, num_nodes=4, errors="reply")  # with 2, 3, 4 and 5 examples
    assert reports[0].replies == 3
    assert [refusal.reason for refusal in reports[0].refused] == ["num-examples is 5: at most 4 are accepted"]


def test_an_empty_share_leaves_no_room_for_arrays():
    fleet = Fleet(train=with_record("arrays", ArrayRecord([np.zeros(1 << 20, np.float32)])))
    fleet.run(BaseStrategy(shared=()))
    assert ["bytes: at most 1,048,576 are accepted" in refusal.reason for refusal in fleet.refusals("train")] == [
        True
    ] * 2


def test_a_server_that_diverges_says_so_and_keeps_nothing_of_it():
    """No reply is at fault: each moves by 0.3 or so."""
    kept = MemoryCheckpoints()
    with pytest.raises(DivergedError, match=r"round 1: after the step of SGD.*values are too far"):
        Fleet().run(BaseStrategy(server_optimizer=SGD(1e16)), checkpoints=kept)
    assert not kept.snapshots
