"""Comparisons of which some runs fail: the others make the table, which says what is missing."""

import json

import pytest
from fedapps.strategies import DivergedError
from small_runs import LQR

import fedapps.comparison.compare
from fedapps.base.report.numbers import Estimate
from fedapps.cli.commands import main
from fedapps.comparison.compare import compare_recipe, execute, resume_comparison, tried_cell
from fedapps.comparison.matrix import Plan, Vary
from fedapps.comparison.summary import (
    about_failures,
    complete_rows,
    failed_row,
    finished_rows,
    summarise,
    table_of,
    with_counts,
)
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import RECIPES
from fedapps.launch.inputs import resolve
from fedapps.report.comparison_tables import comparison_text
from fedapps.results import ComparisonResult
from fedapps.runs.comparisons import FailedRun
from fedapps.runs.run_folder import RunFolder

TINY = {"rounds": 1, "epochs": 1, "evaluate-every": 1}
REASON = "round 2: after the step of SGD, parameter A is not finite"


def row(method, seed, x):
    return {"method": method, "seed": seed, "metrics": {"x": x}, "curves": {}, "nodes": []}


ROWS = [
    row("a", 0, 1.0),
    row("b", 0, 5.0),
    row("a", 1, 3.0),
    failed_row("b", 1, 1, REASON),
    failed_row("c", 0, 0, "no"),
]


def test_a_mean_over_fewer_seeds_says_so():
    table = with_counts(table_of(finished_rows(ROWS)), ROWS)
    assert table["b"]["x"] == Estimate(5.0, 1, planned=2)
    assert table["a"]["x"].planned == 0
    assert "c" not in table
    assert [found["method"] for found in complete_rows(ROWS)] == ["a", "a"]


def test_the_sentences_name_method_seed_round_and_reason():
    assert about_failures(ROWS[:3]) == []
    b, c, _ = about_failures(ROWS)
    assert b == f"b: 1 of 2 runs failed (seed 1 after round 1: {REASON})."
    assert c == "c: 1 of 1 runs failed (seed 0 after round 0: no)."


def test_a_varied_key_has_the_failures_of_each_value():
    plan = Plan("mine", {"task": "lqr"}, ("local", "sfl"), (0, 1), "inline", (Vary("rounds", (5, 9)),))
    failed = failed_row("sfl", 1, 3, REASON)
    there = [row("local", 0, 1.0), row("sfl", 0, 5.0), row("local", 1, 3.0), row("sfl", 1, 4.0)]
    found = summarise(plan, [*there, *there[:3], failed], [{}, {}])
    five, nine = found.varied
    assert five.failed == ()
    assert nine.failed == (FailedRun(method="sfl", seed=1, round=3, reason=REASON),)
    assert nine.table["sfl"]["x"].counted == "(1 of 2)"
    assert [(part.point["rounds"], run.method, run.seed) for part in (five, nine) for run in part.rows] == [
        (5, "local", 0), (5, "sfl", 0), (5, "local", 1), (5, "sfl", 1), (9, "local", 0), (9, "sfl", 0), (9, "local", 1),
    ]  # fmt: skip
    assert comparison_text(found).count("(1 of 2)") == 1


def test_names_stand_in_place_of_labels_and_a_baseline_in_place_of_pairs():
    methods, names = ("local", "sfl", "spfl"), {"sfl": "FedAvg", "spfl": "Ours"}
    plan = Plan("mine", {"task": "lqr"}, methods, (0, 1), "inline", names=names, against="spfl")
    rows = [
        row(method, seed, 1.0 + seed) | {"metrics": {"total_loss": 1.0 + seed}} for seed in (0, 1) for method in methods
    ]
    comparison = summarise(plan, rows, [{}])
    assert list(comparison.table) == ["local", "FedAvg", "Ours"]
    assert [run.method for run in comparison.rows] == ["local", "FedAvg", "Ours"] * 2
    assert (comparison.labels, comparison.against) == ({"FedAvg": "sfl", "Ours": "spfl"}, "Ours")
    assert {(test.a, test.b) for test in comparison.tests} == {("local", "Ours"), ("FedAvg", "Ours")}


