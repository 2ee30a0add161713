"""ClusteredFedAvg: similarity of nodes, clusters found by hand-made updates, late nodes, schedules, and restarts."""

import sys

import numpy as np
import pytest
from fedapps.strategies import Each
from fedapps.strategies.algorithms.clustered import ClusteredFedAvg, ProfileFeatures, UpdateSketch
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.optimizers import SGD, Adam
from fedapps.strategies.profiles import Profile
from fedapps.strategies.records import nested, under
from fedapps.strategies.samplers import FixedPerCluster, PoissonSampling, UniformFraction
from grouped import MemoryCheckpoints, assert_resumes_alike, grid_of, grouped_app
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arrays_of, federate, record_of, same_bits

START = {"w": np.array([0.0, 0.0], np.float32)}
MIXED = {"w": np.array([0.3, -1.7], np.float32), "b": np.array([[2.0]], np.float32), "steps": np.array(3, np.int64)}


def nothing(partition):
    return {}


def camps(partition, arrays, config):
    """Even nodes move the first number by k + 1, odd ones the second; all have one example."""
    step = np.zeros(2, np.float32)
    step[partition % 2] = partition + 1
    return {"w": arrays["w"] + step}, {"num-examples": 1}


def drift(partition, arrays, config):
    """Steps that depend on node, round and beginning; the nodes fall into three kinds."""
    step = np.float32(0.1 * (1 + partition) / config["server-round"])
    way = {"w": np.array([[1, 0], [0, 1], [-1, 0]][partition % 3]), "b": np.array([[1.0]])}
    moved = {n: a + 1 if n == "steps" else a + step * way[n] * (1 + np.cos(a) / 4) for n, a in arrays.items()}
    moved = {n: np.asarray(a, MIXED[n].dtype) for n, a in moved.items()}
    return moved, {"num-examples": 1 + partition, "loss": float(partition)}


def models(strategy):
    return {label: model["w"].tolist() for label, model in strategy.cluster_models().items()}


def sent(seen, kind, server_round):
    return [
        m.content["arrays"]["w"].numpy().tolist()
        for m in seen
        if m.metadata.message_type == kind and m.content["config"]["server-round"] == server_round
    ]


# -- by hand ---------------------------------------------------------------------------------------------------


def test_two_kinds_of_nodes_by_hand():
    seen, reports = [], []
    strategy = ClusteredFedAvg(profiles=True, num_clusters=2)
    app = grouped_app(nothing, camps, seen=seen)
    result = federate(strategy, app, START, num_nodes=5, num_rounds=2, on_round=reports.append)
    # together: (1 + 3 + 5) / 5 and (2 + 4) / 5; then each kind by its own mean, 3 and 3
    together = np.array([9 / 5, 6 / 5])
    np.testing.assert_allclose(sent(seen, "train", 2), [together] * 5, rtol=1e-6)
    assert strategy.labels == {f"part-000{k}": "01"[k % 2] for k in range(5)}  # the larger keeps the name
    np.testing.assert_allclose(strategy.cluster_models()["0"]["w"], together + np.array([3, 0]), rtol=1e-6)
    np.testing.assert_allclose(strategy.cluster_models()["1"]["w"], together + np.array([0, 3]), rtol=1e-6)
    np.testing.assert_allclose(arrays_of(result.arrays)["w"], together + 1.5, rtol=1e-6)
    assert [r.strategy for r in reports] == [
        {"replies": {"0": 5}, "averaged": [], "nodes": {"0": 3, "1": 2}, "clustered": True},
        {"replies": {"0": 3, "1": 2}, "averaged": [], "nodes": {"0": 3, "1": 2}, "clustered": False},
    ]
    # every node evaluates the model of its cluster
    evaluated = np.array(sent(seen, "evaluate", 2))
    np.testing.assert_allclose(evaluated[:2], [together + np.array([3, 0]), together + np.array([0, 3])], rtol=1e-6)


def test_clusters_may_be_averaged_now_and_then():
    strategy = ClusteredFedAvg(num_clusters=2, interval=3, profiles=True)
    federate(strategy, grouped_app(nothing, camps), START, num_nodes=4, num_rounds=3)
    assert models(strategy)["0"] == models(strategy)["1"]
    # Both of these nodes move along the first axis from the model of their cluster.
    assert strategy._vectors["part-0000"] @ strategy._vectors["part-0002"] == pytest.approx(1)


def test_a_threshold_instead_of_a_number():
    far, near = (ClusteredFedAvg(threshold=threshold) for threshold in (1.0, 1.9))
    for strategy in (far, near):
        federate(strategy, grouped_app(nothing, camps), START, num_nodes=4, num_rounds=1)
    assert len(models(far)) == 2  # orthogonal directions are √2 apart
    assert len(models(near)) == 1


