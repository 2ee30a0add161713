"""HierarchicalFedAvg: models of clusters worked by hand, and nodes that come and go."""

import gc
import tracemalloc

import numpy as np
import pytest
from city_nodes import MIXED, START, add, city, drift, evaluate, place, received
from fedapps.strategies import Each
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import SGD, Adam, Momentum
from fedapps.strategies.profiles import Admission
from fedapps.strategies.samplers import FixedPerCluster, UniformFraction
from grouped import MemoryCheckpoints, assert_resumes_alike, grid_of, grouped_app
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arrays_of, federate, record_of, same_bits


def invented(partition):
    return {"group.city": "rome" if partition < 3 else "atlantis"}


# -- by hand ---------------------------------------------------------------------------------------------------


def test_two_tiers_by_hand():
    seen, reports, tops = [], [], []
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2])
    federate(
        strategy,
        grouped_app(city, add, evaluate, seen),
        START,
        num_nodes=4,
        num_rounds=3,
        on_round=reports.append,
        evaluate_fn=lambda r, arrays: tops.append(float(arrays["w"].numpy()[0])),
    )
    # rome moves by (1 + 2) / 2, oslo by 3, lima by 4; after two rounds all go on from (3 + 6 + 8) / 3 = 17/3
    top = 17 / 3
    assert received(seen, "train")[1] == [0, 0, 0, 0]
    assert received(seen, "evaluate")[1] == received(seen, "train")[2] == [1.5, 1.5, 3, 4]
    assert received(seen, "evaluate")[2] == pytest.approx([top] * 4)
    assert received(seen, "train")[3] == pytest.approx([top] * 4)
    assert received(seen, "evaluate")[3] == pytest.approx([top + 1.5, top + 1.5, top + 3, top + 4])
    # the shared result: the average now, the top model where it was just made
    assert tops == pytest.approx([0, 8.5 / 3, top, top + 8.5 / 3])
    assert [r.strategy for r in reports] == [
        {"replies": {"lima": 1, "oslo": 1, "rome": 2}, "averaged": averaged} for averaged in ([], ["city"], [])
    ]
    assert {label: float(m["w"][0]) for label, m in strategy.cluster_models().items()} == pytest.approx(
        {"lima": top + 4, "oslo": top + 3, "rome": top + 1.5}
    )


def test_clusters_may_count_by_their_replies():
    tops = []
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2], cluster_weights="replies")
    app = grouped_app(city, add)
    federate(strategy, app, START, num_nodes=4, num_rounds=2, evaluate_fn=lambda r, a: tops.append(arrays_of(a)["w"]))
    assert float(tops[1][0]) == pytest.approx((2 * 1.5 + 3 + 4) / 4)
    assert float(tops[2][0]) == pytest.approx((2 * 3 + 6 + 8) / 4)


def test_an_invented_city_of_one_node_does_not_outvote_the_others():
    """Three nodes of one city, which move by 2 in the mean, and one that made up its own, which moves by 4."""

    def moved(**options):
        strategy = HierarchicalFedAvg(groups=["city"], intervals=[1], **options)
        result = federate(strategy, grouped_app(invented, add), START, num_nodes=4, num_rounds=1)
        return float(arrays_of(result.arrays)["w"][0])

    assert moved() == pytest.approx((2 + 4) / 2), "one node of four has half of the weight"
    assert moved(cluster_weights="replies") == pytest.approx((3 * 2 + 4) / 4)
    assert moved(max_weight=0.2) == pytest.approx(0.6 * 0 + 0.2 * 2 + 0.2 * 4)
    allowed = Admission({"city": {"rome"}})
    assert moved(admission=allowed) == pytest.approx(2), "and none if its city is not listed"


def test_three_tiers_by_hand():
    seen = []
    strategy = HierarchicalFedAvg(groups=["city", "continent"], intervals=[1, 2])
    result = federate(strategy, grouped_app(place, add, evaluate, seen), START, num_nodes=4, num_rounds=2)
    europe = (1.5 + 3) / 2  # after round 1; america is lima alone
    assert received(seen, "evaluate")[1] == received(seen, "train")[2] == [europe, europe, europe, 4]
    top = (2 * europe + 8) / 2
    assert received(seen, "evaluate")[2] == [top] * 4
    assert float(arrays_of(result.arrays)["w"][0]) == top
    assert list(strategy.cluster_models()) == ["america/lima", "europe/oslo", "europe/rome"]


