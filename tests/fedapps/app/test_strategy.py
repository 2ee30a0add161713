"""The strategy of a method has the parts of the run."""

import pytest
from fedapps.strategies import (
    SGD,
    AdaGrad,
    Adam,
    AdaptiveRates,
    BaseStrategy,
    ClusteredFedAvg,
    DropSchedule,
    FedWeIT,
    FisherExchange,
    FixedPerCluster,
    HierarchicalFedAvg,
    IndependentDraws,
    Momentum,
    PartialAggregation,
    Profile,
    ProportionalToSize,
    TrackedMetric,
    UniformFraction,
    VirtualClients,
    Yogi,
)
from fedapps.strategies.aggregation import MetricMean
from fedapps.tasks.profiles import PrivateParameters
from flwr.app import MetricRecord

from fedapps.app.strategy import build_strategy, shared_names, tracked_metric
from fedapps.config.parsing import parse
from fedapps.config.run_config import RunConfig
from fedapps.methods.baselines import FirstNode
from fedapps.registry.methods import method_class, method_names

GIVEN = {
    "seed": 3, "num-nodes": 5, "fraction-train": 0.5, "fraction-evaluate": 0.75, "min-replies": 2, "rounds": 8,
    "weighting": "num-examples", "server-optimizer": "adam", "server-learning-rate": 0.3, "node-wait": 9.0,
    "in-flight": 4, "collect-after": 0,
}  # fmt: skip
#: A classifier's parameters, some of whose word vectors are apart.
NAMES = ("embedding.weight", "embedding.private", "encoder.weight", "pre_classifier.bias", "classifier.weight")
#: What travels under the methods that keep some of them private.
TRAVELLING = {"lg-fedavg": NAMES[3:], "fedrecon": (NAMES[0], *NAMES[2:]), "fedvocab": NAMES[2:]}


def strategy_of(label, given=GIVEN, names=NAMES, **keys):
    task = {} if "task" in given else {"task": "text" if label in TRAVELLING else "social"}
    config = parse(given | task | {key.replace("_", "-"): v for key, v in keys.items()} | {"methods": label})
    return build_strategy(config, next(iter(config.methods)), names)


def fits(label):
    """Whether a method has no conflict with the run config of these tests, and the names of the parameters."""
    try:
        strategy_of(label)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("label", [*filter(fits, method_names()), "local-ewc", "fedprox-apd"])
def test_every_method_gets_the_runs_parts(label):
    strategy = strategy_of(label)
    kinds = {
        "apfl": AdaptiveRates,
        "fedcurv": FisherExchange,
        "elastic-transfer": FisherExchange,
        "fedweit": FedWeIT,
        "fedvc": VirtualClients,
        "h-fl": HierarchicalFedAvg,
        "clustered": ClusteredFedAvg,
        **dict.fromkeys(TRAVELLING, PartialAggregation),
    }
    assert type(strategy) is kinds.get(label, BaseStrategy)
    everything = () if label == "stl" or label.startswith("local") else ("*",)
    assert strategy.shared == TRAVELLING.get(label, everything)
    assert strategy.evaluate_sampler == UniformFraction(0.75, seed=3)
    own = {"fedavgm": Momentum(0.1), "fedadam": Adam(0.1), "fedadagrad": AdaGrad(0.01), "fedyogi": Yogi(0.1)}
    assert strategy.server_optimizer == own.get(label, Adam(0.3))
    assert (strategy.min_nodes, strategy.node_wait, strategy.in_flight) == (5, 9.0, 4)
    assert (strategy.weight_of(6), strategy.weight_of(2)) == ((1, 1) if label == "fedvc" else (6, 2))
    if label in ("centralized", "untrained"):
        assert type(strategy.sampler) is FirstNode
        assert strategy.min_replies == 1
    else:
        assert strategy.sampler == (IndependentDraws(3, 3) if label == "fedvc" else UniformFraction(0.5, seed=3))
        assert strategy.min_replies == 2