@pytest.mark.parametrize("linkage", ["average", "complete", "single", "ward"])
def test_numbers_in_profiles(linkage):
    def told(partition):
        return {"group.x": str([0.0, 10.0, 0.5, 10.5][partition]), "group.y": "1"}

    strategy = ClusteredFedAvg(
        num_clusters=2, linkage=linkage, similarity=ProfileFeatures(["x", "y"]), sampler=UniformFraction(0.25), first=2
    )
    federate(strategy, grouped_app(told, camps), START, num_nodes=4, num_rounds=2)
    # found from profiles, so for nodes too that did not train
    assert strategy.labels["part-0000"] == strategy.labels["part-0002"] != strategy.labels["part-0001"]
    assert strategy.labels["part-0001"] == strategy.labels["part-0003"]


def test_clusters_are_found_from_profiles_before_anybody_has_trained():
    similarity = ProfileFeatures(["x"])
    strategy = ClusteredFedAvg(num_clusters=2, similarity=similarity, sampler=PoissonSampling(0.0))
    federate(strategy, grouped_app(lambda k: {"group.x": str(min(k, 1))}, camps), START, num_nodes=3, num_rounds=1)
    assert strategy.labels == {"part-0000": "1", "part-0001": "0", "part-0002": "0"}  # the larger keeps the name
    assert models(strategy) == {"0": [0.0, 0.0], "1": [0.0, 0.0]}


def test_a_cohort_of_each_found_cluster():
    seen = []
    strategy = ClusteredFedAvg(num_clusters=2, sampler=FixedPerCluster("cluster", 9))
    federate(strategy, grouped_app(nothing, camps, seen=seen), START, num_nodes=5, num_rounds=1)
    strategy.sampler = FixedPerCluster("cluster", 1)
    grid = grid_of(grouped_app(nothing, camps), 5)
    assert len(list(strategy.configure_train(2, record_of(START), {}, grid))) == 2


# -- late nodes and schedules ----------------------------------------------------------------------------------


def test_a_late_node_trains_the_shared_model_once_and_joins_the_nearest_cluster():
    seen, tops = [], []
    strategy = ClusteredFedAvg(profiles=True, num_clusters=2)
    grid = grid_of(grouped_app(nothing, camps, seen=seen), 6)
    grid.present = [0, 1]

    def arrive(report):
        grid.present = [0, 1, 5]

    strategy.start(
        grid,
        record_of(START),
        num_rounds=3,
        callbacks=[Each(arrive)],
        evaluate_fn=lambda r, arrays: tops.append(arrays_of(arrays)["w"].tolist()),
    )
    # round 1 gives (0.5, 1); in round 2 node 5 trains that, and its reply enters no cluster
    assert sent(seen, "train", 2) == [[0.5, 1.0]] * 3
    assert tops[2] == [1.0, 2.0]  # the average of (1.5, 1) and (0.5, 3)
    assert sent(seen, "train", 3) == [[1.5, 1.0], [0.5, 3.0], [0.5, 3.0]]
    assert strategy.labels["part-0005"] == strategy.labels["part-0001"]
    assert models(strategy)["1"] == [0.5, 7.0]  # (2 + 6) / 2 more


def test_nodes_that_cannot_be_described_train_the_shared_model_and_enter_no_cluster():
    def told(partition):
        return {"group.x": ["0", "1", "north", "nan"][partition]}

    seen = []
    strategy = ClusteredFedAvg(num_clusters=2, similarity=ProfileFeatures(["x"]))
    federate(strategy, grouped_app(told, camps, seen=seen), START, num_nodes=4, num_rounds=2)
    assert list(strategy.labels) == ["part-0000", "part-0001"]
    # (1 + 3) / 4 and (2 + 4) / 4 together, then nodes 0 and 1 alone
    assert models(strategy) == {"0": [2.0, 1.5], "1": [1.0, 3.5]}