def test_an_optimizer_on_each_tier_by_hand():
    strategy = HierarchicalFedAvg(
        groups=["city"], intervals=[2], cluster_optimizers=[lambda: SGD(0.5)], server_optimizer=SGD(2.0)
    )
    result = federate(strategy, grouped_app(city, add), START, num_nodes=4, num_rounds=2)
    # half steps in the clusters: 1.5, 3, 4; then twice the way from the top's 0 to their average
    assert float(arrays_of(result.arrays)["w"][0]) == pytest.approx(2 * 8.5 / 3)


def test_every_cluster_has_moments_of_its_own():
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[0], cluster_optimizers=[lambda: Momentum(1.0, 0.5)])
    federate(strategy, grouped_app(city, add), START, num_nodes=4, num_rounds=2)
    models = {label: float(model["w"][0]) for label, model in strategy.cluster_models().items()}
    # the step s, then s + s/2
    assert models == pytest.approx({"rome": 1.5 * 2.5, "oslo": 3 * 2.5, "lima": 4 * 2.5})


# -- nodes that come and go ------------------------------------------------------------------------------------


def run_rounds(strategy, grid, presence):
    """The top after every round, with the given partitions present in each."""
    tops = []

    def next_nodes(report):
        grid.present = presence[min(report.round, len(presence) - 1)]

    grid.present = presence[0]
    strategy.start(
        grid,
        record_of(START),
        num_rounds=len(presence),
        callbacks=[Each(next_nodes)],
        evaluate_fn=lambda r, arrays: tops.append(float(arrays["w"].numpy()[0])),
    )
    return tops[1:]


def test_a_cluster_that_lost_its_nodes_gives_its_model_once_and_then_only_receives():
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2])
    tops = run_rounds(strategy, grid_of(grouped_app(city, add), 4), [[2, 3], [2], [2], [2]])
    # oslo 3, 6 and lima 4, then gone: their average is 5; from then on oslo alone moves the top
    assert tops == [3.5, 5, 8, 11]
    assert float(strategy.cluster_models()["lima"]["w"][0]) == 11


def test_a_late_cluster_begins_from_the_nearest_tier_above_it():
    seen = []
    strategy = HierarchicalFedAvg(groups=["city", "continent"], intervals=[1, 0])
    grid = grid_of(grouped_app(place, add, evaluate, seen), 4)
    run_rounds(strategy, grid, [[2], [0, 2, 3]])
    assert received(seen, "train")[2] == [3, 3, 0]  # rome from europe, lima from the top, which was never reached


def test_nodes_without_a_label_are_a_cluster():
    def sometimes(partition):
        return city(partition) if partition < 2 else {}

    strategy = HierarchicalFedAvg(groups=["city"], intervals=[0])
    federate(strategy, grouped_app(sometimes, add), START, num_nodes=4, num_rounds=1)
    assert {label: float(m["w"][0]) for label, m in strategy.cluster_models().items()} == {"": 3.5, "rome": 1.5}


def test_a_node_that_was_never_trained_evaluates_the_nearest_model():
    seen = []
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2], sampler=FixedPerCluster("city", 1, seed=1))
    grid = grid_of(grouped_app(city, add, evaluate, seen), 4)
    grid.present = [2]
    strategy.start(grid, record_of(START), num_rounds=2)
    grid.present = [2, 3]
    (oslo, lima) = strategy.configure_evaluate(3, record_of(START), {}, grid)
    assert [float(m.content["arrays"]["w"].numpy()[0]) for m in (oslo, lima)] == [6, 6]
    assert list(strategy.cluster_models()) == ["oslo"]


def test_a_round_in_which_a_cluster_has_only_refused_replies_leaves_its_model():
    def train(partition, arrays, config):
        arrays, metrics = add(partition, arrays, config)
        return (arrays if partition < 3 else {"w": arrays["w"] * np.nan}), metrics

    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2])
    result = federate(strategy, grouped_app(city, train), START, num_nodes=4, num_rounds=2)
    assert float(arrays_of(result.arrays)["w"][0]) == 4.5  # (3 + 6) / 2: lima gave nothing