def test_a_model_without_the_parameters_that_a_method_keeps_private_is_refused():
    with pytest.raises(ValueError, match=r"private = embedding\.\*: no parameter .*; it has decoder\.weight"):
        strategy_of("fedvocab", names=["decoder.weight"])


def test_what_never_changes_does_not_travel():
    names = ["frozen.0.weight", "trained.0.weight", "pooling.p"]
    given = {"task": "vpr", "collect-after": 0}
    assert strategy_of("fedavg", given, names).shared == tuple(names[1:])
    assert strategy_of("local", given, names).shared == ()
    assert shared_names(PrivateParameters(("trained.*",)), ("frozen.*",), names) == ("pooling.p",)


def test_the_task_says_how_its_metrics_are_averaged():
    assert strategy_of("fedavg", {"task": "lqr", "collect-after": 0}).metric_means == {}
    strategy = strategy_of("fedavg", {"task": "text", "collect-after": 0})
    rules = {"test.global_accuracy": "geometric", "test.local_accuracy": "uniform"}
    assert strategy.metric_means == rules
    for method in ("fedvocab", "fedbabu", "per-fedavg"):  # whose nodes also evaluate the model before they adapt it
        strategy = strategy_of(method, {"task": "text", "collect-after": 0})
        assert strategy.metric_means == rules | {f"stale.{name}": rule for name, rule in rules.items()}


def test_nodes_weigh_the_same_in_the_error_of_a_stage_after_every_stage():
    """Two nodes have 90 and 10 examples in one stage, 10 and 90 in the next, and the same errors: none is forgotten."""
    for weights in ((90, 10), (10, 90)):
        mean = MetricMean(strategy_of("fedavg").metric_means)
        for weight, error in zip(weights, (0.1, 0.3), strict=True):
            mean.add(MetricRecord({"stage-1.test.mse": error}), weight)
        assert mean.result()["stage-1.test.mse"] == pytest.approx(0.2)


def test_who_drops_out_is_the_same_for_every_method():
    keys = {"drop_nodes": True, "fraction_train": 1.0, "seed": 4}
    samplers = [strategy_of(label, **keys).sampler for label in ("fedavg", "fedcurv")]
    assert samplers == [DropSchedule(seed=4)] * 2


@pytest.mark.parametrize(
    ("label", "weights"),
    [
        ("fedcurv(lambda=0.7)", (0.0, 0.0, 0.7)),
        ("elastic-transfer", (0.0, 0.5, 0.0)),
        ("elastic-transfer(own-past=0.1,others-past=0.2,others-now=0.3)", (0.1, 0.2, 0.3)),
    ],
)
def test_the_weights_of_a_fisher_exchange(label, weights):
    strategy = strategy_of(label)
    assert (strategy.own_past, strategy.others_past, strategy.others_now) == weights


@pytest.mark.parametrize(
    ("label", "parts"),
    [
        ("elastic-transfer", {"anchors": "online", "estimator": "per-sample"}),
        ("elastic-transfer(anchors=separate,estimator=per-batch)", {"anchors": "separate", "estimator": "per-batch"}),
        ("apfl", {"granularity": "tensor", "power": 1.0}),
        ("apfl(granularity=parameter,power=0.5)", {"granularity": "parameter", "power": 0.5}),
        ("clustered(clusters=4,first=3,every=2)", {"num_clusters": 4, "first": 3, "every": 2}),
        ("fedvc(examples=9)", {"work": {"virtual-examples": 9}}),
        ("fedvc(examples=9,run.steps=4)", {"work": {"steps": 4}}),  # virtual clients do equal work
    ],
)
def test_a_strategy_has_the_options_of_its_method(label, parts):
    strategy = strategy_of(label)
    assert {name: getattr(strategy, name) for name in parts} == parts


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", SGD), ("momentum", Momentum), ("adam", Adam), ("adagrad", AdaGrad), ("yogi", Yogi)]
)
def test_server_optimizers(name, kind):
    strategy = strategy_of("fedavg", server_optimizer=name, server_learning_rate=0.25)
    assert strategy.server_optimizer == kind(0.25)


