"""From a method's name to its strategy and to the orders of each round."""

import pytest

from clients.settings import RoundSettings
from fedapps.catalogue import METHODS
from fedapps.config import RunConfig
from fedapps.methods import FirstNode, build_strategy, evaluate_orders, stage_of, tracked_metric, train_orders
from strategies.adaptive_rates import AdaptiveRates
from strategies.base import BaseStrategy
from strategies.fedweit import FedWeIT
from strategies.fisher_exchange import FisherExchange
from strategies.optimizers import SGD, AdaGrad, Adam, Momentum, Yogi
from strategies.partial_aggregation import PartialAggregation
from strategies.profiles import Profile
from strategies.rounds import TrackedMetric
from strategies.samplers import DropSchedule, UniformFraction

RUN = RunConfig(
    seed=3, rounds=8, num_nodes=5, collect_after=4, epochs=2, learning_rate=0.1, batch_size=16, optimizer="sgd",
    fedprox_mu=0.5, clip_norm=3.0, linear_decay=True, weight_decay=0.01, plateau_patience=4, personal_epochs=7,
    personal_learning_rate=0.01,
    fraction_train=0.5, fraction_evaluate=0.75, min_replies=2, weighting="num-examples",
    server_optimizer="adam", server_learning_rate=0.3, rate_granularity="parameter", node_wait=9.0,
)  # fmt: skip


#: A classifier's parameters, some of whose word vectors are apart.
NAMES = ("embedding.weight", "embedding.private", "encoder.weight", "pre_classifier.bias", "classifier.weight")
#: What travels under the methods that keep some of them private.
TRAVELLING = {
    "lg-fedavg": NAMES[3:],
    "fedrecon": (NAMES[0], *NAMES[2:]),
    "fedvocab": NAMES[2:],
    "fedvocab-no-adapt": NAMES[2:],
    "fedvocab-own-start": NAMES[2:],
}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_gets_the_runs_parts(name):
    strategy = build_strategy(RUN, name, NAMES)
    kinds = {
        "apfl": AdaptiveRates,
        "apfl-sqrt": AdaptiveRates,
        "fedcurv": FisherExchange,
        "fedweit": FedWeIT,
        **dict.fromkeys(TRAVELLING, PartialAggregation),
    }
    expected = FisherExchange if name.startswith("elastic-transfer") else kinds.get(name, BaseStrategy)
    assert type(strategy) is expected
    everything = () if name == "stl" or name.startswith("local") else ("*",)
    assert strategy.shared == TRAVELLING.get(name, everything)
    assert strategy.evaluate_sampler == UniformFraction(0.75, seed=3)
    assert strategy.server_optimizer == Adam(0.3)
    assert (strategy.min_nodes, strategy.node_wait) == (5, 9.0)
    assert (strategy.weight_of(6), strategy.weight_of(2)) == (6, 2)
    if name == "cloud":
        assert type(strategy.sampler) is FirstNode
        assert strategy.min_replies == 1
    else:
        assert strategy.sampler == UniformFraction(0.5, seed=3)
        assert strategy.min_replies == 2


def test_a_model_without_the_parameters_that_a_method_keeps_private_is_refused():
    with pytest.raises(ValueError, match=r"private = embedding\.\*: no parameter .*; it has decoder\.weight"):
        build_strategy(RUN, "fedvocab", ["decoder.weight"])


def test_what_never_changes_does_not_travel():
    names = ["frozen.0.weight", "trained.0.weight", "pooling.p"]
    assert build_strategy(RunConfig(task="vpr"), "fedavg", names).shared == tuple(names[1:])
    assert build_strategy(RunConfig(task="vpr"), "local", names).shared == ()


def test_the_task_says_how_its_metrics_are_averaged():
    assert build_strategy(RUN, "fedavg").metric_means == {}
    strategy = build_strategy(RunConfig(task="text"), "fedavg")
    assert strategy.metric_means == {"test.global_accuracy": "geometric", "test.local_accuracy": "uniform"}