def one_diverging(config, engine):
    if config.run.seed == 1 and "fedprox" in config.methods:
        raise DivergedError(REASON)
    return execute(config, engine)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a comparison of which one run diverged, and what it printed."""
    folder = tmp_path_factory.mktemp("failed")
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedapps.comparison.compare, "execute", one_diverging)
        patch.setattr("builtins.print", lambda *parts, **_: said.append(" ".join(map(str, parts))))
        worlds = {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}
        methods = ["sfl", "fedprox", "fedavg"]
        recipe = RECIPES / "lqr.toml"
        made = compare_recipe(recipe, methods=methods, seeds=2, overrides=TINY | worlds, output_dir=str(folder))
    return made, said


def test_a_run_that_diverges_leaves_the_table_of_the_others(compared):
    folder, said = compared
    comparison = json.loads((folder / "compare.json").read_text())
    assert comparison["failed"] == [{"method": "fedprox", "seed": 1, "round": 0, "reason": REASON}]
    assert len(comparison["rows"]) == 5
    table = comparison["table"]
    assert (table["fedprox"]["excess"].get("seeds", 1), table["fedprox"]["excess"]["planned"]) == (1, 2)
    assert {name for test in comparison["tests"] for name in (test["a"], test["b"])} == {"sfl", "fedavg"}
    assert comparison["curves"].keys() == {"sfl", "fedavg"}
    text = "\n".join(said)
    assert "(1 of 2)" in text
    assert f"\n1 of 6 runs failed:\n  fedprox with seed 1 after round 0: {REASON}\nthe table has the other runs" in text


def test_the_table_is_printed_before_the_report_is_written(compared, monkeypatch, capsys):
    """A disk that is full by then loses no table."""

    def full(folder):
        raise OSError("no space left")

    monkeypatch.setattr(fedapps.comparison.compare, "execute", one_diverging)
    monkeypatch.setattr(fedapps.comparison.compare, "write_report", full)
    with pytest.raises(OSError, match="no space left"):
        resume_comparison(compared[0])
    assert "(1 of 2)" in capsys.readouterr().out


def test_report_and_tables_for_papers_say_what_is_missing(compared):
    folder, _ = compared
    page = (folder / "report.html").read_text()
    assert "fedprox: 1 of 2 runs failed (seed 1 after round 0" in page
    assert "<small>(1 of 2)</small>" in page
    for name in ("table.md", "table.tex"):
        text = (folder / name).read_text()
        line = next(line for line in text.splitlines() if "fedprox" in line)
        assert "(1 of 2)" in line
        assert "bf{" not in line
        assert "**" not in line
        assert "(k of n): the runs of the other seeds failed" in text
    csv = [line.split(",") for line in (folder / "table.csv").read_text().splitlines()]
    seeds = {line[0]: line[csv[0].index("seeds")] for line in csv[1:]}
    assert [seeds[method] for method in ("sfl", "fedprox", "fedavg")] == ["2", "1", "2"]


def test_python_has_the_finished_runs_and_the_failed_ones(compared):
    result = ComparisonResult(compared[0])
    assert result.failed.to_dict("records") == [{"method": "fedprox", "seed": 1, "round": 0, "reason": REASON}]
    assert ("fedprox", 1) not in result.runs
    assert len(result.runs) == 5
    assert set(result.rounds["method"]) == {"sfl", "fedprox", "fedavg"}


@pytest.mark.slow
def test_a_resumed_comparison_repeats_what_failed(compared):
    comparison = json.loads((resume_comparison(compared[0], jobs=1) / "compare.json").read_text())
    assert "failed" not in comparison
    assert len(comparison["rows"]) == 6


def test_a_run_without_a_node_whose_replies_were_refused_is_repeated(tmp_path, monkeypatch):
    """With the node's data corrected, it is as if it were the first one."""
    ran = []
    monkeypatch.setattr(
        fedapps.comparison.compare,
        "execute",
        lambda config, engine: ran.append(config.run.seed) or execute(config, engine),
    )
    keys = LQR | {"methods": "apfl", "name": "apfl-0"}
    cell = {"method": "apfl", "seed": 0, "engine": "inline", "config": resolve(keys, str(tmp_path))}
    row = tried_cell(**cell)
    assert tried_cell(**cell) == row
    assert ran == [0], "a run that finished is not repeated"
    folder = RunFolder(tmp_path / "apfl-0", "")
    facts = folder.summary()["methods"]["apfl"]
    folder.finish(parse(keys), "apfl", facts | {"refused_nodes": {"robot-02": "training refused 3 times: no memory"}})
    assert tried_cell(**cell) == row
    assert ran == [0, 0]


def test_the_command_fails_only_if_every_run_fails(tmp_path, monkeypatch, capsys):
    def diverging(config, engine):
        raise DivergedError(REASON)

    monkeypatch.setattr(fedapps.comparison.compare, "execute", diverging)
    monkeypatch.setattr(fedapps.comparison.compare, "references_of", lambda plan, folder: [{}])
    assert main(["compare", "lqr", "--methods", "sfl", "--seeds", "1", "--output-dir", str(tmp_path)]) == 1
    assert f"1 of 1 runs failed:\n  sfl with seed 0 after round 0: {REASON}" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/compare.json"))


def test_the_end_of_a_long_reason_is_shown():
    reason = f"round 1: 0 usable replies. Refused: a: Traceback: {'File x ^^^^ ' * 90} the training loss is nan"
    (sentence, _) = about_failures([row("a", 0, 1.0), failed_row("a", 1, 0, reason)])
    assert sentence.startswith("a: 1 of 2 runs failed (seed 1 after round 0: round 1: 0 usable replies. Refused")
    assert sentence.endswith("the training loss is nan).")