def test_methods_with_a_server_optimizer_of_their_own():
    common = {"server-tau": 0.02, "server-optimizer": "sgd"}
    assert strategy_of("fedavgm(learning-rate=0.5)", GIVEN | common).server_optimizer == Momentum(0.5)
    assert strategy_of("fedadam(learning-rate=0.6)", GIVEN | common).server_optimizer == Adam(0.6, tau=0.02)
    assert strategy_of("fedadagrad(learning-rate=0.7)", GIVEN | common).server_optimizer == AdaGrad(0.7, tau=0.02)
    assert strategy_of("fedyogi(learning-rate=0.8)", GIVEN | common).server_optimizer == Yogi(0.8, tau=0.02)


def test_virtual_clients_are_drawn_with_replacement_unless_the_method_says_otherwise():
    assert (
        strategy_of("fedvc").sampler == strategy_of("fedvc(draws=with-replacement)").sampler == IndependentDraws(3, 3)
    )
    assert strategy_of("fedvc(draws=without-replacement)").sampler == ProportionalToSize(3, 3)


def test_tiers_and_their_cohorts():
    label = "h-fl(groups='city, continent',intervals='5,15',optimizer=momentum,learning-rate=0.3)"
    strategy = strategy_of(label, GIVEN | {"seed": 2})
    assert (strategy.groups, strategy.tiers.names, strategy.tiers.intervals) == (
        ("city", "continent"), ["continent", "city"], [15, 5],
    )  # fmt: skip
    assert [factory() for factory in strategy.tiers.optimizers] == [Momentum(0.3)] * 2
    assert strategy.server_optimizer == Adam(0.3)
    assert strategy.sampler == strategy_of("fedavg", GIVEN | {"seed": 2}).sampler
    assert strategy_of("h-fl(cohort=5)").sampler == FixedPerCluster("cluster", 5, seed=3)


def test_the_pooled_data_are_trained_on_by_the_first_key():
    profiles = [Profile(node_id, key) for node_id, key in ((4, "robot-2"), (9, "robot-0"), (1, "robot-1"))]
    for server_round in (1, 2):
        assert [profile.key for profile in FirstNode().sample(profiles, server_round, "train")] == ["robot-0"]
    assert FirstNode().sample([], 1, "train") == FirstNode().further(profiles, 1, 1, "train") == []


def test_the_tracked_metric():
    assert tracked_metric(RunConfig()) is None
    run = RunConfig(track_metric="test.elbo", track_mode="max", patience=3)
    assert tracked_metric(run) == TrackedMetric("test.elbo", "max", 3)


DRIVING = {"task": "driving", "methods": "fedavg", "collect-after": 0, "max-examples": 500}


@pytest.mark.parametrize(
    ("changes", "label", "growing"),
    [
        ({}, "fedavg", False),
        ({"methods": "fedvc"}, "fedvc", False),
        ({"collect-after": 2, "rounds": 4}, "fedavg", True),  # nodes collect data
        ({"task": "social", "rounds": 8}, "fedavg", True),  # each stage has its own
        ({"methods": "centralized"}, "centralized", True),  # one node trains on the data of all
        ({"task": "text", "methods": "fedavg,fedvocab"}, "fedvocab", True),  # profiles are those of the first method
    ],
)
def test_a_node_may_claim_more_than_its_profile_where_it_may_come_to_have_more(changes, label, growing):
    limits = build_strategy(parse(DRIVING | changes), label, NAMES).example_limits
    assert (limits.maximum, limits.may_grow) == (500, growing)
    assert limits.drawn == (256 if label == "fedvc" else 0)


def test_methods_without_a_strategy_of_their_own_are_fedavg():
    assert method_class("fedprox").strategy is method_class("fedavg").strategy
