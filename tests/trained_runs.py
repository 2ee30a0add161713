"""Small runs of every task, whose models are then used: made once for all tests of a session."""

from functools import cache
from pathlib import Path

import pytest
from drawn_houses import run_keys
from drawn_houses import write_world as write_houses
from small_runs import LQR, run_inline
from striped_places import write_places

from fedapps.runs.run_folder import RunFolder

#: The methods of each run: one that shares all, one whose evaluation trains or that has several models, and one with
#: private state.
RUNS = {
    "lqr": "fedavg,apfl,clustered,h-fl,local",
    "images": "fedavg,spfl,local",
    "text": "fedavg,fedavg(logit-adjustment=1),fedrecon,fedvocab",
    "driving": "fedavg,apfl,local",
    "social": "fedavg,fedweit,local-apd",
    "vpr": "fedavg,spfl,local",
    "vln": "fedavg,local",
}
_GIVEN = {
    "lqr": LQR | {"track-metric": "test.total_loss"},
    "images": {
        "task": "images", "num-nodes": 3, "rounds": 2, "steps": 2, "batch-size": 8, "learning-rate": 0.1,
        "optimizer": "sgd", "evaluate-every": 1, "collect-after": 0, "spfl.epochs": 1, "images.model": "mlp",
        "images.global-examples": 30,
    },
    "text": {
        "task": "text", "num-nodes": 3, "rounds": 2, "epochs": 1, "batch-size": 8, "learning-rate": 0.01,
        "evaluate-every": 1, "collect-after": 0, "text.source": "simulated", "text.world-examples": 16,
        "text.embedding-width": 8, "text.hidden": 8, "text.max-length": 12, "text.vocabulary-size": 100,
        "text.global-examples": 6,
    },
    "driving": {
        "task": "driving", "num-nodes": 2, "rounds": 2, "epochs": 1, "evaluate-every": 1, "collect-after": 1,
        "apfl.epochs": 1, "driving.samples": 2, "driving.sessions-train": 2, "driving.sessions-test": 1,
        "driving.hidden": 4, "driving.latent": 2,
    },
    "social": {
        "task": "social", "num-nodes": 2, "rounds": 4, "epochs": 1, "batch-size": 16, "learning-rate": 0.01,
        "evaluate-every": 1, "collect-after": 0, "social.source": "simulated", "social.participants": "a,b;c,d",
        "social.world-scenes": 20, "social.hidden": 4, "social.layers": 2,
    },
    "vpr": {
        "task": "vpr", "num-nodes": 3, "rounds": 2, "steps": 1, "batch-size": 2, "evaluate-every": 1,
        "collect-after": 0, "spfl.epochs": 1, "vpr.backbone": "squeezenet1_1-stride8", "vpr.height": 24,
        "vpr.width": 32, "vpr.radius": 1000.0, "vpr.negatives": 2,
    },
}  # fmt: skip


def trained_runs(tmp_path_factory):
    """A function of the name of a task that gives its run folder, the same for all tests of a process."""
    parent = tmp_path_factory.getbasetemp() / "trained-runs"
    parent.mkdir(exist_ok=True)
    return lambda task: trained_run(task, parent)


@cache
def trained_run(task: str, parent: Path) -> RunFolder:
    """The run of a task, in a folder below ``parent``. It draws no report."""
    folder = parent / task
    folder.mkdir()
    given = dict(_GIVEN.get(task, {}))
    if task == "vpr":
        write_places(folder, cities=4, spots=4)
        given["data-dir"] = str(folder)
    if task == "vln":
        write_houses(folder, seen=("houseA", "houseB"), unseen=("houseC",))
        given = run_keys(folder, stage="agent", feature_cache=str(folder / "cache")) | {"num-nodes": 3, "rounds": 1}
    given |= {"name": "run", "methods": RUNS[task], "cache-dir": str(folder / "worlds")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapps.app.server_app.write_report", lambda folder: folder)
        return run_inline(given, folder)


def world_of(folder: RunFolder) -> Path:
    """The folder with the simulated data of a run, whose worlds are its own."""
    (world,) = (path for path in (folder.path.parent / "worlds").iterdir() if path.is_dir())
    return world


def last_evaluation(folder: RunFolder, method: str) -> dict[str, dict[str, object]]:
    """What each node reported in the last evaluation of a method, by its key."""
    rows = [row for row in folder.lines("nodes.jsonl") if (row["method"], row["phase"]) == (method, "evaluate")]
    last = max(row["round"] for row in rows)
    return {row["node"]: row["metrics"] for row in rows if row["round"] == last}