def test_a_cohort_of_each_cluster():
    seen = []
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[1], sampler=FixedPerCluster("cluster", 2))
    federate(strategy, grouped_app(city, add, seen=seen), START, num_nodes=16, num_rounds=1)
    assert len([m for m in seen if m.metadata.message_type == "train"]) == 6


# -- bad input -------------------------------------------------------------------------------------------------


OPTIMIZER = SGD()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": "city"}, r"groups = 'city': must be a list"),
        ({"groups": []}, "must be a list of distinct kinds"),
        ({"groups": ["city", "city"], "intervals": [1, 1]}, "must be a list of distinct kinds"),
        ({"intervals": [1, 2]}, "1 groups, 2 intervals, 1 cluster_optimizers"),
        ({"intervals": [-1]}, r"intervals = \[-1\]: must be integers of at least 1"),
        ({"intervals": [1.5]}, r"intervals = \[1.5\]"),
        ({"intervals": [True]}, r"intervals = \[True\]"),
        ({"groups": ["a", "b"], "intervals": [2, 3]}, r"intervals = \[2, 3\].*a multiple of the one before"),
        ({"groups": ["a", "b"], "intervals": [0, 2]}, r"intervals = \[0, 2\]"),
        (
            {"cluster_optimizers": [lambda: OPTIMIZER]},
            "cluster_optimizers of 'city': must be a function that makes a new optimizer",
        ),
        ({"cluster_optimizers": [SGD()]}, "cluster_optimizers of 'city': must be a function"),
        ({"max_weight": 0.0}, "max_weight = 0.0: must be above 0 and at most 1"),
        ({"max_weight": 1.5}, "max_weight = 1.5: must be above 0 and at most 1"),
        ({"cluster_weights": "sizes"}, "cluster_weights = 'sizes': must be one of 'equal', 'replies'"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HierarchicalFedAvg(**{"groups": ["city"], "intervals": [1], **options})


def test_a_group_that_no_node_names_is_an_error():
    strategy = HierarchicalFedAvg(groups=["citty"], intervals=[1])
    with pytest.raises(
        ValueError, match=r"'citty': none of 4 nodes has this group; they have: city, continent. .*may-leave"
    ):
        federate(strategy, grouped_app(place, add), START, num_nodes=4, num_rounds=1)


# HierarchicalFedAvg: equality with FedAvg, runs that are resumed, and memory with a thousand nodes.


# -- FedAvg as a special case ----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD, lambda: SGD(0.7), lambda: Adam(0.05)])
@pytest.mark.parametrize(("groups", "intervals"), [(["city"], [1]), (["city"], [3]), (["city", "continent"], [2, 4])])
def test_one_cluster_is_fedavg_bit_for_bit(groups, intervals, optimizer):
    def app():
        return grouped_app(lambda partition: {"group.city": "rome", "group.continent": "europe"}, drift)

    def tops(strategy):
        kept = []
        options = {"num_nodes": 5, "num_rounds": 5, "evaluate_fn": lambda r, arrays: kept.append(arrays_of(arrays))}
        result = federate(strategy, app(), MIXED, **options)
        return kept, result.train_metrics_clientapp, result.evaluate_metrics_clientapp

    parts = {"shared": ["w", "half", "steps"], "sampler": UniformFraction(0.6, seed=3), "integers": "round"}
    factories = [optimizer, *[SGD for _ in groups[1:]]]
    ours = tops(HierarchicalFedAvg(groups=groups, intervals=intervals, cluster_optimizers=factories, **parts))
    fedavg = tops(BaseStrategy(server_optimizer=optimizer(), **parts))
    assert all(same_bits(a, b) for a, b in zip(ours[0], fedavg[0], strict=True))
    assert ours[1:] == fedavg[1:]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.floats(-100, 100, width=32)), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS, num_rounds=st.integers(1, 3))
def test_averaging_every_round_by_replies_is_fedavg(steps, num_rounds):
    def train(partition, arrays, config):
        return {"w": arrays["w"] + np.float32(steps[partition][1])}, {"num-examples": 1 + partition}

    def home(partition):
        return {"group.city": f"city-{steps[partition][0]}"}

    ours = HierarchicalFedAvg(groups=["city"], intervals=[1], cluster_weights="replies")
    arrays = [
        arrays_of(
            federate(strategy, grouped_app(home, train), START, num_nodes=len(steps), num_rounds=num_rounds).arrays
        )["w"]
        for strategy in (ours, BaseStrategy())
    ]
    np.testing.assert_allclose(*arrays, rtol=1e-5, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS, interval=st.integers(1, 3))
