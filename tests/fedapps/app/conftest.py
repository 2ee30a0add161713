"""A small run of the app in one process."""

import pytest
from small_runs import LQR, run_inline, with_changes


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}


@pytest.fixture
def federate(tmp_path, worlds):
    """Run the app with some keys changed; the run's folder."""

    def run(place="run", node_configs=(), **changes):
        return run_inline(with_changes(LQR | worlds, changes), tmp_path / place, node_configs)

    return run
