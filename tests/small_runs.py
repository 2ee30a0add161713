"""Whole runs in one process."""

from contextlib import contextmanager

import pytest
from fedapps.sim.inprocess import run_inprocess

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import app as server_app
from fedapps.config.parsing import parse
from fedapps.launch.inputs import resolve
from fedapps.runs.checkpoints import DiskCheckpoints
from fedapps.runs.run_folder import RunFolder


def run_inline(given, folder, node_configs=()):
    """Run the app on a run config that has a name; the run's folder, in ``folder``."""
    config = parse(resolve(given, str(folder)))
    run_inprocess(
        server_app, client_app, num_nodes=config.run.num_nodes, node_configs=node_configs, run_config=config.flat(),
        errors="reply", batch=config.run.node_batch,
    )  # fmt: skip
    return RunFolder(folder / config.run.name, "")


def with_changes(given, changes):
    """A run config with other values; keys may be written as Python's names."""
    return given | {key.replace("_", "-"): value for key, value in changes.items()}


@contextmanager
def power_cut(number, method="", *, while_saving=False):
    """The block must end with a power cut, before a round's lines are recorded or before its checkpoint is saved.

    Without ``method``, in the round of this number of any method.
    """
    kind, name = (DiskCheckpoints, "save") if while_saving else (RunFolder, "record")
    write = getattr(kind, name)

    def cut(self, *given, **options):
        label = self.folder.name if while_saving else given[0]
        if given[-1].round == number and method in ("", label):
            raise ConnectionError("power cut")
        return write(self, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, cut)
        with pytest.raises(ConnectionError, match="power cut"):
            yield


#: A federation of three robots, a few milliseconds a round.
LQR = {
    "task": "lqr", "num-nodes": 3, "rounds": 3, "epochs": 1, "batch-size": 16, "learning-rate": 0.01,
    "spfl.epochs": 1, "apfl.epochs": 1, "spfl.learning-rate": 0.01, "apfl.learning-rate": 0.01, "collect-after": 0,
    "evaluate-every": 1,
    "lqr.trajectories": 4, "lqr.horizon": 6, "name": "run", "h-fl.groups": "control-weight",
    "h-fl.intervals": "2",
}  # fmt: skip


def timed_runs(folder, speeds, **keys):
    """A function that runs robots in ``folder`` by a name and keys; ``speeds`` are the seconds of their steps."""
    rows = "".join(f"{name},{speed},,\n" for name, speed in speeds.items())
    (folder / "devices.csv").write_text("device,speed,up,down\n" + rows)
    given = LQR | {"methods": "fedavg", "clock-devices": str(folder / "devices.csv")}

    def run(name, **changes):
        return run_inline(with_changes(given, keys | {"name": name} | changes), folder)

    return run
