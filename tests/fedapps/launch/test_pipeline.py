"""Pipelines run stage after stage, resume where they were cut, and give the bits of their stages alone."""

import re

import pytest
from pipelines import RECIPE, assert_same_results, results, run_pipeline
from toys import same_bits

from fedapps.runs.owner import owned
from fedapps.runs.run_folder import RunFolder

# -- running ---------------------------------------------------------------------------------------------------


def test_every_stage_has_a_run_folder_and_the_end_names_each_report(place, capsys):
    assert run_pipeline(place / "two.toml", place / "printed", "name=pipe") == 0
    folder = place / "printed" / "pipe"
    assert {path.name for path in folder.iterdir()} == {"first", "second"}
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
