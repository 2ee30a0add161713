"""Errors of a pipeline are reported before anything runs."""

import pytest
from fedapps.tasks.lqr.world import write_world
from pipelines import RECIPE, run_pipeline
from warm_lqr import WarmLqr, WarmOptions

from fedapps.config.conflicts import conflicts
from fedapps.config.run_config import RunConfig
from fedapps.methods.base import Method


def refused(capsys, recipe, runs, *settings):
    """The message of a pipeline that is refused before it writes anything."""
    before = sorted(runs.rglob("*"))
    assert run_pipeline(recipe, runs, *settings) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(runs.rglob("*")) == before
    return err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rounds = 3", "rounds = 0", "fedapps: stage second: the run config has an error:\n  rounds = 0: must be"),
        ("start =", "begin =", "stage second: the run config has an error:\n  warm-lqr.begin: unknown key; known keys"),
        ("rounds = 3", "rounds = 3\ndata-dir = 'nowhere'", "nowhere': no such folder; give the folder with the data"),
        ('"{first}', '"{second}', "stage second: warm-lqr.start = '{second}/checkpoints/fedavg/round-000002.safetensors"
         "': {second} must name an earlier stage; earlier stages: first\n"),
        ('"{first}', '"{third}', "{third} must name an earlier stage; earlier stages: first\n"),
        ("[pipeline.first]", "[pipeline.first.warm-lqr]\nstart = '{second}'", "two.toml, stage first: warm-lqr.start = "
         "'{second}': {second} must name an earlier stage; this is the first stage\n"),
    ],
)  # fmt: skip
def test_an_error_in_any_stage_is_reported_before_the_first_one_runs(tmp_path, capsys, old, new, said):
    (tmp_path / "two.toml").write_text(RECIPE.replace(old, new))
    assert said in refused(capsys, tmp_path / "two.toml", tmp_path / "runs", "name=pipe")


def test_the_data_of_a_later_stage_that_awaits_no_file_are_read_before_the_first_one_runs(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "two.toml").write_text(f"{RECIPE}\n[pipeline.third]\ndata-dir = '{tmp_path / 'data'}'\n")
    err = refused(capsys, tmp_path / "two.toml", tmp_path / "runs", "name=pipe")
    assert err.startswith(f"fedapps: stage third: {tmp_path / 'data'}: expected files robot-*.csv")


def test_the_data_of_a_stage_that_awaits_a_file_are_read_when_it_begins(tmp_path, place):
    """Nodes of warm-lqr need the file to read their data."""
    write_world(tmp_path / "data", 2, seed=1, count=4, horizon=6)
    assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe", f"data-dir={tmp_path / 'data'}") == 0


def test_set_applies_to_all_stages(tmp_path, place, capsys):
    err = refused(capsys, place / "two.toml", tmp_path / "runs", "name=pipe", "batch-size=0")
    assert err == (
        "fedapps: stage first: the run config has an error:\n  batch-size = 0: must be a whole number at least 1\n"
    )
    err = refused(capsys, place / "two.toml", tmp_path / "runs", "name=pipe", "warm-lqr.start={first}/best")
    assert "stage first: warm-lqr.start = '{first}/best': {first} must name an earlier stage; this is the first" in err


def test_an_existing_folder_is_kept(whole, place, capsys):
    err = refused(capsys, place / "two.toml", place / "whole", "name=pipe")
    assert err == (
        f"fedapps: {whole} exists: choose another name, remove the folder, or set resume = true to continue the "
        "pipeline\n"
    )


def test_only_a_pipeline_that_was_started_with_the_same_config_is_resumed(whole, place, tmp_path, capsys):
    err = refused(capsys, place / "two.toml", tmp_path / "runs", "name=pipe", "resume=true")
    assert err == (
        f"fedapps: resume = true, but no stage of the pipeline is in {tmp_path / 'runs' / 'pipe'}: set name and "
        "output-dir to those of the pipeline to resume\n"
    )
    err = refused(capsys, place / "two.toml", place / "whole", "name=pipe", "resume=true", "seed=1")
    assert err.startswith(f"fedapps: stage first: the run in {whole / 'first'} has a different config; ")


def test_the_folder_of_another_run_is_never_resumed_as_a_pipeline(place, tmp_path, capsys):
    """Its folder of private states is not taken for that of a stage."""
    assert run_pipeline(f"{place / 'two.toml'}:first", tmp_path / "runs", "name=single") == 0
    (tmp_path / "nodes.toml").write_text(RECIPE.replace("first", "nodes"))
    (tmp_path / "runs" / "single" / "nodes").mkdir(exist_ok=True)
    capsys.readouterr()
    err = refused(capsys, tmp_path / "nodes.toml", tmp_path / "runs", "name=single", "resume=true")
    assert "no stage of the pipeline is in" in err


class NeedsModel(Method):
    """A method that looks at the model."""

    name = "needs-model"
    needs_model = True

    def private(self, task):
        task.build_model()
        return super().private(task)


def test_no_model_is_built_before_its_file_exists():
    task, run_config = WarmLqr(WarmOptions(start="nowhere")), RunConfig(collect_after=0, task="warm-lqr")
    methods, runs = {"needs-model": NeedsModel()}, {"needs-model": run_config}
    assert list(conflicts(run_config, task, methods, runs, files_exist=False)) == []
    assert list(conflicts(run_config, task, methods, runs)) == [
        ({"task", "methods"}, "warm-lqr.start = 'nowhere': no such file")
    ]
