"""Whole runs of nodes that classify made-up texts, some with words of their own."""

import glob
import math
import re
from fnmatch import fnmatch

import numpy as np
import pytest
from run_outputs import assert_same
from safetensors.numpy import load_file
from small_runs import run_inline, with_changes

from fedapps.app.server_app import initial_arrays
from fedapps.cli.commands import main
from fedapps.config.parsing import parse

METHODS = [
    "local", "fedavg", "fedprox", "lg-fedavg", "fedrecon", "fedvocab", "fedvocab(adapt-epochs=0)",
    "fedvocab(own-start=true)",
]  # fmt: skip
NODES = 4
SMALL = {
    "task": "text", "num-nodes": NODES, "rounds": 2, "fraction-train": 0.5, "epochs": 1, "batch-size": 8,
    "learning-rate": 0.01, "evaluate-every": 1, "collect-after": 0, "weighting": "num-examples", "name": "run",
    "methods": ",".join(METHODS), "track-metric": "test.local_accuracy", "track-mode": "max", "target": 0.01,
    "text.source": "simulated", "text.world-examples": 24, "text.embedding-width": 24, "text.hidden": 24,
    "text.max-length": 12, "text.vocabulary-size": 500, "text.global-examples": 12,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(worlds, tmp_path_factory, reports):
    with reports():
        return run_inline(SMALL | worlds, tmp_path_factory.mktemp("whole"))


def states(folder, method):
    """What each node kept after its last round, by its key."""
    kept = {}
    for path in sorted(folder.path.glob(f"nodes/*/{glob.escape(method)}/*/*.safetensors")):
        kept[path.parent.name] = load_file(path)
    return kept


def test_every_method_runs_to_its_end_and_ends_in_a_report(whole):
    summary = whole.summary()["methods"]
    assert list(summary) == METHODS
    assert all(facts["refused"] == 0 and facts["rounds"] == 2 for facts in summary.values())
    report = (whole.path / "report.html").read_text()
    assert all(method in report for method in METHODS)


def test_a_message_holds_the_shared_tensors_and_little_else(whole):
    bytes_of = {method: whole.summary()["methods"][method]["final"] for method in METHODS}
    for method in METHODS:
        config = parse(SMALL)
        initial = initial_arrays(config, method)
        private = config.methods[method].private(config.task).patterns
        shared = [array for name, array in initial.items() if not any(fnmatch(name, p) for p in private)]
        size = sum(array.numpy().nbytes for array in shared)
        for direction in ("bytes_per_client_round", "bytes_down_per_client_round"):
            framing = bytes_of[method][direction] - size
            assert 0 < framing < max(0.02 * size, 2500), (method, direction)
    sent = {method: found["bytes_per_client_round"] for method, found in bytes_of.items()}
    assert sent["local"] < sent["lg-fedavg"] < sent["fedvocab"] < sent["fedavg"]
    assert sent["fedrecon"] == pytest.approx(sent["fedavg"], rel=0.001)


def test_the_global_test_is_a_geometric_mean_and_the_local_one_arithmetic(whole):
    for method in METHODS:
        nodes = [row for row in whole.lines("nodes.jsonl") if row["method"] == method and row["phase"] == "evaluate"]
        last = [row["metrics"] for row in nodes if row["round"] == 2]
        assert len(last) == NODES
        final = whole.summary()["methods"][method]["final"]
        of_all = [metrics["test.global_accuracy"] for metrics in last]
        geometric = math.exp(np.mean(np.log(of_all))) if min(of_all) else 0
        assert final["test.global_accuracy"] == pytest.approx(geometric)
        assert final["test.local_accuracy"] == pytest.approx(np.mean([m["test.local_accuracy"] for m in last]))
        assert final["rounds_to_target"] == 1


def test_nodes_keep_what_is_private_and_nothing_else(whole):
    assert states(whole, "fedavg") == states(whole, "fedrecon") == {}
    for method in ("fedvocab", "fedvocab(adapt-epochs=0)", "fedvocab(own-start=true)"):
        kept = states(whole, method)
        assert 1 < len(kept) <= NODES
        assert {name for arrays in kept.values() for name in arrays} == {"embedding.weight"}
        rows = {arrays["embedding.weight"].shape[0] for arrays in kept.values()}
        assert len(rows) > 1  # vocabularies of their own
    assert all("classifier.weight" in arrays for arrays in states(whole, "local").values())


@pytest.mark.slow
def test_a_node_that_was_never_drawn_is_evaluated_from_its_start(worlds, tmp_path):
    changes = {"methods": "fedvocab,fedrecon", "rounds": 1, "fraction_train": 0.25}
    folder = run_inline(with_changes(SMALL | worlds, changes), tmp_path)
    assert len(states(folder, "fedvocab")) == 1
    evaluated = [row for row in folder.lines("nodes.jsonl") if row["phase"] == "evaluate"]
    assert len(evaluated) == 2 * NODES


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(worlds, tmp_path):
    changes = {"methods": "fedvocab(own-start=true),fedrecon", "rounds": 1}
    one, two = (run_inline(with_changes(SMALL | worlds, changes), tmp_path / place) for place in ("one", "two"))
    assert_same(one, two)


@pytest.mark.slow
def test_a_table_of_ones_own_needs_run_config_keys_alone(tmp_path):
    for name, count in (("train", 40), ("test", 12)):
        rows = [
            f"{'cheap' if i % 2 else 'fast'} trains number {i},{'price' if i % 2 else 'speed'}" for i in range(count)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["headline,topic", *rows, ""]))
    own = {
        "text.source": "files", "text.dataset": "mine", "text.text-columns": "headline", "text.label-column": "topic",
        "text.labels": "price,speed", "text.global-examples": 0, "methods": "fedvocab,fedavg", "num-nodes": 2,
        "fraction-train": 1.0, "data-dir": str(tmp_path), "learning-rate": 0.05, "rounds": 4, "evaluate-every": 4,
        "text.alpha": 100, "text.dropout": 0.0,
    }  # fmt: skip
    folder = run_inline(SMALL | own, tmp_path / "runs")
    for facts in folder.summary()["methods"].values():
        assert facts["final"]["test.global_accuracy"] > 0.9  # one word tells the topic


