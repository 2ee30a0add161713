"""Pipelines run stage after stage, resume where they were cut, and give the bits of their stages alone."""

import re
from contextlib import contextmanager

import pytest
from fedapps.tasks.lqr.world import write_world
from pipelines import RECIPE, assert_same_results, results, run_pipeline
from toys import same_bits
from warm_lqr import WarmLqr, WarmOptions

from fedapps.cli.commands import main
from fedapps.config.conflicts import conflicts
from fedapps.config.run_config import RunConfig
from fedapps.launch.launch import execute
from fedapps.methods.base import Method
from fedapps.runs.owner import owned
from fedapps.runs.run_folder import RunFolder

# -- running ---------------------------------------------------------------------------------------------------


def test_every_stage_has_a_run_folder_and_the_end_names_each_report(place, capsys):
    assert run_pipeline(place / "two.toml", place / "printed", "name=pipe") == 0
    folder = place / "printed" / "pipe"
    assert {path.name for path in folder.iterdir()} == {"first", "second", "pipeline.json"}
    out = capsys.readouterr().out
    assert out.startswith(f"2 stages in {folder}; if interrupted, repeat the command with --set name=pipe ")
    lines = out.splitlines()
    assert lines.index("stage 1 of 2: first") < lines.index("stage 2 of 2: second")
    end = out[out.index("\nfinished 2 stages in ") :]
    for stage, methods in {"first": ["fedavg"], "second": ["fedavg", "local"]}.items():
        assert f"\n{stage}: {folder / stage / 'report.html'}\n  method" in end
        assert (folder / stage / "report.html").exists()
        assert list(RunFolder(folder / stage, "").summary()["methods"]) == methods
    assert end.count("state_loss") == 2
    assert len(re.findall(r"(?m)^  (fedavg|local) ", end)) == 3


def test_a_stage_uses_the_file_of_an_earlier_one(tmp_path, place):
    """A second stage that learns nothing ends where the first one ended, and not where that one started."""
    (tmp_path / "two.toml").write_text(RECIPE.replace("rounds = 3", "rounds = 3\nlearning-rate = 1e-30"))
    assert run_pipeline(tmp_path / "two.toml", place / "idle", "name=pipe") == 0
    first, second = (results(place / "idle" / "pipe" / stage)["fedavg"] for stage in ("first", "second"))
    before, after = ({n: a for n, a in arrays.items() if n.startswith("shared.")} for arrays, _ in (first, second))
    assert before
    assert same_bits(before, after)
    (_, early), (_, late) = first[1]
    assert early != late
    assert [evaluated for _, evaluated in second[1]] == [late] * 3


def test_a_stage_alone_gives_the_same_bits(whole, place):
    assert run_pipeline(f"{place / 'two.toml'}:first", place / "alone", "name=first") == 0
    assert_same_results(results(place / "alone" / "first"), results(whole / "first"))
    file = place / "alone" / "first" / "checkpoints" / "fedavg" / "round-000002.safetensors"
    assert run_pipeline(f"{place / 'two.toml'}:second", place / "alone", "name=second", f"warm-lqr.start={file}") == 0
    assert_same_results(results(place / "alone" / "second"), results(whole / "second"))


def test_without_a_name_the_folder_has_the_name_of_the_recipe(place):
    assert run_pipeline(place / "two.toml", place / "unnamed", "rounds=2") == 0
    (folder,) = (place / "unnamed").iterdir()
    assert re.fullmatch(r"two-\d{8}-\d{6}", folder.name)


# -- resuming --------------------------------------------------------------------------------------------------


def cut(monkeypatch, stage, server_round):
    """Interrupt the pipeline when a round of a stage has been trained."""
    record = RunFolder.record

    def interrupted(self, method, label, report):
        record(self, method, label, report)
        if (self.path.name, report.round) == (stage, server_round):
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "record", interrupted)


