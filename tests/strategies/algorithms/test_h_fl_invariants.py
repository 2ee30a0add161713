"""HierarchicalFedAvg: equality with FedAvg, runs that are resumed, and memory with a thousand nodes."""

import gc
import tracemalloc

import numpy as np
import pytest
from city_nodes import MIXED, START, add, city, drift, place
from fedapps.strategies.algorithms.h_fl import HierarchicalFedAvg
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import SGD, Adam, Momentum
from fedapps.strategies.samplers import UniformFraction
from grouped import MemoryCheckpoints, assert_resumes_alike, grid_of, grouped_app
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arrays_of, federate, record_of, same_bits

pytestmark = pytest.mark.usefixtures("flower_identity")


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
