"""IFCA: by hand, with a model that nobody chooses, and with one model."""

import numpy as np
import pytest
from fedapps.strategies.algorithms.ifca import IteratedClusters, drawn
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.optimizers import Adam
from fedapps.strategies.records import nested
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from toys import same_bits, same_rounds

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


@pytest.fixture
def runs_from(monkeypatch):
    """Run IFCA from two given models; returns the run and both models after each round."""

    def run(starts, world=Quadratics, method="ifca", **more):
        task = type("FromHere", (world,), {"name": f"from-{starts[0]}", "start": starts[0]})
        other = {"theta": np.array([starts[1]])}
        monkeypatch.setattr("fedapps.strategies.algorithms.ifca.drawn", lambda *given: other)
        found = run_method(method, task, **more)
        return found, [[float(nested(state)["models"][j]["theta"][0]) for j in (0, 1)] for state in found.server]

    return run


def test_two_rounds_by_hand(runs_from):
    _, models = runs_from((1.0, -0.5))
    assert models == [near(1.19, -0.755), near(1.3439, -0.87995)]
    _, models = runs_from((0.5, -0.5), SecondWorld)
    assert models == [near(0.595, -0.755), near(0.67195, -0.87995)]


def test_a_model_that_nobody_chose_stays_and_the_result_is_that_of_most_nodes(runs_from):
    found, models = runs_from((3.0, 2.5))
    assert models == [near(3, 1.56), near(3, 0.949)]
    assert found.values() == near(1.56, 0.949)


def test_nodes_choose_again_before_an_evaluation(runs_from, tmp_path):
    found, ((first, second),) = runs_from((1.0, -0.5), folder=tmp_path, rounds=1)
    (line,) = found.folder.lines("metrics.jsonl")
    assert line["strategy"]["ifca"]["replies"] == {"0": 1, "1": 1}
    assert line["evaluate"]["test.loss"] == pytest.approx((0.5 * (first - 2) ** 2 + 1.5 * (second + 1) ** 2) / 2)


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=st.tuples(st.floats(-4, 4), st.floats(-4, 4)))
def test_a_node_trains_the_model_with_the_smallest_loss(runs_from, starts):
    found, _ = runs_from(starts, evaluate_every=2)
    trained = [(node, sent, reply) for kind, node, sent, reply in found.messages if kind == "train"]
    assert len(trained) == 4
    for node, sent, reply in trained:
        a, b = Quadratics.nodes[node]
        values = [sent[name]["theta"].numpy()[0] for name in ("arrays", "ifca.model.1")]
        losses = [0.5 * a * (value - b) ** 2 for value in values]
        assert losses[int(reply["metrics"]["ifca.choice"])] == min(losses)


@pytest.mark.parametrize("keys", [{}, {"weighting": "num-examples", "batch_size": 3}])
def test_one_model_is_fedavg(keys):
    single, fedavg = (run_method(name, Points, **keys) for name in ("ifca(clusters=1)", "fedavg"))
    assert same_rounds(single.arrays, fedavg.arrays)


@pytest.mark.filterwarnings("error")
def test_other_first_models_have_the_same_scale_and_the_same_constants():
    weights = np.random.default_rng(0).uniform(-0.1, 0.3, (200, 50)).astype(np.float32)
    constant = {"bias": np.zeros(4, np.float32), "bn.running_var": np.arange(3.0), "empty": np.zeros((0, 2))}
    arrays = {"weight": weights, **constant}
    for spread, correlation in ((1.0, 0.0), (0.6, 0.8)):
        other = drawn(arrays, [0, 1], spread, Buffers())
        assert other["weight"].dtype == np.float32
        assert [other["weight"].mean(), other["weight"].std()] == pytest.approx([0.1, weights.std()], abs=0.005)
        assert np.corrcoef(weights.ravel(), other["weight"].ravel())[0, 1] == pytest.approx(correlation, abs=0.03)
        assert same_bits({name: other[name] for name in constant}, constant)
    assert same_bits(drawn(arrays, [0, 1], 0.0, Buffers()), arrays)
    assert not np.array_equal(
        drawn(arrays, [0, 2], 1.0, Buffers())["weight"], drawn(arrays, [0, 1], 1.0, Buffers())["weight"]
    )


def test_a_choice_that_is_no_model_is_refused(monkeypatch):
    part = "fedapps.methods.ifca.IfcaPart.metrics"
    monkeypatch.setattr(part, lambda *given: {"ifca.choice": 2.0})
    with pytest.raises(Exception, match=r"metric ifca.choice is 2.0: a client returns the number of a model, 0 to 1"):
        run_method("ifca", rounds=1)


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("ifca", {"server_optimizer": "adam"}, "server-optimizer = 'adam': must be 'sgd' with ifca"),
        ("ifca(clusters=3)", {}, "ifca.clusters = 3: must be at most the 2 nodes"),
        ("ifca", {"aggregation": "median"}, "nodes choose the model that they train"),
        ("ifca", {"compression": "int8"}, "nodes start from the model that they choose"),
    ],
)
def test_what_several_models_do_not_allow_is_refused_before_the_run(method, keys, message):
    with pytest.raises(Exception, match=message):
        run_method(method, **keys)


def test_moments_belong_to_one_model():
    IteratedClusters(clusters=1, server_optimizer=Adam())
    with pytest.raises(
        ValueError, match=r"server_optimizer = Adam\(.*\): must be SGD, because moments are of one model"
    ):
        IteratedClusters(server_optimizer=Adam())