def test_clusters_are_found_anew_on_schedule_and_nodes_may_change():
    def train(partition, arrays, config):
        """From round 2 on node 2 moves like the odd ones."""
        like = 1 if partition == 2 and config["server-round"] > 1 else partition % 2
        step = np.zeros(2, np.float32)
        step[like] = 1
        return {"w": arrays["w"] + step}, {"num-examples": 1}

    reports, kept = [], MemoryCheckpoints()
    strategy = ClusteredFedAvg(num_clusters=2, first=1, every=2)
    app = grouped_app(nothing, train)
    federate(strategy, app, START, num_nodes=5, num_rounds=3, on_round=reports.append, checkpoints=kept)
    assert [r.strategy["clustered"] for r in reports] == [True, False, True]
    assert [r.strategy["nodes"] for r in reports] == [{"0": 3, "1": 2}, {"0": 3, "1": 2}, {"0": 2, "1": 3}]
    # Before: (0.6, 0.4), twice 2/3 and 1/3 for cluster 0, twice (0, 1) for cluster 1. Node 2 brings 0's model to 1.
    zero, one = np.array([0.6 + 4 / 3, 0.4 + 2 / 3]), np.array([0.6, 2.4])
    np.testing.assert_allclose(strategy.cluster_models()["0"]["w"], zero, rtol=1e-6)
    np.testing.assert_allclose(strategy.cluster_models()["1"]["w"], (zero + 2 * one) / 3, rtol=1e-6)


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_fewer_nodes_than_clusters(num_nodes):
    strategy = ClusteredFedAvg(num_clusters=10)
    app = grouped_app(nothing, drift)
    federate(strategy, app, MIXED, num_nodes=num_nodes, num_rounds=3)
    assert len(models(strategy)) == num_nodes


def test_equal_nodes_are_one_cluster():
    strategy = ClusteredFedAvg(num_clusters=3)
    still = grouped_app(nothing, lambda partition, arrays, config: (arrays, {"num-examples": 1}))
    federate(strategy, still, START, num_nodes=4, num_rounds=2)
    assert models(strategy) == {"0": [0.0, 0.0]}


# -- degenerate cases, restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD, lambda: SGD(0.7), lambda: Adam(0.05)])
@pytest.mark.parametrize("every", [0, 1])
def test_one_cluster_is_fedavg_bit_for_bit(optimizer, every):
    def tops(strategy):
        kept = []
        options = {"num_nodes": 6, "num_rounds": 5, "evaluate_fn": lambda r, arrays: kept.append(arrays_of(arrays))}
        result = federate(strategy, grouped_app(nothing, drift), MIXED, **options)
        return kept, result.train_metrics_clientapp

    parts = {"shared": ["w", "steps"], "sampler": UniformFraction(0.5, seed=3), "integers": "round"}
    ours = tops(ClusteredFedAvg(num_clusters=1, first=2, every=every, cluster_optimizer=optimizer, **parts))
    fedavg = tops(BaseStrategy(server_optimizer=optimizer(), **parts))
    assert all(same_bits(a, b) for a, b in zip(ours[0], fedavg[0], strict=True))
    assert ours[1] == fedavg[1]


@pytest.mark.parametrize("cut", [2, 4, 5])
def test_a_resumed_run_ends_bit_for_bit_as_an_undisturbed_one(cut):
    def make():
        return ClusteredFedAvg(
            num_clusters=3,
            first=2,
            every=2,
            interval=3,
            cluster_optimizer=lambda: Adam(0.05),
            server_optimizer=Adam(0.1),
            sampler=UniformFraction(0.5, seed=2),
        )

    app = grouped_app(nothing, drift)
    assert_resumes_alike(make, app, MIXED, num_nodes=12, num_rounds=7, cut=cut)


def test_a_snapshot_of_another_strategy_is_refused():
    kept, app = MemoryCheckpoints(), grouped_app(nothing, camps)
    federate(BaseStrategy(), app, START, num_nodes=2, num_rounds=1, checkpoints=kept)
    with pytest.raises(ValueError, match="the checkpoint has no 'tiers' of ClusteredFedAvg: another strategy saved it"):
        federate(ClusteredFedAvg(num_clusters=2), app, START, num_nodes=2, num_rounds=2, checkpoints=kept, resume=True)


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.tuples(*[st.floats(-10, 10, width=32)] * 2), min_size=1, max_size=7),
    num_clusters=st.integers(1, 4),
    every=st.integers(0, 2),
)
def test_clusters_part_the_nodes_and_the_top_lies_between_them(steps, num_clusters, every):
    def train(partition, arrays, config):
        return {"w": arrays["w"] + np.array(steps[partition], np.float32)}, {"num-examples": 1}

    strategy = ClusteredFedAvg(num_clusters=num_clusters, every=every)
    result = federate(strategy, grouped_app(nothing, train), START, num_nodes=len(steps), num_rounds=3)
    assert len(strategy.labels) == len(steps)
    assert set(strategy.labels.values()) == set(models(strategy))
    assert len(models(strategy)) <= min(num_clusters, len(steps))
    found = np.array(list(models(strategy).values()))
    top = arrays_of(result.arrays)["w"]
    assert (found.min(axis=0) - 1e-3 <= top).all()
    assert (top <= found.max(axis=0) + 1e-3).all()


