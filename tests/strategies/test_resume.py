"""Runs that are resumed from checkpoints."""

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.clients.attempts import Attempts
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import SGD, Adam
from fedapps.strategies.rounds.records import TrackedMetric
from fedapps.strategies.rounds.snapshots import Snapshot
from flwr.app import ArrayRecord, MetricRecord
from grouped import MemoryCheckpoints, PowerCutError
from toys import arithmetic_app, arrays_of, federate, same_bits, template_app, template_net

pytestmark = pytest.mark.usefixtures("flower_identity")
OPTIMIZERS = {"SGD": lambda: SGD(0.7), "Adam": lambda: Adam(0.05)}


def template_arrays():
    return ArrayRecord(template_net().state_dict())


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


def test_a_snapshot_of_another_optimizer_is_refused():
    kept, app = MemoryCheckpoints(), arithmetic_app(add_partition)
    federate(BaseStrategy(server_optimizer=Adam()), app, START, num_nodes=1, num_rounds=1, checkpoints=kept)
    with pytest.raises(ValueError, match="unknown to SGD"):
        federate(BaseStrategy(), app, START, num_nodes=1, num_rounds=2, checkpoints=kept, resume=True)
