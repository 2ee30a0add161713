"""docs/use.md: its code and its commands run, one after another, on small runs."""

import io
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from striped_places import write_places
from trained_runs import trained_runs

from fedapps.cli.commands import main

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / "use.md").read_text(), re.DOTALL | re.MULTILINE)
RUNS = {"texts": "text", "places": "vpr", "cars": "driving", "scenes": "social", "robots": "lqr", "houses": "vln"}


@pytest.fixture
def reader(tmp_path, tmp_path_factory, monkeypatch):
    """The folder of a reader of the page, with runs and with data."""
    monkeypatch.chdir(tmp_path)
    run_of = trained_runs(tmp_path_factory)
    Path("runs").mkdir()
    for name, task in RUNS.items():
        Path("runs", name).symlink_to(run_of(task).path)
    for name in ("map", "photos", "robot-9"):
        Path(name).mkdir()
    write_places(Path("map"), cities=1, spots=4, seed=1)
    for path in Path("map").glob("*-query-0-*.png"):
        shutil.copy(path, "photos")
    shutil.copy(world("robots") / "robot-01.csv", Path("robot-9", "robot-09.csv"))
    Path("houses").symlink_to(run_of("vln").path.parent)
    shutil.copy(min(world("scenes").glob("*.json")), "scenes.json")
    Path("mails.txt").write_text("The striker scored twice.\nShares fell by 12 %.\n")


def world(run):
    """The simulated data of a run."""
    config = tomllib.loads(Path("runs", run, "config.toml").read_text())
    return next(path for path in Path(config["cache-dir"]).iterdir() if path.is_dir())


@pytest.mark.slow
@pytest.mark.usefixtures("reader")
def test_the_page_runs(monkeypatch, capsys):
    names = {}
    for language, text in BLOCKS:
        if language == "python":
            exec(text, names)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            assert program == "fedapps"
            if "<" in words:
                monkeypatch.setattr("sys.stdin", io.StringIO(Path(words.pop()).read_text()))
                words.pop()
            assert main(words) == 0, line
    model, again = names["model"], names["again"]
    assert model.predict(["a"]).probabilities.tolist() == again.predict(["a"]).probabilities.tolist()
    assert names["matches"].position.shape == (4, 3, 2)
    assert names["control"] == pytest.approx(names["robot"].control([[1.0, 0.5]]), abs=1e-6)
    assert len(names["fedapps"].load("exports/places").locate("photos").position) == 4
    printed = capsys.readouterr().out
    assert printed.count('"label"') == 2
    assert "apfl       all nodes" in printed
    assert len(Path("labels.csv").read_text().splitlines()) == 3