def test_uniform_weighting_is_the_runs():
    strategy = build_strategy(RunConfig(weighting="uniform"), "sfl")
    assert strategy.weight_of(6) == strategy.weight_of(2)


def test_who_drops_out_is_the_same_for_every_method():
    samplers = [build_strategy(RunConfig(drop_nodes=True, seed=4), name).sampler for name in ("sfl", "fedcurv")]
    assert samplers == [DropSchedule(seed=4)] * 2


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("fedcurv", (0.0, 0.0, 0.7)),
        ("elastic-transfer", (0.1, 0.2, 0.3)),
        ("elastic-transfer-0.05-0.5-0", (0.05, 0.5, 0.0)),
        ("elastic-transfer-0-0-0", (0.0, 0.0, 0.0)),
    ],
)
def test_the_weights_of_a_fisher_exchange(name, weights):
    run = RunConfig(
        fedcurv_lambda=0.7, elastic_own_past=0.1, elastic_others_past=0.2, elastic_others_now=0.3,
        elastic_anchors="separate", fisher_estimator="per-batch",
    )  # fmt: skip
    strategy = build_strategy(run, name)
    assert (strategy.own_past, strategy.others_past, strategy.others_now) == weights
    assert (strategy.anchors, strategy.estimator) == ("separate", "per-batch")


@pytest.mark.parametrize(("name", "power"), [("apfl", 1.0), ("apfl-sqrt", 0.5)])
def test_adaptive_methods_differ_in_their_power(name, power):
    strategy = build_strategy(RUN, name)
    assert (strategy.granularity, strategy.power) == ("parameter", power)
    assert build_strategy(RunConfig(), name).granularity == "tensor"


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", SGD), ("momentum", Momentum), ("adam", Adam), ("adagrad", AdaGrad), ("yogi", Yogi)]
)
def test_server_optimizers(name, kind):
    run = RunConfig(server_optimizer=name, server_learning_rate=0.25)
    assert build_strategy(run, "sfl").server_optimizer == kind(0.25)


def test_the_pooled_data_are_trained_on_by_the_first_key():
    profiles = [Profile(node_id, key) for node_id, key in ((4, "robot-2"), (9, "robot-0"), (1, "robot-1"))]
    for server_round in (1, 2):
        assert [profile.key for profile in FirstNode().sample(profiles, server_round)] == ["robot-0"]
    assert FirstNode().sample([], 1) == []


# -- orders ----------------------------------------------------------------------------------------------------


def test_train_orders_hold_all_that_training_needs():
    assert dict(train_orders(RUN, "sfl", "run-x", 1)) == {
        "run": "run-x", "method": "sfl", "stage": 0, "epochs": 2, "learning-rate": 0.1, "batch-size": 16,
        "optimizer": "sgd", "weight-decay": 0.01, "plateau-patience": 4, "plateau-factor": 0.5,
        "min-learning-rate": 1e-5, "clip-norm": 3.0, "linear-decay": True, "adapt-epochs": 0, "proximal": 0.0,
        "pooled": False,
    }  # fmt: skip


def test_evaluate_orders_hold_all_that_personalisation_needs():
    assert dict(evaluate_orders(RUN, "spfl", "run-x", 1)) == {
        "run": "run-x", "method": "spfl", "stage": 0, "batch-size": 16, "optimizer": "sgd", "personalise": True,
        "personal-epochs": 7, "personal-learning-rate": 0.01, "final": False, "collect": False,
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(METHODS))
def test_who_adapts_and_who_reconstructs(name):
    run = RunConfig(adapt_epochs=2, reconstruct_epochs=3, support_share=0.4, learning_rate=0.1)
    orders, evaluation = train_orders(run, name, "x", 1), evaluate_orders(run, name, "x", 1)
    assert orders["adapt-epochs"] == (2 if name in ("fedvocab", "fedvocab-own-start") else 0)
    for found in (orders, evaluation):
        assert (found.get("reconstruct-epochs"), found.get("support-share")) == (
            (3, 0.4) if name == "fedrecon" else (None, None)
        )
        RoundSettings().updated(found)
    assert evaluation.get("learning-rate") == (0.1 if name == "fedrecon" else None)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_who_trains_on_what_and_who_personalises(name):
    assert train_orders(RUN, name, "x", 1)["pooled"] is (name == "cloud")
    orders = evaluate_orders(RUN, name, "x", 1)
    assert orders["personalise"] is (name in ("spfl", "spfl-low", "apfl", "apfl-sqrt"))
    assert orders["personal-learning-rate"] == pytest.approx(0.002 if name == "spfl-low" else 0.01)