@pytest.mark.slow
@pytest.mark.parametrize("server_round", [1, 2])
def test_a_pipeline_that_was_cut_resumes_with_the_same_bits(whole, tmp_path, place, server_round, capsys):
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, "second", server_round)
        assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe") == 130
    folder = tmp_path / "runs" / "pipe"
    before = {path: path.stat().st_mtime_ns for path in (folder / "first").rglob("*")}
    label = (folder / "second" / "label").read_text()
    capsys.readouterr()
    assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe", "resume=true") == 0
    assert "\nstage 1 of 2: first has already run to its end\n\nstage 2 of 2: second\n" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "first").rglob("*")}, "a finished stage"
    assert (folder / "second" / "label").read_text() == label, "the same run"
    for stage in ("first", "second"):
        assert_same_results(results(folder / stage), results(whole / stage))


@pytest.mark.slow
def test_a_pipeline_that_was_cut_in_its_first_stage_goes_on_with_the_later_ones(whole, tmp_path, place):
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, "first", 1)
        assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe") == 130
    folder = tmp_path / "runs" / "pipe"
    assert not (folder / "second").exists()
    (folder / "second").mkdir()
    (folder / "second" / "label").write_text("cut before its config was written")
    with owned(folder):
        assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe", "resume=true") == 2
    assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe", "resume=true") == 0
    for stage in ("first", "second"):
        assert_same_results(results(folder / stage), results(whole / stage))


@pytest.mark.slow
def test_a_finished_stage_without_a_report_is_resumed(tmp_path, place, capsys):
    assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe") == 0
    report = tmp_path / "runs" / "pipe" / "first" / "report.html"
    report.unlink()
    capsys.readouterr()
    assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe", "resume=true") == 0
    out = capsys.readouterr().out
    assert "stage 1 of 2: first\n" in out
    assert "stage 2 of 2: second has already run to its end" in out
    assert report.exists()


def test_the_first_stage_that_fails_ends_the_pipeline(tmp_path, place, capsys):
    failing = place / "failing.toml"
    failing.write_text(RECIPE.replace("[pipeline.first]", "[pipeline.first]\nmin-replies = 2\nlearning-rate = 1e30"))
    assert run_pipeline(failing, tmp_path / "runs", "name=pipe") == 1
    err = capsys.readouterr().err
    assert err.endswith(
        "the pipeline failed in stage 1 of 2: first; to resume it, repeat the command with --set name=pipe --set "
        "resume=true\n"
    )
    assert not (tmp_path / "runs" / "pipe" / "second").exists()


@pytest.mark.slow
def test_a_file_that_no_stage_wrote_is_named_when_its_stage_begins(whole, tmp_path, place, capsys):
    wrong = place / "wrong.toml"
    wrong.write_text(RECIPE.replace("round-000002", "best"))
    assert run_pipeline(wrong, tmp_path / "runs", "name=pipe") == 2
    file = tmp_path / "runs" / "pipe" / "first" / "checkpoints" / "fedavg" / "best.safetensors"
    assert capsys.readouterr().err == (
        f"fedapps: stage 2 of 2: second: warm-lqr.start = '{file}': no such file, but all earlier stages have "
        "run to their end; name a file that one of them wrote\n"
        "to resume the pipeline, repeat the command with --set name=pipe --set resume=true\n"
    )
    assert run_pipeline(place / "two.toml", tmp_path / "runs", "name=pipe", "resume=true") == 0, "with the right file"
    assert_same_results(results(tmp_path / "runs" / "pipe" / "second"), results(whole / "second"))


# Commands take a stage of a pipeline, and a fleet runs all of them.


@pytest.mark.parametrize(
    "command",
    [["compare"], ["nodes"], ["audit"], ["check-node", "--data-dir", "."]],
    ids=["compare", "nodes", "audit", "check-node"],
)
def test_commands_for_one_run_ask_for_a_stage(command, place, capsys):
    recipe = place / "two.toml"
    assert main([*command, str(recipe)]) == 2
    assert capsys.readouterr().err == (
        f"fedapps: recipe {recipe}: a pipeline of 2 runs; name one of its stages as RECIPE:STAGE: {recipe}:first, "
        f"{recipe}:second\n"
    )
    assert main([*command, f"{recipe}:second"]) == 2
    file = "{first}/checkpoints/fedavg/round-000002.safetensors"
    assert capsys.readouterr().err == (
        f"fedapps: recipe {recipe}:second: warm-lqr.start = '{file}': {{first}} is the run folder of another stage; "
        f"add --set warm-lqr.start=FILE, or run the whole pipeline with `fedapps run {recipe}`\n"
    )


