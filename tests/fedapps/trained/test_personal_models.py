"""Methods with a personal model beside the shared one: what is loaded and adapted is the personal one."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from toys import same_bits
from trained_runs import last_evaluation

import fedapps

HELD_OUT = "robot-03"
METHODS = ["ditto", "pfedme", "apfl-deng", "per-fedavg"]


@pytest.fixture(scope="module")
def folder(run_with_a_new_robot):
    return run_with_a_new_robot({"methods": ",".join(METHODS), "optimizer": "sgd"})


def weights(model):
    return {name: tensor.numpy() for name, tensor in model.module.state_dict().items()}


def kept(folder, method, node):
    """The personal model in the private state of a node, and its share of a mixture."""
    newest = max(folder.path.glob(f"nodes/*/{method}/{node}/round-*.safetensors"), key=lambda path: path.name)
    arrays = load_file(newest)
    prefix = "memory.personal."
    personal = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    return personal, arrays.get("memory.apfl-deng.alpha")


@pytest.mark.parametrize("method", METHODS)
def test_the_model_of_a_node_is_the_one_that_it_evaluated(folder, method, tmp_path):
    shared = weights(fedapps.load(folder.path, method))
    assert same_bits(shared, fedapps.open_run(folder.path).arrays(method))
    for node, reported in last_evaluation(folder, method).items():
        model = fedapps.load(folder.path, method, node)
        metrics = model.evaluate()
        assert metrics
        assert metrics == {name: reported[name] for name in metrics}
        assert not same_bits(weights(model), shared)
    model.save(tmp_path / "own")
    again = fedapps.load(tmp_path / "own")
    assert same_bits(weights(again), weights(model))
    assert again.origin == model.origin


@pytest.mark.parametrize("method", METHODS)
def test_the_metrics_of_a_personal_model_are_not_those_of_the_shared_one(folder, method, tmp_path):
    origin = fedapps.load(folder.path, method).origin
    if method == "per-fedavg":  # its nodes evaluate the shared model before they adapt it
        reported = last_evaluation(folder, method)
        assert set(origin.metrics) >= set(origin.spread) > set()
        for name, over in origin.spread.items():
            assert over["mean"] == pytest.approx(np.mean([metrics[f"stale.{name}"] for metrics in reported.values()]))
    else:
        assert (origin.metrics, origin.spread) == ({}, {})
        fedapps.export(fedapps.load(folder.path, method), "safetensors", tmp_path / "shared")
        assert "No evaluation of this model is recorded." in (tmp_path / "shared" / "README.md").read_text()


@pytest.mark.parametrize("method", ["ditto", "pfedme", "apfl-deng"])
def test_the_model_of_a_node_is_its_personal_one_or_the_mixture_of_it(folder, method):
    shared = weights(fedapps.load(folder.path, method))
    for node in last_evaluation(folder, method):
        found = weights(fedapps.load(folder.path, method, node))
        personal, share = kept(folder, method, node)
        if method == "apfl-deng":
            mixed = {name: (1 - share) * shared[name] + share * array for name, array in personal.items()}
            assert all(np.allclose(found[name], array, rtol=1e-5) for name, array in mixed.items())
        else:
            assert same_bits(found, personal)


@pytest.mark.parametrize("method", METHODS)
def test_a_new_node_starts_from_the_shared_model_and_fits_its_personal_one(folder, method):
    reported = folder.summary()["methods"][method]["held_out"]["nodes"][HELD_OUT]
    for epochs, name in ((0, "shared"), (3, "adapted")):
        model = fedapps.adapt(folder.path, folder.path.parent / "robot", method, epochs=epochs)
        metrics = model.origin.metrics
        assert metrics == {metric: reported[name][metric] for metric in metrics}
        assert same_bits(weights(model), weights(fedapps.load(folder.path, method))) == (epochs == 0)
