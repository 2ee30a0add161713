"""Names of the folders of jobs: two jobs of the same second get one each, and a name that was asked for is kept."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import LQR

from fedapps.audit import run as audit
from fedapps.comparison import compare
from fedapps.launch.launch import Runner, launch
from fedapps.launch.plan import new_folder
from fedapps.launch.recipe import launch_recipe
from fedapps.runs.run_folder import RunFolder
from fedapps.tuning import tune

STAMP = "20260102-030405"
RECIPE = """task = "lqr"
collect-after = 0
num-nodes = 2
"""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still."""
    monkeypatch.setattr(time, "strftime", lambda *_: STAMP)


@dataclass(frozen=True)
class Opening(Runner):
    """Opens the run folder, as a ServerApp does, and does nothing else."""

    fails: bool = False

    def check(self, config):
        RunFolder.check(config, run_id=0)
        if self.fails:
            raise ValueError("no data")

    def check_data(self, config):
        pass

    def run(self, config):
        RunFolder.open(config, run_id=0)


class Unreachable(Opening):
    """Fails before the run folder exists."""

    def run(self, config):
        raise ValueError("no cluster")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_jobs_that_start_at_once_get_a_folder_each(tmp_path):
    def make(_):
        with new_folder(tmp_path, "", "job") as folder:
            return folder.name

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(40)))
    assert sorted(made) == names(tmp_path) == sorted(["job", *(f"job-{number}" for number in range(2, 41))])


def test_two_runs_of_the_same_second_have_a_folder_each_and_one_that_fails_leaves_none(tmp_path):
    given = {key: value for key, value in LQR.items() if key != "name"}
    for _ in range(2):
        launch(given, Opening(), str(tmp_path))
    with pytest.raises(ValueError, match="no data"):
        launch(given, Opening(fails=True), str(tmp_path))
    assert names(tmp_path) == [f"lqr-{STAMP}", f"lqr-{STAMP}-2"]


def test_a_name_that_was_asked_for_is_kept_and_refused_if_it_is_taken(tmp_path):
    launch(LQR | {"name": "mine"}, Opening(), str(tmp_path))
    with pytest.raises(ValueError, match=r"mine exists: choose another name, remove the folder, or set resume"):
        launch(LQR | {"name": "mine"}, Opening(), str(tmp_path))
    assert names(tmp_path) == ["mine"]


def test_a_name_that_no_folder_can_have_is_refused_with_its_key(tmp_path):
    for name in ("a" * 256, "a\nb"):
        with (
            pytest.raises(ValueError, match=r"^name = '.*': must have at most 255 bytes and no control characters"),
            new_folder(tmp_path, name),
        ):
            pass
    assert names(tmp_path) == []


def test_two_pipelines_of_the_same_second(tmp_path, monkeypatch):
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE + 'methods = "sfl"\n[pipeline.first]\nseed = 1\n')
    monkeypatch.setattr("fedapps.launch.recipe.summary_table", lambda folder: "")
    for runner in (Opening(fails=True), Unreachable()):
        with pytest.raises(ValueError, match=r"no data|no cluster"):
            launch_recipe(recipe, {}, runner, str(tmp_path / "runs"))
        assert names(tmp_path) == ["two.toml"]
    for _ in range(2):
        launch_recipe(recipe, {}, Opening(), str(tmp_path / "runs"))
    assert names(tmp_path / "runs") == [f"two-{STAMP}", f"two-{STAMP}-2"]


def a_comparison(recipe, output, **overrides):
    compare.compare_recipe(recipe, methods=["sfl"], seeds=1, overrides=overrides, output_dir=output)


def a_tuning(recipe, output, **overrides):
    tune.tune_recipe(recipe, trials=2, methods=["sfl"], overrides=overrides, output_dir=output, ranges=["lr=0.1..1"])


def an_audit(recipe, output, **overrides):
    audit.audit_recipe(recipe, SimpleNamespace(sentences=1), overrides=overrides, output_dir=output)


JOBS = {"compare": (compare, a_comparison), "tune": (tune, a_tuning), "audit": (audit, an_audit)}


@pytest.mark.parametrize("kind", JOBS)
def test_two_jobs_of_the_same_second_and_one_with_a_name(kind, tmp_path, monkeypatch):
    (module, job), folders = JOBS[kind], []
    monkeypatch.setattr(module, "_carry_out", lambda *given: folders.extend(p for p in given if isinstance(p, Path)))
    monkeypatch.setattr(module, "_check", lambda *_: None, raising=False)
    monkeypatch.setattr(module, "victim_data", lambda *_: None, raising=False)
    recipe, output = tmp_path / "small.toml", str(tmp_path / "runs")
    recipe.write_text(RECIPE)
    job(recipe, output)
    job(recipe, output)
    job(recipe, output, name="mine")
    with pytest.raises(ValueError, match=r"mine exists: .*choose another name"):
        job(recipe, output, name="mine")
    head = f"{kind}-small-{STAMP}"
    assert [folder.name for folder in folders] == [head, f"{head}-2", "mine"]
