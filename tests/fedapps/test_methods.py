"""From a method's name to its strategy."""

from dataclasses import replace

import pytest

from fedapps.app.strategies import FirstNode, build_strategy, tracked_metric
from fedapps.catalogue import METHODS
from fedapps.config.run_config import RunConfig
from strategies.adaptive_rates import AdaptiveRates
from strategies.base import BaseStrategy
from strategies.clustered import ClusteredFedAvg
from strategies.fedweit import FedWeIT
from strategies.fisher_exchange import FisherExchange
from strategies.hierarchical import HierarchicalFedAvg
from strategies.optimizers import SGD, AdaGrad, Adam, Momentum, Yogi
from strategies.partial_aggregation import PartialAggregation
from strategies.profiles import Profile
from strategies.round_records import TrackedMetric
from strategies.samplers import DropSchedule, FixedPerCluster, ProportionalToSize, UniformFraction
from strategies.virtual_clients import VirtualClients

RUN = RunConfig(
    seed=3, num_nodes=5, fraction_train=0.5, fraction_evaluate=0.75, min_replies=2, weighting="num-examples",
    server_optimizer="adam", server_learning_rate=0.3, rate_granularity="parameter", node_wait=9.0,
    in_flight=4,
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
        "fedvc": VirtualClients,
        "h-fl": HierarchicalFedAvg,
        "clustered": ClusteredFedAvg,
        **dict.fromkeys(TRAVELLING, PartialAggregation),
    }
    expected = FisherExchange if name.startswith("elastic-transfer") else kinds.get(name, BaseStrategy)
    assert type(strategy) is expected
    everything = () if name == "stl" or name.startswith("local") else ("*",)
    assert strategy.shared == TRAVELLING.get(name, everything)
    assert strategy.evaluate_sampler == UniformFraction(0.75, seed=3)
    own = {"fedavgm": Momentum(0.1), "fedadam": Adam(0.1), "fedadagrad": AdaGrad(0.01), "fedyogi": Yogi(0.1)}
    assert strategy.server_optimizer == own.get(name, Adam(0.3))
    assert (strategy.min_nodes, strategy.node_wait, strategy.in_flight) == (5, 9.0, 4)
    assert (strategy.weight_of(6), strategy.weight_of(2)) == ((1, 1) if name == "fedvc" else (6, 2))
    if name in ("cloud", "untrained"):
        assert type(strategy.sampler) is FirstNode
        assert strategy.min_replies == 1
    else:
        assert strategy.sampler == (ProportionalToSize(3, 3) if name == "fedvc" else UniformFraction(0.5, seed=3))
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


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("fedavgm", Momentum(0.5)),
        ("fedadam", Adam(0.6, tau=0.02)),
        ("fedadagrad", AdaGrad(0.7, tau=0.02)),
        ("fedyogi", Yogi(0.8, tau=0.02)),
    ],
)
def test_methods_with_a_server_optimizer_of_their_own(name, optimizer):
    run = RunConfig(
        server_optimizer="sgd", server_learning_rate=0.9, server_tau=0.02,
        fedavgm_rate=0.5, fedadam_rate=0.6, fedadagrad_rate=0.7, fedyogi_rate=0.8,
    )  # fmt: skip
    assert build_strategy(run, name).server_optimizer == optimizer


def test_virtual_clients_do_equal_work():
    assert build_strategy(RunConfig(virtual_examples=9), "fedvc").work == {"virtual-examples": 9}
    assert build_strategy(RunConfig(virtual_examples=9, steps=4), "fedvc").work == {"steps": 4}


def test_tiers_and_their_cohorts():
    run = RunConfig(
        seed=2, cluster_groups="city, continent", cluster_intervals="5,15", cluster_optimizer="momentum",
        cluster_learning_rate=0.3, server_optimizer="adam", server_learning_rate=0.2,
    )  # fmt: skip
    strategy = build_strategy(run, "h-fl")
    assert (strategy.groups, strategy.tiers.names, strategy.tiers.intervals) == (
        ("city", "continent"), ["continent", "city"], [15, 5],
    )  # fmt: skip
    assert [factory() for factory in strategy.tiers.optimizers] == [Momentum(0.3)] * 2
    assert strategy.server_optimizer == Adam(0.2)
    assert strategy.sampler == build_strategy(run, "fedavg").sampler
    strategy = build_strategy(replace(run, cluster_cohort=5), "h-fl")
    assert strategy.sampler == FixedPerCluster("cluster", 5, seed=2)


def test_clusters_that_are_found():
    run = RunConfig(num_clusters=4, cluster_first=3, cluster_every=2, cluster_optimizer="sgd")
    strategy = build_strategy(run, "clustered")
    assert (strategy.num_clusters, strategy.first, strategy.every) == (4, 3, 2)


def test_the_pooled_data_are_trained_on_by_the_first_key():
    profiles = [Profile(node_id, key) for node_id, key in ((4, "robot-2"), (9, "robot-0"), (1, "robot-1"))]
    for server_round in (1, 2):
        assert [profile.key for profile in FirstNode().sample(profiles, server_round, "train")] == ["robot-0"]
    assert FirstNode().sample([], 1, "train") == []


def test_the_tracked_metric():
    assert tracked_metric(RunConfig()) is None
    run = RunConfig(track_metric="test.elbo", track_mode="max", patience=3)
    assert tracked_metric(run) == TrackedMetric("test.elbo", "max", 3)


STAGED = RunConfig(methods="sfl", collect_after=0, max_examples=500)


@pytest.mark.parametrize(
    ("run", "method", "stages", "growing"),
    [
        (STAGED, "sfl", 1, False),
        (replace(STAGED, methods="fedvc"), "fedvc", 1, False),
        (replace(STAGED, collect_after=2), "sfl", 1, True),  # nodes collect data
        (STAGED, "sfl", 3, True),  # each stage has its own
        (replace(STAGED, methods="cloud"), "cloud", 1, True),  # a node trains on everybody's
        (replace(STAGED, task="text", methods="fedavg,fedvocab"), "fedvocab", 1, True),  # profiles are the first one's
    ],
)
def test_a_node_may_claim_more_than_its_profile_where_it_may_come_to_have_more(run, method, stages, growing):
    sizes = build_strategy(run, method, NAMES, stages).sizes
    assert (sizes.most, sizes.growing) == (500, growing)
    assert sizes.drawn == (256 if method == "fedvc" else 0)
