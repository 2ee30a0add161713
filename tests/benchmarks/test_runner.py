"""The table of experiments and its runner: choice, order, resume, results; experiments are small programs here."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import runner
from benchmarks.collected import of_folder
from benchmarks.experiments import Experiment, experiments
from benchmarks.results import Result
from benchmarks.runner import _command, matching, run_all
from fedapps.base.report.numbers import Estimate
from fedapps.runs.comparisons import ComparedRun, Comparison, FailedRun, VariedPart

TABLE = """
[words]
data-dir = "--set data-dir={data}/x"
[first]
answers = "Is it first?"
run = "program {data-dir} 'two words' {method}"
minutes = 1
[second]
answers = "Is it second?"
run = "program --model={first}/{method}.bin"
minutes = 2
"""


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Experiment]:
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    return experiments(path)


def test_words_stand_for_words_and_other_braces_stay(table: dict[str, Experiment]) -> None:
    assert table["first"].command({"data": "/d"})[1:] == [
        "-m",
        "program",
        "--set",
        "data-dir=/d/x",
        "two words",
        "{method}",
    ]
    assert table["second"].command({"first": "/f"})[3:] == ["--model=/f/{method}.bin"]
    assert [(one.needs_data, one.after) for one in table.values()] == [(True, ()), (False, ("first",))]


def test_an_experiment_stands_after_those_that_it_uses(tmp_path: Path) -> None:
    path = tmp_path / "late.toml"
    path.write_text(TABLE.replace("'two words'", "{second}"))
    with pytest.raises(ValueError, match=r"late.toml, \[first\]: second must stand before it"):
        experiments(path)
    path.with_name("bare.toml").write_text("[one]\nrun = 'x'\n")
    with pytest.raises(ValueError, match=r"bare.toml, \[one\].*answers"):
        experiments(path.with_name("bare.toml"))


def test_the_published_table_is_sound() -> None:
    for one in experiments().values():
        assert one.minutes > 0
        assert one.answers.endswith("?")
        assert one.command({})[2] == "fedapps" or one.command({})[2].startswith("benchmarks.")


def test_patterns_choose_and_an_unknown_name_is_told(table: dict[str, Experiment]) -> None:
    assert [one.name for one in matching(table, "s*, first")] == ["first", "second"]
    assert len(matching(table, "")) == 2
    with pytest.raises(ValueError, match="gone, x\\*: no such experiment"):
        matching(table, "gone,x*,first")
    assert command_line.main(["run", "--only", "gone"]) == 2


PROGRAM = """
import json, sys
from pathlib import Path
Path(sys.argv[-1]).write_text(json.dumps({"name": "speed", "ours": len(sys.argv), "ratio": 0.5}) + "\\n")
sys.exit(int(Path("fail").exists()))
"""


@pytest.mark.subprocesses
def test_what_has_finished_is_skipped_and_what_is_missing_is_named(
    table: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    both, places = list(table.values()), (tmp_path / "output", tmp_path / "results")

    def told(data: str = "/d", *, again: bool = False) -> tuple[int, str]:
        failed = run_all(both, *places, data=data, again=again)
        return failed, capsys.readouterr().out

    failed, said = told(data="")
    assert failed == 0
    assert "first skipped: set FEDAPPS_DATA" in said
    assert "second skipped: it needs the models of first" in said
    Path("fail").touch()
    failed, said = told()
    assert (failed, "first failed with exit status 1" in said) == (1, True)
    Path("fail").unlink()
    failed, said = told()
    assert failed == 0
    assert "[1/2] first: Is it first? About 3 min to go." in said
    found = Result.read(places[1] / "first.json")
    assert found.rows == [{"name": "speed", "ours": 7, "ratio": 0.5}]
    assert found.command == "python -m program --set data-dir={data}/x 'two words' {method}"
    assert found.versions["python"] == sys.version.partition(" ")[0]
    assert "2 finished before" in told()[1]
    encoded = Experiment("encoded", "Is it encoded?", "program {minilm}")
    monkeypatch.setenv("FEDAPPS_MINILM", "/nowhere")
    assert run_all([encoded], *places, data="", again=False) == 0
    assert "encoded skipped: get minilm with: python -m benchmarks.pretrained minilm" in capsys.readouterr().out
    assert "[2/2] second" in told(again=True)[1]


@pytest.mark.subprocesses
def test_the_minutes_of_a_resumed_experiment_are_those_of_all_parts(
    table: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, program = tmp_path / "output" / "first", [sys.executable, "-c", "raise SystemExit({})"]
    folder.mkdir(parents=True)
    (folder / "rows.json").write_text('{"name": "speed"}\n')
    (folder / "minutes").write_text("5")

    def minutes(status: int, *options: str) -> float:
        command = [*program[:2], program[2].format(status), *options]
        monkeypatch.setattr(runner, "_command", lambda *given: command)
        run_all([table["first"]], tmp_path / "output", tmp_path / "results", data="/d", again=False)
        return float((folder / "minutes").read_text())

    assert 5 < minutes(1, "--resume") < 6
    so_far = minutes(1, "--resume")
    assert 5 < so_far < minutes(0, "--resume")
    assert Result.read(tmp_path / "results" / "first.json").minutes == pytest.approx(5, abs=0.9)
    (folder / "result.json").unlink()
    assert minutes(0) < 1, "it began anew"


def test_the_result_of_a_comparison_with_a_varied_key(tmp_path: Path) -> None:
    run = tmp_path / "compare-lqr-1"
    run.mkdir()
    rows = {
        at: [
            ComparedRun(method=method, seed=seed, metrics={"loss": at + seed})
            for method in ("sfl", "local")
            for seed in (0, 1)
        ]
        for at in (1, 5)
    }
    floor = {"floor": {"loss": Estimate(9.0)}, "drawn": {"loss": Estimate(9.0, 2, 1.0, 0.0, 18.0)}}
    failed = [FailedRun(method="local", seed=2, round=1, reason="killed")]
    first = VariedPart(point={"k": 1}, rows=rows[1], references=floor, failed=failed)
    varied = [first, VariedPart(point={"k": 5}, rows=rows[5])]
    (run / "compare.json").write_text(Comparison(recipe="lqr", varied=varied).text())
    (run / "plan.json").write_text(
        json.dumps({"seeds": [0, 1], "config": {"rounds": 2, "cache-dir": "/c", "name": "n"}})
    )
    found = Result("lqr", "", **of_folder(tmp_path))
    assert (found.keys, found.seeds) == ({"rounds": 2}, [0, 1])
    assert found.of("fedavg at 5", "loss").mean == 5.5
    assert found.of("fedavg at 5", "loss").values == (5, 6)
    assert found.of("floor at 1", "loss").mean == 9
    widest = [found.difference("loss", "fedavg at 1", f"{name} at 1").widest for name in floor]
    assert widest == [False, True], "the values of a reference that differs between seeds are not known"
    assert (found.lacks_seeds("local at 1"), found.lacks_seeds("local at 5")) == (True, False)
    assert found.difference("loss", "local at 5", "fedavg at 5").low == 0


def test_the_result_of_a_comparison_by_node_and_by_round(tmp_path: Path) -> None:
    run = tmp_path / "compare-social-1"
    for seed in (0, 1):
        (run / f"sfl-{seed}").mkdir(parents=True)
        lines = [
            {
                "method": "sfl",
                "phase": phase,
                "round": number,
                "node": node,
                "metrics": {"test.mse": 9.0, "stage-1.test.mse": error},
            }
            for phase, number, node, error in (
                ("evaluate", 1, "client-1", 7.0),
                ("evaluate", 2, "client-1", 0.25 + seed),
                ("evaluate", 2, "client-2", 0.5),
                ("train", 2, "client-1", 8.0),
            )
        ]
        (run / f"sfl-{seed}" / "nodes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        rounds = [
            {"method": "sfl", "round": number, "evaluate": evaluated}
            for number, evaluated in ((1, {}), (2, {"test.mse": 5 + seed}))
        ]
        (run / f"sfl-{seed}" / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in rounds))
    rows = [ComparedRun(method="sfl", seed=seed, metrics={"mse": 1.0}) for seed in (0, 1)]
    for seed in (0, 1):
        summary = {"methods": {"sfl": {"seconds": 2.0}}}
        (run / f"sfl-{seed}" / "summary.json").write_text(json.dumps(summary))
    (run / "compare.json").write_text(Comparison(recipe="social-methods", rows=rows).text())
    (run / "plan.json").write_text(json.dumps({"seeds": [0, 1], "config": {}}))
    found = Result("social-methods", "", **of_folder(tmp_path, by_node=True))
    assert set(found.methods) == {"fedavg", "fedavg, client-1", "fedavg, client-2"}
    assert {name: one.values for name, one in found.methods["fedavg, client-1"].items()} == {
        "stage-1.test.mse": (0.25, 1.25)
    }
    assert found.of("fedavg, client-2", "stage-1.test.mse").mean == 0.5
    by_round = Result("social-methods", "", **of_folder(tmp_path, by_round="test.mse"))
    assert set(by_round.methods) == {"fedavg", "fedavg, round 2"}
    assert by_round.of("fedavg, round 2", "mse").values == (5, 6)
    assert set(Result("social-methods", "", **of_folder(tmp_path)).methods) == {"fedavg"}


def test_the_result_of_an_audit_of_leakage(tmp_path: Path) -> None:
    (tmp_path / "audit-lqr-1").mkdir()
    row = {"attack": "positions", "situation": "1 example", "unit": "m", "error": [0.0, 1.0], "read": [1.0, 0.0]}
    (tmp_path / "audit-lqr-1" / "audit.json").write_text(json.dumps({"recipe": "lqr", "rows": [row]}))
    found = Result("audit-lqr", "", **of_folder(tmp_path))
    assert found.of("positions, 1 example", "error").values == (0, 1)
    assert found.of("positions, 1 example", "read").mean == 0.5


def test_a_comparison_without_a_result_is_resumed_and_one_with_a_result_is_not(tmp_path: Path) -> None:
    one = Experiment("study", "?", "fedapps compare lqr")
    assert "--resume" not in _command(one, tmp_path, "")
    run = tmp_path / "study" / "compare-lqr-1"
    run.mkdir()
    (run / "plan.json").touch()
    (run / "compare.json").touch()  # all runs have finished, but the report could not be written
    assert _command(one, tmp_path, "")[-2:] == ["--resume", str(run)]
    (tmp_path / "study" / "result.json").touch()
    assert "--resume" not in _command(one, tmp_path, "")
