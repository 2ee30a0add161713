"""The pipeline that the tests run, and the clock and the screen of its progress."""

import io
import time

import pytest
from pipelines import RECIPE, run_pipeline
from rich.console import Console
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


@pytest.fixture
def screen(monkeypatch):
    """A function of what the console of the progress is like, which gives what is printed on it."""

    def of(**settings):
        printed = io.StringIO()
        monkeypatch.setattr("fedapps.launch.progress.standard_output", lambda: Console(file=printed, **settings))
        return printed

    return of
