"""Comparisons: the file, the table, the paired tests, and the same numbers with any number of processes."""

import json
import math
import re
import shutil
from statistics import mean
from unittest.mock import ANY

import pytest
from fedapps.sim.matrix import run_matrix
from fedapps.strategies import epsilon

import fedapps.comparison.compare
from fedapps.base.errors import RunFailedError
from fedapps.base.report.numbers import Estimate
from fedapps.cli.commands import main
from fedapps.comparison.compare import compare_recipe, execute, resume_comparison, run_cell
from fedapps.comparison.matrix import Vary
from fedapps.comparison.papers import paper_of
from fedapps.comparison.significance import all_tests
from fedapps.comparison.summary import curves_of, metrics_to_test, node_means, table_of, worst_tenth
from fedapps.config.recipe_files import RECIPES
from fedapps.registry.tasks import task_class
from fedapps.report.comparison_tables import comparison_text
from fedapps.results import ComparisonResult
from fedapps.runs.comparisons import Comparison, Curve
from fedapps.runs.owner import FolderInUseError, owned

METHODS = ["sfl", "apfl"]
TINY = {"rounds": 2, "epochs": 1, "apfl.epochs": 1, "evaluate-every": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return TINY | {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}


def content(folder):
    """The comparison in a folder."""
    return json.loads((folder / "compare.json").read_text())


@pytest.fixture(scope="module")
def compared(tmp_path_factory, tiny):
    """A comparison run in this process, its folder, and the file that --json names."""
    folder = tmp_path_factory.mktemp("compared")
    asked_for = folder / "not" / "yet" / "there.json"
    made = compare_recipe(
        RECIPES / "lqr.toml", methods=METHODS, seeds=2, first_seed=3, overrides=tiny, output_dir=str(folder),
        json_path=asked_for,
    )  # fmt: skip
    assert list(folder.glob("compare-*")) == [made]
    return content(made), made, asked_for


def test_the_file_holds_exactly_the_comparison(compared):
    comparison, folder, asked_for = compared
    text = (folder / "compare.json").read_text()
    assert asked_for.read_text() == text
    shown = {"table", "curves", "nodes", "paper", "tests", "references", "notes"}
    assert comparison.keys() == {"recipe", "task", "rows", *shown}
    assert Comparison.read(folder).text() == text
    assert (comparison["recipe"], comparison["task"]) == ("lqr", "lqr")
    assert comparison["paper"] == paper_of("lqr", METHODS)
    assert re.fullmatch(r"compare-lqr-\d{8}-\d{6}", folder.name)


def test_there_is_a_row_per_method_and_seed(compared):
    comparison, folder, _ = compared
    rows = comparison["rows"]
    assert [(row["method"], row["seed"]) for row in rows] == [("sfl", 3), ("apfl", 3), ("sfl", 4), ("apfl", 4)]
    for row in rows:
        assert row.keys() == {"method", "seed", "metrics"}
        assert {"state_loss", "control_loss", "total_loss", "excess"} <= row["metrics"].keys()
        assert not [name for name in row["metrics"] if name.startswith("test.")]
        summary = json.loads((folder / f"{row['method']}-{row['seed']}" / "summary.json").read_text())
        assert summary["seed"] == row["seed"]
        assert summary["methods"][row["method"]]["final"]["test.excess"] == row["metrics"]["excess"]


def test_means_and_intervals_by_hand():
    """The quantile of Student's t with 2 degrees of freedom is 4.3027, and the standard error is sqrt(7 / 3)."""
    rows = [{"method": "a", "metrics": {"x": value}} for value in (1.0, 2.0, 6.0)]
    rows.append({"method": "b", "metrics": {"x": 5.0}})
    half = pytest.approx(4.3027 * math.sqrt(7 / 3), rel=1e-4)
    table = table_of(rows)
    assert table["a"]["x"] == Estimate(3.0, 3, pytest.approx(math.sqrt(7)), low=ANY, high=ANY)
    assert table["a"]["x"].half == half
    assert table["b"] == {"x": Estimate(5.0)}


def test_curves_are_means_over_the_rounds_that_every_seed_has():
    points = [[(2, 1.0), (4, 3.0)], [(2, 2.0), (4, 5.0), (6, 9.0)]]
    rows = [{"method": "a", "curves": {"x": curve}} for curve in points] + [{"method": "b", "curves": {}}]
    course = curves_of(rows)
    assert course["b"] == {}
    x = course["a"]["x"]
    assert (x.rounds, x.mean) == ([2, 4], [1.5, 4.0])
    assert x.half == pytest.approx([Estimate.of([1.0, 2.0]).half, Estimate.of([3.0, 5.0]).half])


def test_the_paired_course_is_the_mean_over_the_common_nodes_of_each_seed():
    """Seed 0 loses a node in round 4, and the others do not; with a seed without common nodes there is no course."""
    whole = {"method": "a", "curves": {"x": [(2, 2.0), (4, 5.0)]}, "paired": {}}
    lost = {"method": "a", "curves": {"x": [(2, 1.0), (4, 3.0)]}}
    paired = lost | {"paired": {"x": {"changed": [4], "points": [(2, 4.0), (4, 6.0)]}}}
    alone = lost | {"paired": {"x": {"changed": [2], "points": []}}}
    course = curves_of([paired, whole])["a"]["x"]
    assert (course.mean, course.changed) == ([1.5, 4.0], [4])
    assert course.paired == Curve(rounds=[2, 4], mean=[3.0, 5.5])
    course = curves_of([paired, alone])["a"]["x"]
    assert (course.changed, course.paired) == ([2, 4], Curve(rounds=[], mean=[]))
    course = curves_of([whole, whole])["a"]["x"]
    assert (course.changed, course.paired) == ((), Curve())


def test_the_value_of_a_node_is_its_mean_over_seeds():
    def row(seed, **values):
        return {
            "method": "a",
            "seed": seed,
            "nodes": [{"node": n, "metrics": {"test.x": v}} for n, v in values.items()],
        }

    assert node_means([row(0, r=1.0, s=2.0), row(1, r=3.0)], ["test.x"]) == {"a": {"x": {"r": 2.0, "s": 2.0}}}


def test_the_pairs_are_the_runs_of_each_seed(compared):
    comparison, _, _ = compared
    assert [test["metric"] for test in comparison["tests"]] == [
        "test.state_loss", "test.control_loss", "test.total_loss", "test.excess",
    ]  # fmt: skip
    test = comparison["tests"][-1]
    sfl, apfl = ([row["metrics"]["excess"] for row in comparison["rows"] if row["method"] == m] for m in METHODS)
    gap = test["difference"]
    assert (test["a"], test["b"], gap["seeds"]) == ("sfl", "apfl", 2)
    assert gap["mean"] == pytest.approx(mean(a - b for a, b in zip(sfl, apfl, strict=True)))
    assert gap["p"] in (0.5, 1.0)
    assert test.get("nodes_lower", 0) + test.get("nodes_higher", 0) == 3


def test_the_closed_loop_is_also_tested_against_the_plain_robot():
    def row(method, seed, cost, plain):
        return {
            "method": method,
            "seed": seed,
            "metrics": {"closed_loop.mean_cost": cost, "non_proactive.mean_cost": plain},
            "nodes": [],
        }

    rows = [row("sfl", 0, 1.0, 5.0), row("apfl", 0, 1.5, 5.0), row("sfl", 1, 2.0, 6.0), row("apfl", 1, 1.0, 6.0)]
    metrics = ["closed_loop.mean_cost", "non_proactive.mean_cost"]
    tests = all_tests(rows, ["sfl", "apfl"], metrics, task_class("driving").rivals)
    assert [(t.metric, t.a, t.b, t.difference.mean) for t in tests] == [
        ("closed_loop.mean_cost", "sfl", "apfl", 0.25),
        ("closed_loop.mean_cost", "sfl", "non-proactive", -4.0),
        ("closed_loop.mean_cost", "apfl", "non-proactive", -4.25),
    ]


def test_the_text_shows_ours_and_the_papers_number(compared):
    _, folder, _ = compared
    comparison = Comparison.read(folder)
    text = comparison_text(comparison)
    loss = comparison.table["sfl"]["total_loss"]
    number = re.search(r"([\d.,]+) ± ([\d.,]+) +\[(0.21\d*)\]", text)
    assert [float(one) for one in number.groups()] == pytest.approx([loss.mean, loss.half, 0.21146], rel=0.05)
    gap = comparison.tests[0].difference
    line = next(line for line in text.splitlines() if line.startswith("test state loss "))
    numbers = [float(one.replace("−", "-")) for one in re.findall(r"−?\d[\d.]*", line)]
    assert numbers[:4] == pytest.approx([gap.mean, gap.low, gap.high, gap.p], abs=0.05)
    assert len([line for line in text.splitlines() if "sfl against apfl" in line]) == 4
    assert text.count("paired over 2 seeds, not over nodes or sessions. The smallest possible p is 0.5;") == 1
    assert "num-examples" not in text


def test_the_text_of_one_method_has_no_tests():
    ours = {"x": Estimate(1.0), "n.count": Estimate(3.0)}
    text = comparison_text(Comparison(recipe="lqr", table={"sfl": ours}))
    assert text.rstrip().splitlines() == ["method  x", "---------", "sfl     1"]


def test_the_report_and_the_files_for_a_paper_are_written(compared):
    _, folder, _ = compared
    page = (folder / "report.html").read_text()
    assert page.endswith("</html>\n")
    assert r"\toprule" in (folder / "table.tex").read_text()
    assert {"table.md", "table.csv"} <= {path.name for path in folder.iterdir()}
    assert all(path.read_bytes().startswith(b"%PDF") for path in folder.glob("figures/*.pdf"))
    assert all(f"</i>{method}</td>" in page for method in METHODS)


@pytest.mark.slow
@pytest.mark.subprocesses
def test_two_processes_give_the_same_numbers(compared, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fedapps.comparison.compare, "run_matrix", run_matrix)
    monkeypatch.setattr(fedapps.comparison.compare, "write_report", lambda folder: folder)
    comparison, _, _ = compared
    again = compare_recipe(
        RECIPES / "lqr.toml", methods=["sfl ", " apfl"], seeds=1, first_seed=3, jobs=2, overrides=tiny,
        output_dir=str(tmp_path),
    )  # fmt: skip
    assert content(again)["rows"] == [row for row in comparison["rows"] if row["seed"] == 3]
    assert "[2/2]" in capsys.readouterr().out


@pytest.mark.slow
def test_without_methods_the_recipes_are_compared(tiny, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('task = "lqr"\nmethods = "local, sfl"\nnum-nodes = 2\ncollect-after = 0\n')
    keys = tiny | {"dp": "local"}
    comparison = content(compare_recipe(recipe, methods=[], seeds=1, overrides=keys, output_dir=str(tmp_path)))
    assert [(row["method"], row["seed"]) for row in comparison["rows"]] == [("local", 0), ("sfl", 0)]
    assert (comparison["recipe"], comparison.get("paper")) == ("mine", None)
    spent = f"epsilon = {epsilon(1.0, 2, 1e-5, sensitivity=2.0):.3g} at delta = 1e-05 after 2 releases"
    assert f"Privacy: all 2 runs together, if nodes have the same data in each: {spent}" in comparison["notes"][-1]


def test_a_run_whose_folder_is_incomplete_fails_too(tiny, tmp_path, monkeypatch):
    """``flwr run`` exits with status 0 even if the app failed."""
    monkeypatch.setattr(fedapps.comparison.compare, "execute", lambda config, engine: None)
    with pytest.raises(RunFailedError, match=r"sfl with seed 0 after round 0: it ended early; logs/sfl-0.log says why"):
        compare_recipe(RECIPES / "lqr.toml", methods=["sfl"], seeds=1, overrides=tiny, output_dir=str(tmp_path))


# -- a key that varies -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def varied(tmp_path_factory, tiny):
    """A comparison with two numbers of trajectories, one of which is the recipe's."""
    folder = tmp_path_factory.mktemp("varied")
    made = compare_recipe(
        RECIPES / "lqr.toml", methods=METHODS, seeds=2, overrides=tiny, output_dir=str(folder),
        vary=[Vary("lqr.trajectories", (8, 40))],
    )  # fmt: skip
    return content(made), made


def test_the_matrix_is_repeated_for_each_value(varied):
    comparison, folder = varied
    expected = [(value, seed, method) for value in (8, 40) for seed in (0, 1) for method in METHODS]
    rows = [(part["point"]["lqr.trajectories"], row) for part in comparison["varied"] for row in part["rows"]]
    assert [(value, row["seed"], row["method"]) for value, row in rows] == expected
    for value, row in rows:
        run = folder / f"{row['method']}-{row['seed']}-{value}"
        assert f'"lqr.trajectories" = {value}\n' in (run / "config.toml").read_text()
        final = json.loads((run / "summary.json").read_text())["methods"][row["method"]]["final"]
        assert row["metrics"]["excess"] == final["test.excess"]


def test_each_value_has_its_table_and_its_tests(varied):
    comparison = Comparison.read(varied[1])
    assert (comparison.table, comparison.tests) == ({}, ())
    assert comparison.varied_keys == ("lqr.trajectories",)
    eight, forty = comparison.varied
    assert [part.point["lqr.trajectories"] for part in (eight, forty)] == [8, 40]
    for part in (eight, forty):
        assert part.table == table_of(map(vars, part.rows))
        assert [(test.a, test.b, test.difference.seeds) for test in part.tests] == [("sfl", "apfl", 2)] * 4
    assert eight.table != forty.table


def test_the_papers_numbers_stand_at_the_recipes_own_value(varied):
    comparison = Comparison.read(varied[1])
    eight, forty = comparison.varied
    assert (eight.paper, forty.paper) == ({}, paper_of("lqr", METHODS))
    head, tail = comparison_text(comparison).split("lqr.trajectories = 40\n")
    assert head.startswith("lqr.trajectories = 8\n")
    assert "[0.21" not in head
    assert "[0.21" in tail


# -- resuming -------------------------------------------------------------------------------------------------


def test_an_interrupted_comparison_is_resumed(compared, tiny, tmp_path, monkeypatch):
    """One run has finished, one was killed in its last round, one before its config was written, one never started."""
    monkeypatch.setattr(fedapps.comparison.compare, "write_report", lambda folder: folder)
    comparison, folder, _ = compared
    kept = tmp_path / "elsewhere"
    shutil.copytree(folder, kept)
    (kept / "compare.json").unlink()
    shutil.rmtree(kept / "sfl-4")
    shutil.rmtree(kept / "apfl-4")
    (kept / "apfl-4").mkdir()
    (kept / "apfl-4" / "label").write_text("apfl-4-0")
    (kept / "apfl-3" / "summary.json").unlink()
    whole = (kept / "sfl-3" / "summary.json").read_text()
    ran = []
    monkeypatch.setattr(
        fedapps.comparison.compare, "execute", lambda config, engine: ran.append(config) or execute(config, engine)
    )
    with owned(kept), pytest.raises(FolderInUseError, match="is in use by process"):
        resume_comparison(kept)
    assert resume_comparison(kept) == kept
    assert content(kept) == comparison
    assert [(config.run.name, config.run.resume) for config in ran] == [
        ("apfl-3", True), ("sfl-4", False), ("apfl-4", False),
    ]  # fmt: skip
    assert (kept / "sfl-3" / "summary.json").read_text() == whole


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("before", [0, 2])
def test_a_run_with_stages_gives_its_matrices(tmp_path, monkeypatch, before):
    """Two stages of two rounds, perhaps after two rounds of a run before; node b missed the first stage's end."""
    monkeypatch.setattr(
        fedapps.comparison.compare, "execute", lambda config, engine: pytest.fail("the run has finished")
    )
    folder = tmp_path / "sfl-0"
    folder.mkdir()
    (folder / "started.json").write_text(json.dumps({"rounds": {"sfl": before}}))
    mean_of = {2: [1.0, 5.0], 3: [9.0, 9.0], 4: [2.0, 3.0]}
    named = {r: {f"stage-{j}.test.mse": v for j, v in enumerate(values, 1)} for r, values in mean_of.items()}
    rounds = [{"method": "sfl", "round": before + r, "evaluate": named.get(r, {})} for r in range(1, 5)]
    write_lines(folder / "metrics.jsonl", rounds)
    head = {"method": "sfl", "phase": "evaluate"}
    nodes = [head | {"node": "a", "round": r, "metrics": named[r]} for r in (2, 3, 4)]
    nodes += [head | {"node": "b", "round": r, "metrics": named[r]} for r in (3, 4)]
    write_lines(folder / "nodes.jsonl", nodes)
    summary = {"methods": {"sfl": {"final": {"test.mse": 3.0, "test.amse": 2.0, "test.bwt": 1.0}}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    config = {"task": "lqr", "rounds": 4, "collect-after": 0, "methods": "sfl", "seed": 0, "name": "sfl-0",
              "output-dir": str(tmp_path)}  # fmt: skip
    row = run_cell("sfl", 0, config, "inline")
    assert row["metrics"] == {"mse": 3.0, "amse": 2.0, "bwt": 1.0}
    assert row["matrices"] == {"mse": [[1.0, 5.0], [2.0, 3.0]]}
    assert {(node["node"], node["round"]) for node in row["nodes"]} == {("a", 4), ("b", 4)}


def test_methods_with_stages_are_compared_by_the_average_over_stages():
    rows = [{"metrics": {"mse": 3.0, "amse": 2.0, "bwt": 1.0}}]
    assert metrics_to_test("social", rows) == ["test.amse"]
    assert metrics_to_test("social", [{"metrics": {"mse": 3.0}}]) == ["test.mse"]


def test_the_worst_tenth_of_eleven_nodes_are_two():
    """Accuracies 0 to 10, of which 0 and 1 are the worst; losses 0 to 10, of which 9 and 10 are; one is not finite."""
    nodes = [{"test.accuracy": float(i), "test.loss": float(i), "test.size": 1.0} for i in range(11)]
    found = worst_tenth([*nodes, {"test.loss": math.nan}], ["test.accuracy", "test.loss", "test.size", "test.mse"])
    assert found == {"worst_tenth.accuracy": 0.5, "worst_tenth.loss": 9.5}
    assert worst_tenth(nodes[:1], ["test.loss"]) == {}


@pytest.mark.slow
def test_a_grid_of_a_hundred_nodes_becomes_a_latex_table_with_the_names_of_the_methods(tmp_path, capsys):
    quick = ("num-nodes=100", "fraction-train=0.1", "fraction-evaluate=0.1", "rounds=1", "images.model=mlp")
    methods = "fedavg(run.learning-rate=0.2771) as FedAvg, scaffold(run.weighting=uniform) as SCAFFOLD"
    options = [f"--set={pair}" for pair in (*quick, f"cache-dir={tmp_path / 'worlds'}")]
    grid = ["--vary", "images.alpha=0.1,1", "--vary", "epochs=1,2", "--against", "FedAvg", "--seeds", "1"]
    assert main(["compare", "images-digits", "--methods", methods, *grid, *options, "--output-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    outline, _, told = printed.partition("\n")
    assert outline == "images.alpha = 0.1, 1 x epochs = 1, 2 x 2 methods x 1 seed: 8 runs"
    assert "expected time: " in told.partition("8 runs in ")[0]
    (folder,) = tmp_path.glob("compare-images-digits-*")
    table = (folder / "table.tex").read_text()
    assert r"images.alpha & epochs & method & global accuracy" in table
    for point in ("0.1 & 1", "0.1 & 2", "1 & 1", "1 & 2"):
        for method in ("FedAvg", "SCAFFOLD"):
            assert f"\n{point} & {method} & $" in table
    for file in ("table.tex", "table.md", "table.csv"):
        assert "fedavg(" not in (folder / file).read_text()
    result = ComparisonResult(folder)
    assert set(result.tests["b"]) == {"FedAvg"}
    assert ("SCAFFOLD", 0, 0.1, 2) in result.runs