def test_the_second_stage_begins_after_the_collection():
    assert [stage_of(RUN, r) for r in range(1, 9)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [train_orders(RUN, "sfl", "x", r)["stage"] for r in (4, 5)] == [0, 1]
    orders = {r: evaluate_orders(RUN, "sfl", "x", r) for r in range(1, 9)}
    assert [r for r in orders if orders[r]["collect"]] == [4]
    assert [r for r in orders if orders[r]["final"]] == [8]
    assert [r for r in orders if orders[r]["stage"]] == [5, 6, 7, 8]


def test_without_a_collection_there_is_one_stage():
    run = RunConfig(collect_after=0, rounds=3)
    assert [stage_of(run, r) for r in (1, 2, 3)] == [0, 0, 0]
    assert not any(evaluate_orders(run, "sfl", "x", r)["collect"] for r in (1, 2, 3))


def test_stages_of_the_data_share_the_rounds():
    assert [stage_of(RUN, r, 4) for r in range(1, 9)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert train_orders(RUN, "fedavg", "x", 8, 2)["stage"] == evaluate_orders(RUN, "fedavg", "x", 8, 2)["stage"] == 1


RUN_OF_MEMORY = RunConfig(
    ewc_lambda=0.1, ewc_anchors="online", fisher_estimator="per-batch", l2t_lambda=0.2, apd_l1=0.3, apd_drift=0.4,
    fedweit_l1_mask=0.5, fedweit_l1_adaptive=0.6, fedweit_drift=0.7, fedweit_mask_share=0.8, fedprox_mu=0.9,
)  # fmt: skip
EWC = {"ewc": 0.1, "ewc-anchors": "online", "fisher-estimator": "per-batch"}
APD = {"decomposition": "apd", "l1-adaptive": 0.3, "drift": 0.4}


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("fedavg", {}),
        ("stl", {"fresh-stages": True}),
        ("local-ewc", EWC),
        ("fedavg-ewc", EWC),
        ("fedprox-ewc", EWC),
        ("fedavg-l2t", {"l2-transfer": 0.2}),
        ("fedprox-apd", APD),
        (
            "fedweit",
            {"decomposition": "fedweit", "l1-adaptive": 0.6, "l1-mask": 0.5, "drift": 0.7, "mask-share": 0.8,
             "sparsity": 0.6},
        ),
    ],
)  # fmt: skip
def test_what_nodes_do_with_earlier_stages(name, memory):
    known = {"fresh-stages", "l2-transfer", "decomposition", "l1-mask", "mask-share", "sparsity", *EWC, *APD}
    for orders in (train_orders(RUN_OF_MEMORY, name, "x", 1), evaluate_orders(RUN_OF_MEMORY, name, "x", 1)):
        assert {key: value for key, value in orders.items() if key in known} == memory
        RoundSettings().updated(orders)  # the node reads every one of them
    assert train_orders(RUN_OF_MEMORY, name, "x", 1)["proximal"] == (0.9 if name.startswith("fedprox") else 0)


def test_the_tracked_metric():
    assert tracked_metric(RunConfig()) is None
    run = RunConfig(track_metric="test.elbo", track_mode="max", patience=3)
    assert tracked_metric(run) == TrackedMetric("test.elbo", "max", 3)
