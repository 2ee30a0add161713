"""Whole runs of nodes that classify images: the degenerate case, nodes that train together, and own folders."""

import numpy as np
import pytest
from fedapps.clients.data import loaded_data
from fedapps.tasks.images import image_set
from fedapps.tasks.images.task import _common
from image_files import drawn, write_folders
from joint_jobs import counted_passes
from small_runs import run_inline
from trained_runs import last_evaluation

from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.deployment.fleet import FleetData
from fedapps.launch.launch import Simulation, launch

GIVEN = {
    "task": "images", "num-nodes": 4, "rounds": 2, "epochs": 1, "batch-size": 32, "learning-rate": 0.1,
    "optimizer": "sgd", "weighting": "num-examples", "evaluate-every": 2, "collect-after": 0, "name": "run",
    "images.model": "mlp",
}  # fmt: skip


def test_one_node_is_centralised_training(worlds, tmp_path):
    """With batches of all examples, whose order does not matter."""
    given = GIVEN | worlds | {"num-nodes": 1, "methods": "fedavg,centralized", "batch-size": 2000, "epochs": 3}
    folder = run_inline(given | {"images.partition": "iid"}, tmp_path)
    one, central = (next(iter(last_evaluation(folder, method).values())) for method in ("fedavg", "centralized"))
    assert {name: one[name] for name in central} == pytest.approx(central, abs=1e-5)
    assert one["test.global_accuracy"] > 0.3  # six steps, from .1


@pytest.mark.slow
def test_nodes_that_train_together_train_as_they_do_alone(worlds, tmp_path, monkeypatch):
    passes = counted_passes(monkeypatch)
    given = (
        GIVEN | worlds | {"methods": "fedavg", "rounds": 1, "evaluate-every": 1, "steps": 2, "images.model": "resnet8"}
    )
    alone = run_inline(given, tmp_path)
    assert not passes
    together = run_inline(given | {"node-batch": 4, "name": "together"}, tmp_path)
    assert sum(passes) == 4 * 2
    found = last_evaluation(together, "fedavg")
    for node, metrics in last_evaluation(alone, "fedavg").items():
        assert found[node]["test.global_loss"] == pytest.approx(metrics["test.global_loss"], rel=1e-3)


def test_nodes_with_folders_of_their_own_that_lack_classes(tmp_path):
    for node, classes in enumerate(([0, 1], [1, 2], [0, 1, 2])):
        pixels, places = drawn(30, classes=len(classes))
        folder = tmp_path / f"robot-{node}"
        write_folders(folder / "train", pixels, np.array(classes)[places])
        write_folders(folder / "common", *drawn(6))
    given = GIVEN | {
        "num-nodes": 3, "methods": "local,fedavg", "images.dataset": "pets", "images.labels": "cat,dog,owl",
        "images.height": 6, "images.width": 5, "images.normalise": "data", "images.augment": "crop-flip",
    }  # fmt: skip
    folders = [{"data-dir": str(tmp_path / f"robot-{node}")} for node in range(3)]
    folder = run_inline(given, tmp_path, folders)
    found = last_evaluation(folder, "fedavg")
    assert sorted(found) == ["robot-0", "robot-1", "robot-2"]
    assert {metrics["test.global_accuracy.count"] for metrics in found.values()} == {6}
    assert all(0 < metrics["test.local_accuracy.count"] < 30 for metrics in found.values())


def test_a_run_decodes_each_image_once_and_a_dry_run_those_of_one_node(tmp_path, monkeypatch):
    write_folders(tmp_path / "data" / "train", *drawn(80, classes=2))
    write_folders(tmp_path / "data" / "test", *drawn(10, classes=2))
    names = []
    decode = image_set.decoded
    monkeypatch.setattr(image_set, "decoded", lambda content, name: names.append(name) or decode(content, name))
    own = {"images.dataset": "own", "images.classes": 2, "images.height": 8, "images.partition": "iid"}
    given = GIVEN | own | {"methods": "fedavg", "data-dir": str(tmp_path / "data")}
    dry = [f"--set={key}={value}" for key, value in given.items() if key != "task"]
    assert main(["run", "images-digits", "--dry-run", *dry]) == 0
    assert len(names) == len(set(names)) == 80 / 4 + 10
    names.clear()
    loaded_data.clear()
    _common.cache_clear()
    launch(given, Simulation("inline"), str(tmp_path / "runs"))
    assert len(names) == len(set(names)) == 80 + 10


@pytest.mark.parametrize(
    ("metric", "common", "refused"),
    [("test.global_accuracy", [], True), ("test.global_accuracy", [1], False), ("test.local_accuracy", [], False)],
)
def test_a_metric_that_no_node_can_report_is_refused_before_the_first_round(metric, common, refused, tmp_path):
    for node in range(2):
        folder = tmp_path / f"robot-{node}"
        write_folders(folder / "train", *drawn(30))
        if node in common:
            write_folders(folder / "common", *drawn(6))
    given = GIVEN | {
        "num-nodes": 2, "methods": "fedavg", "images.dataset": "pets", "images.labels": "cat,dog,owl",
        "images.height": 6, "images.width": 5, "track-metric": metric, "track-mode": "max",
    }  # fmt: skip
    folders = [
        {"data-dir": str(tmp_path / f"robot-{node}"), "state-dir": str(tmp_path / f"state-{node}")} for node in range(2)
    ]
    if not refused:
        assert last_evaluation(run_inline(given, tmp_path, folders), "fedavg")
        return
    reason = 'track-metric = .*common to all of them; set track-metric = "test.local_accuracy"'
    run_inline(given | {"name": "before", "track-metric": ""}, tmp_path, folders)
    for place in ({"name": "run"}, {"name": "after", "start": "before"}):
        with pytest.raises(ValueError, match=reason):
            run_inline(given | place, tmp_path, folders)
        assert not (tmp_path / place["name"] / "metrics.jsonl").exists(), "nobody has trained"
    with pytest.raises(ValueError, match=reason):
        FleetData.read(parse(given), None, ",".join(folder["data-dir"] for folder in folders))


def test_check_node_says_what_the_node_does_not_report(tmp_path, capsys):
    write_folders(tmp_path / "robot-0" / "train", *drawn(30))
    keys = ("images.dataset=pets", "images.labels=cat,dog,owl", "images.height=6", "images.width=5", "methods=fedavg")
    where = ["--data-dir", str(tmp_path / "robot-0"), "--state-dir", str(tmp_path / "state")]
    assert main(["check-node", "images-digits", *where, *(f"--set={key}" for key in keys)]) == 0
    out = capsys.readouterr().out
    assert "note:   track-metric = 'test.global_accuracy': nodes with data of their own report it only with" in out
