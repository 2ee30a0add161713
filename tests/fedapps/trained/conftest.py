import pytest
from trained_runs import trained_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The run folder of each task, by a function of its name."""
    return trained_runs(tmp_path_factory)
