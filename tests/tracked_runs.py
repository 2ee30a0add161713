"""Small runs with trackers, and what trackers must have of them."""

import pytest
from small_runs import run_inline

from fedapps.runs.checkpoints import DiskCheckpoints
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tracking import round_values

SMALL = {
    "task": "lqr", "methods": "fedavg,local", "num-nodes": 2, "rounds": 3, "epochs": 1, "evaluate-every": 2,
    "collect-after": 0, "lqr.trajectories": 4, "lqr.horizon": 6, "name": "run",
}  # fmt: skip


class CutError(RuntimeError):
    """The run is cut here."""


def expected(path, method):
    """The values of each round by its number, from the run folder."""
    folder = RunFolder(path, "")
    nodes = [row for row in folder.lines("nodes.jsonl") if row["method"] == method]
    return {
        row["round"]: round_values(row, [node for node in nodes if node["round"] == row["round"]])
        for row in folder.lines("metrics.jsonl")
        if row["method"] == method
    }


def cut_and_resumed(given, folder, *, cut=2):
    """The folder of a run that is cut in round ``cut`` of its first method, after its record, and then resumed."""
    save = DiskCheckpoints.save

    def failing(self, snapshot, *, best):
        if snapshot.round == cut:
            raise CutError
        return save(self, snapshot, best=best)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskCheckpoints, "save", failing)
        with pytest.raises(CutError):
            run_inline(given, folder)
    return run_inline(given | {"resume": True}, folder)