def test_a_snapshot_has_a_vector_per_node_and_a_model_per_cluster():
    kept = MemoryCheckpoints()
    start = {"w": np.zeros(5000, np.float32)}

    def train(partition, arrays, config):
        step = np.zeros(5000, np.float32)
        step[2500 * (partition % 2) :][:2500] = 1
        return {"w": arrays["w"] + step}, {"num-examples": 1}

    strategy = ClusteredFedAvg(num_clusters=2, similarity=UpdateSketch(8))
    federate(strategy, grouped_app(nothing, train), start, num_nodes=40, num_rounds=2, checkpoints=kept)
    arrays = kept.latest().arrays
    state = nested(under("state.", arrays))
    assert [vector.shape for vector in state["_vectors"].values()] == [(8,)] * 40
    assert [centre.shape for centre in state["_centres"].values()] == [(8,)] * 2
    assert sum(array.size >= 5000 for array in arrays.values()) == 4  # shared result, top and two clusters


NODE = Profile(1, "part-0")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), cosine=st.floats(-1, 1))
def test_sketches_keep_the_cosine_of_updates(seed, cosine):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, 3000))
    other -= one * (one @ other) / (one @ one)
    other = cosine * one / np.linalg.norm(one) + np.sqrt(1 - cosine**2) * other / np.linalg.norm(other)
    zero = {"a": np.zeros(1000), "b": np.zeros((20, 100))}
    sketch = UpdateSketch(dimension=1024, seed=seed % 7)
    updates = ({"a": update[:1000], "b": update[1000:].reshape(20, 100)} for update in (one, other))
    vectors = [sketch.of_update(NODE, zero, update) for update in updates]
    assert [np.linalg.norm(vector) for vector in vectors] == pytest.approx([1, 1])
    assert abs(vectors[0] @ vectors[1] - cosine) < 6 / np.sqrt(1024)


def test_a_sketch_depends_on_seed_and_names_and_is_of_fixed_length():
    rng = np.random.default_rng(0)
    before = {"w": rng.normal(size=200_000).astype(np.float32), "v": np.zeros(3, np.float32)}
    after = {"w": before["w"] + rng.normal(size=200_000).astype(np.float32), "v": np.zeros(3, np.float32)}
    one = UpdateSketch(16, seed=1)
    vector = one.of_update(NODE, before, after)
    assert (vector.shape, vector.dtype) == ((16,), np.float64)
    assert np.array_equal(vector, one.of_update(NODE, before, after))
    assert np.array_equal(vector, one.of_update(NODE, dict(reversed(before.items())), after))
    assert not np.array_equal(vector, UpdateSketch(16, seed=2).of_update(NODE, before, after))
    assert np.array_equal(UpdateSketch(16, parameters=["v"]).of_update(NODE, before, after), np.zeros(16))
    assert one.of_profile(NODE) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UpdateSketch(0), "dimension = 0: must be an integer of at least 1"),
        (lambda: UpdateSketch(seed=-1), "seed = -1: must be an integer of at least 0"),
        (lambda: UpdateSketch(parameters="w"), "parameters = 'w': must be a list"),
        (lambda: ProfileFeatures("x"), "groups = 'x': must be a list"),
        (lambda: ProfileFeatures([]), r"groups = \[\]: must be a list"),
    ],
)
def test_a_bad_similarity_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_clusters = 0, threshold = 0.0: set exactly one of them"),
        ({"num_clusters": 2, "threshold": 0.5}, "set exactly one of them"),
        ({"threshold": float("nan")}, "threshold = nan: set exactly one of them"),
        ({"num_clusters": -1}, "num_clusters = -1: must be an integer of at least 0"),
        ({"num_clusters": 2.0}, "num_clusters = 2.0: must be an integer"),
        ({"num_clusters": 2, "first": 0}, "first = 0: must be an integer of at least 1"),
        ({"num_clusters": 2, "every": -1}, "every = -1: must be an integer of at least 0"),
        ({"num_clusters": 2, "linkage": "median"}, "linkage = 'median': must be one of 'average'"),
        ({"num_clusters": 2, "interval": -2}, r"intervals = \[-2\]: must be integers"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ClusteredFedAvg(**options)


def test_scipy_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.cluster", None)
    with pytest.raises(ImportError, match="ClusteredFedAvg needs SciPy for clustering: pip install"):
        ClusteredFedAvg(num_clusters=2)
