import pytest
from trained_runs import trained_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The run folder of each task, by a function of its name."""
    parent = tmp_path_factory.mktemp("trained")
    return lambda task: trained_run(task, parent)
