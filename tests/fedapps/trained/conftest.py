import shutil

import pytest
from small_runs import LQR, run_inline
from trained_runs import trained_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The run folder of each task, by a function of its name."""
    return trained_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def run_with_a_new_robot(tmp_path_factory):
    """A run of four robots, of which robot-03 is held out, by other keys; beside it the folder of that robot alone."""

    def run(keys):
        parent = tmp_path_factory.mktemp("runs")
        more = {"num-nodes": 4, "held-out-nodes": "robot-03", "held-out-epochs": 3, "cache-dir": str(parent / "worlds")}
        folder = run_inline(LQR | more | keys, parent)
        (world,) = (path for path in (parent / "worlds").glob("*") if path.is_dir())
        (parent / "robot").mkdir()
        shutil.copy(world / "robot-03.csv", parent / "robot")
        return folder

    return run