@pytest.fixture
def in_turn(monkeypatch):
    """The runs of a comparison are executed in this process, one after another."""
    work_off = lambda cells, work, **_: [work(**cell) for cell in cells]  # noqa: E731
    monkeypatch.setattr("fedapps.comparison.compare.run_matrix", work_off)


@pytest.mark.slow
def test_a_stage_is_compared_as_a_recipe(place, tmp_path, in_turn):
    given = ["--seeds", "1", "--output-dir", str(tmp_path), "--set", f"cache-dir={place / 'worlds'}"]
    assert main(["compare", f"{place / 'two.toml'}:first", *given]) == 0
    (folder,) = tmp_path.glob("compare-*")
    assert folder.name.startswith("compare-two-first-")
    assert '"recipe": "two:first"' in (folder / "compare.json").read_text()


@pytest.mark.slow
def test_each_run_of_a_comparison_starts_from_the_run_of_its_method_and_seed(place, tmp_path, in_turn):
    def compare(stage, name, *settings):
        given = ["--methods", "fedavg", "--output-dir", str(tmp_path / name), "--set", f"cache-dir={place / 'worlds'}"]
        assert main(["compare", f"{place / 'two.toml'}:{stage}", *given, *settings]) == 0
        (folder,) = (tmp_path / name).glob("compare-*")
        return folder

    first = compare("first", "first", "--seeds", "2")
    file = "fedavg-1/checkpoints/fedavg/round-000002.safetensors"
    pattern = file.replace("fedavg", "{method}").replace("-1", "-{seed}")
    every = compare("second", "every", "--seeds", "2", "--set", f"warm-lqr.start={first / pattern}")
    alone = compare("second", "alone", "--seeds", "1", "--first-seed", "1", "--set", f"warm-lqr.start={first / file}")
    assert_same_results(results(every / "fedavg-1"), results(alone / "fedavg-1"))


def test_a_fleet_runs_stage_after_stage(whole, place, tmp_path, monkeypatch):
    """The processes of the fleet are replaced; each stage has a fleet folder."""
    fleets = []

    @contextmanager
    def deployment(folder, *, tls, auth):
        assert (folder / "owner.json").exists()
        fleets.append((folder, tls, auth))
        yield None

    monkeypatch.setattr("fedapps.deployment.fleet.deployment", deployment)
    monkeypatch.setattr(
        "fedapps.deployment.fleet._deploy_and_run", lambda config, data, fleet: execute(config, "inline")
    )
    given = ["--output-dir", str(tmp_path), "--set", f"cache-dir={place / 'worlds'}", "--set", "name=pipe"]
    assert main(["fleet", str(place / "two.toml"), "--tls", *given]) == 0
    assert fleets == [(tmp_path / "pipe" / f"{stage}-fleet", True, False) for stage in ("first", "second")]
    for stage in ("first", "second"):
        assert_same_results(results(tmp_path / "pipe" / stage), results(whole / stage))


def test_a_fleet_checks_all_stages_before_it_starts(place, tmp_path, capsys):
    given = ["--output-dir", str(tmp_path / "runs"), "--set", f"cache-dir={tmp_path / 'worlds'}", "--set", "name=pipe"]
    assert main(["fleet", str(place / "two.toml"), *given, "--nodes", "1"]) == 2
    assert capsys.readouterr().err.startswith("fedapps: stage first: --nodes 1: the run waits for num-nodes = 2")
    pooled = tmp_path / "pooled.toml"
    pooled.write_text(RECIPE.replace('"fedavg,local"', '"fedavg,centralized"'))
    assert main(["fleet", str(pooled), *given]) == 2
    assert "stage second: methods: centralized trains on the pooled data of all nodes" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# Errors of a pipeline are reported before anything runs.


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
