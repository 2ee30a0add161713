"""FedVocab and its variants as whole runs of nodes that classify made-up texts."""

import glob

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_runs import run_inline
from toys import same_bits

from fedapps.config.parsing import ConfigError, parse

pytestmark = pytest.mark.usefixtures("runs_without_reports")
NODES = 4
SMALL = {
    "task": "text", "num-nodes": NODES, "rounds": 2, "fraction-train": 0.75, "epochs": 1, "batch-size": 8,
    "learning-rate": 0.01, "evaluate-every": 1, "collect-after": 0, "weighting": "num-examples", "name": "run",
    "text.source": "simulated", "text.world-examples": 24, "text.embedding-width": 8, "text.hidden": 8,
    "text.max-length": 12, "text.vocabulary-size": 500, "text.global-examples": 12, "text.dropout": 0.0,
}  # fmt: skip
PUBLISHED = "fedvocab(adapt-before-evaluation=false)"
CHANGED = ["fedvocab(adapt-rate=0.1)", "fedvocab(logit-adjustment=1)", "fedvocab(stateless=true)"]
METHODS = ["fedvocab", PUBLISHED, *CHANGED, "fedavg", "fedavg(logit-adjustment=1)", "fedrecon"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    cache = {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}
    return run_inline(SMALL | cache | {"methods": ",".join(METHODS)}, tmp_path_factory.mktemp("whole"))


def rows(folder, method, phase):
    return [row for row in folder.lines("nodes.jsonl") if (row["method"], row["phase"]) == (method, phase)]


def arrays(folder, method):
    return folder.checkpoints(method).latest().arrays


def states(folder, method):
    """What the nodes keep, by node and round."""
    paths = folder.path.glob(f"nodes/*/{glob.escape(method)}/*/*.safetensors")
    return {(path.parent.name, path.name): load_file(path) for path in paths}


def test_an_evaluation_that_adapts_leaves_training_as_published(whole):
    assert same_bits(arrays(whole, "fedvocab"), arrays(whole, PUBLISHED))
    ours, published = states(whole, "fedvocab"), states(whole, PUBLISHED)
    assert ours.keys() == published.keys() != set()
    assert all(same_bits(kept, published[place]) for place, kept in ours.items())


def test_the_stale_metrics_are_the_published_ones(whole):
    for ours, published in zip(rows(whole, "fedvocab", "evaluate"), rows(whole, PUBLISHED, "evaluate"), strict=True):
        stale = {n.removeprefix("stale."): v for n, v in ours["metrics"].items() if n.startswith("stale.")}
        assert stale == published["metrics"]
    ours, published = (whole.summary()["methods"][method]["final"] for method in ("fedvocab", PUBLISHED))
    for name in ("test.global_accuracy", "test.local_accuracy"):  # with the same means over nodes
        assert ours[f"stale.{name}"] == published[name]
    assert not [name for name in published if name.startswith("stale.")]


def test_the_steps_of_all_phases_and_of_the_last_evaluation_count(whole):
    def final(method):
        return whole.summary()["methods"][method]["final"]["steps_per_node"]

    for method in METHODS:
        training = sum(row["metrics"]["steps"] for row in rows(whole, method, "train"))
        last = [row["metrics"].get("steps.count", 0) for row in rows(whole, method, "evaluate") if row["round"] == 2]
        assert len(last) == NODES
        assert final(method) == pytest.approx((training + sum(last)) / NODES)
    assert final(PUBLISHED) == 2 * final("fedavg")  # an epoch of adaptation before every epoch
    assert final("fedavg") < final(PUBLISHED) < final("fedvocab")


def test_a_variant_differs_from_its_method_and_keeps_what_it_should(whole):
    for method in CHANGED:
        assert not same_bits(arrays(whole, method), arrays(whole, "fedvocab"))
    assert not same_bits(arrays(whole, "fedavg(logit-adjustment=1)"), arrays(whole, "fedavg"))
    assert states(whole, "fedvocab(stateless=true)") == {}
    assert states(whole, "fedvocab(adapt-rate=0.1)").keys() == states(whole, "fedvocab").keys()


def test_in_the_first_round_a_stateless_node_does_what_every_node_does(whole):
    first = [
        [row["metrics"] for row in rows(whole, method, phase) if row["round"] == 1]
        for method in ("fedvocab", "fedvocab(stateless=true)")
        for phase in ("train",)
    ]
    assert first[0] == first[1]


def test_arguments_that_change_nothing_give_the_same_bits(whole, tmp_path):
    changed = "fedvocab(adapt-rate=1.0,logit-adjustment=0.0,stateless=false,adapt-before-evaluation=false)"
    folder = run_inline(SMALL | {"methods": changed, "cache-dir": str(tmp_path)}, tmp_path)
    assert same_bits(arrays(folder, changed), arrays(whole, PUBLISHED))
    assert np.array_equal(
        [row["metrics"]["test.local_accuracy"] for row in rows(folder, changed, "evaluate")],
        [row["metrics"]["test.local_accuracy"] for row in rows(whole, PUBLISHED, "evaluate")],
    )


@pytest.mark.parametrize("argument", ["adapt-epochs=0", "adapt-before-evaluation=false"])
def test_without_adaptation_before_an_evaluation_nothing_can_be_stateless(argument):
    with pytest.raises(ConfigError, match=r"fedvocab\.stateless = true: must be false with adapt-epochs = 0 or"):
        parse(SMALL | {"methods": f"fedvocab(stateless=true,{argument})"})


def test_logits_are_adjusted_for_labels_only():
    with pytest.raises(ConfigError, match=r"fedavg\.logit-adjustment = 1\.0: must be 0 with task 'lqr'"):
        parse({"task": "lqr", "methods": "fedavg(logit-adjustment=1)"})