@pytest.mark.slow
def test_columns_of_a_file_without_a_header_are_numbers(tmp_path, capsys):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("price,cheap\nspeed,fast\n" * 8)
    given = SMALL | {
        "text.source": "files", "text.dataset": "mine", "text.text-columns": 2, "text.label-column": 1,
        "text.labels": "price,speed", "data-dir": str(tmp_path), "num-nodes": 2, "rounds": 1, "methods": "fedvocab",
        "fraction-train": 1.0, "name": "numbered",
    }  # fmt: skip
    keys = [f"--set={key}={value}" for key, value in given.items()]
    assert main(["run", "--engine", "inline", "--output-dir", str(tmp_path / "runs"), *keys]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text.label-column": "section"}, "no column section; found headline, topic"),
        ({"text.labels": "price,news"}, "label 'speed'"),
        ({"num-nodes": 100}, "too few for 100 nodes"),
        ({"data-dir": "nowhere"}, "no such folder"),
    ],
)
def test_bad_data_are_told_before_anything_starts(tmp_path, capsys, changes, message):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("headline,topic\n" + "cheap,price\nfast,speed\n" * 4)
    given = {
        "text.source": "files", "text.dataset": "mine", "text.text-columns": "headline", "text.label-column": "topic",
        "text.labels": "price,speed", "data-dir": str(tmp_path), **changes,
    }  # fmt: skip
    keys = [f"--set={key}={value}" for key, value in (SMALL | {"name": "bad"} | given).items()]
    assert main(["run", "--engine", "inline", "--output-dir", str(tmp_path / "runs"), *keys]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs" / "bad").exists()
