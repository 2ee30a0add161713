"""The pipeline that the tests run."""

import time

import pytest
from pipelines import RECIPE, run_pipeline
from warm_lqr import warm_lqr


@pytest.fixture(autouse=True, scope="module")
def _task():
    """The task is known."""
    with warm_lqr():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the recipe."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "two.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def whole(place):
    """The folder of a pipeline that ran to its end."""
    assert run_pipeline(place / "two.toml", place / "whole", "name=pipe") == 0
    return place / "whole" / "pipe"


@pytest.fixture
def clock(monkeypatch):
    """The seconds of the clock, to be set."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now