def test_the_top_stays_between_the_clusters_and_equals_them_after_an_average(steps, interval):
    def train(partition, arrays, config):
        return {"w": arrays["w"] + np.float32(steps[partition][1])}, {"num-examples": 1}

    def home(partition):
        return {"group.city": f"city-{steps[partition][0]}"}

    strategy, spread = HierarchicalFedAvg(groups=["city"], intervals=[interval]), []

    def look(server_round, arrays):
        models = [float(model["w"][0]) for model in strategy.cluster_models().values()]
        spread.append((server_round, min(models, default=0), float(arrays["w"].numpy()[0]), max(models, default=0)))

    federate(strategy, grouped_app(home, train), START, num_nodes=len(steps), num_rounds=4, evaluate_fn=look)
    for server_round, least, top, most in spread:
        assert least - 1e-3 <= top <= most + 1e-3
        assert server_round % interval or least == top == most


# -- resumed runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [3, 4, 5])
def test_a_resumed_run_ends_bit_for_bit_as_an_undisturbed_one(cut):
    def make():
        return HierarchicalFedAvg(
            groups=["city", "continent"],
            intervals=[2, 4],
            cluster_optimizers=[lambda: Adam(0.05), lambda: Momentum(0.9)],
            server_optimizer=Adam(0.1),
            cluster_weights="replies",
            sampler=UniformFraction(0.5, seed=2),
        )

    app = grouped_app(place, drift)
    assert_resumes_alike(make, app, MIXED, num_nodes=9, num_rounds=7, cut=cut)


def test_a_snapshot_keeps_a_model_once_that_clusters_share():
    kept = MemoryCheckpoints()
    app = grouped_app(city, add)
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[2])
    federate(strategy, app, START, num_nodes=4, num_rounds=2, checkpoints=kept)
    models = [[name for name in snapshot.arrays if name.endswith(".w")] for snapshot in kept.snapshots]
    assert [len(names) - 1 for names in models] == [4, 1], "beside the shared one"
    strategy.tiers.load_state(strategy.tiers.state())
    assert len({id(strategy.tiers.model(path)) for path in strategy.tiers.leaves()}) == 1


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (BaseStrategy, "the checkpoint has no 'tiers' of HierarchicalFedAvg: another strategy saved it"),
        (
            lambda: HierarchicalFedAvg(groups=["continent"], intervals=[1]),
            r"saved clusters have the tiers .*, but this run has \['city'\]",
        ),
    ],
)
def test_a_snapshot_of_other_tiers_is_refused(other, reason):
    kept, app = MemoryCheckpoints(), grouped_app(place, add)
    federate(other(), app, START, num_nodes=4, num_rounds=1, checkpoints=kept)
    strategy = HierarchicalFedAvg(groups=["city"], intervals=[1])
    with pytest.raises(ValueError, match=reason):
        federate(strategy, app, START, num_nodes=4, num_rounds=2, checkpoints=kept, resume=True)


# -- memory ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_grows_with_clusters_and_not_with_nodes():
    size = 20_000
    start = {"w": np.zeros(size, np.float32)}

    def peak(num_nodes, num_clusters):
        """Bytes beyond the messages' own at the height of aggregation, in models."""

        def home(partition):
            cluster = partition % num_clusters
            return {"group.city": f"{cluster:03d}", "group.continent": str(cluster % 4)}

        strategy = HierarchicalFedAvg(groups=["city", "continent"], intervals=[1, 2])
        grid = grid_of(grouped_app(home, add), num_nodes)
        gc.collect()
        tracemalloc.start()
        strategy.start(grid, record_of(start), num_rounds=1, evaluate_every=5)
        gc.collect()
        kept, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(strategy.cluster_models()) == num_clusters
        return kept / (4 * size), most / (4 * size)

    wide, few, narrow = peak(400, 40), peak(80, 40), peak(80, 8)
    assert wide[0] < 40 * 1 + 16  # in the end a model of each city
    assert wide[1] < 40 * 2 + 40  # and on the way its running mean, in float32 for up to 16 replies
    assert wide[1] - few[1] < 40  # 320 more nodes: messages and profiles, but no models
    assert few[1] - narrow[1] > 32
