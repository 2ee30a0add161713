"""fedapps.run, fedapps.compare and fedapps.open_run: what they return and refuse, and that they import little."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from toys import same_bits

import fedapps
import fedapps.comparison.compare
from fedapps.api import run_keys
from fedapps.base.errors import RunFailedError
from fedapps.base.report.numbers import Estimate
from fedapps.cli.commands import main
from fedapps.results import ComparisonResult, PipelineResult, RunResult
from fedapps.runs.checkpoints import DiskCheckpoints

SMALL = {
    "task": "lqr", "methods": "fedavg,local", "num-nodes": 2, "rounds": 2, "epochs": 1, "evaluate-every": 1,
    "collect-after": 0, "lqr.trajectories": 4, "lqr.horizon": 6,
}  # fmt: skip
PIPELINE = """
num-nodes = 2
rounds = 1
collect-after = 0
task = "lqr"
methods = "fedavg"
[lqr]
trajectories = 4
horizon = 6
[pipeline.zebra]
[pipeline.ant]
"""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return str(tmp_path_factory.mktemp("worlds"))


@pytest.fixture(scope="module")
def result(tmp_path_factory, worlds, reports):
    folder = tmp_path_factory.mktemp("runs")
    with reports():
        return fedapps.run(
            overrides=SMALL, engine="inline", output_dir=folder, name="small", cache_dir=worlds, seed=3,
            lqr={"noise_variance": 0.02},
        )  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory, worlds):
    def in_this_process(cells, work, *, jobs, cluster, watch, log_of):
        return [work(**cell) for cell in cells]

    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedapps.comparison.compare, "run_matrix", in_this_process)
        return fedapps.compare(
            "lqr", SMALL | {"evaluate-every": 2}, methods=["fedavg", "fedprox(mu=0.1)"], seeds=2, output_dir=folder,
            cache_dir=worlds, vary={"lqr.trajectories": [4, 6]},
        )  # fmt: skip


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


# -- a run -----------------------------------------------------------------------------------------------------


def test_the_keys_reach_the_run(result):
    assert (result.config["seed"], result.config["lqr.noise-variance"], result.config["num-nodes"]) == (3, 0.02, 2)
    assert result.folder.name == "small"
    assert result.methods == ("fedavg", "local")
    assert result.finished


def test_the_frames_have_the_numbers_of_the_folder(result):
    rounds = lines(result.folder, "metrics.jsonl")
    assert len(result.rounds) == len(rounds) == 4
    for (_, row), line in zip(result.rounds.iterrows(), rounds, strict=True):
        assert (row["method"], row["round"], row["bytes_up"]) == (line["method"], line["round"], line["bytes_up"])
        assert row["evaluate.test.total_loss"] == line["evaluate"]["test.total_loss"]
        assert row["train.loss"] == line["train"]["loss"]
    nodes = lines(result.folder, "nodes.jsonl")
    assert len(result.nodes) == len(nodes) == 16
    for (_, row), line in zip(result.nodes.iterrows(), nodes, strict=True):
        assert [row[name] for name in ("method", "round", "node", "phase")] == [
            line[name] for name in ("method", "round", "node", "phase")
        ]
        assert all(row[name] == value for name, value in line["metrics"].items())
    final = json.loads((result.folder / "summary.json").read_text())["methods"]
    assert list(result.metrics.index) == ["fedavg", "local"]
    assert result.metrics.loc["local", "test.excess"] == final["local"]["final"]["test.excess"]


def test_the_arrays_are_the_shared_parameters_of_the_last_round(result):
    stored = DiskCheckpoints(result.folder / "checkpoints" / "fedavg").latest().arrays
    found = result.arrays("fedavg")
    assert found
    assert same_bits(found, {name.removeprefix("shared."): stored[name] for name in stored if "shared." in name})
    assert result.arrays("local") == {}
    with pytest.raises(ValueError, match=r"method = '': must be one of 'fedavg', 'local'"):
        result.arrays()


def test_the_figures_are_those_of_the_report(result):
    page = result.report.read_text()
    assert {"curves", "spread"} <= result.figures.keys()
    for drawn in result.figures["curves"]:
        assert drawn.alt.startswith("Line chart of ")
        assert drawn.markup in page
        assert drawn._repr_html_() == drawn.markup
        assert drawn.figure.axes


def test_open_run_reads_the_same_result_again(result):
    again = fedapps.open_run(str(result.folder))
    assert isinstance(again, RunResult)
    for name in ("rounds", "nodes", "metrics"):
        assert getattr(again, name).equals(getattr(result, name))
    assert "<table" in again._repr_html_()


@pytest.mark.slow
def test_the_command_line_gives_the_same_bits(result, tmp_path, worlds, capsys):
    keys = SMALL | {"cache-dir": worlds, "seed": 3, "lqr.noise-variance": 0.02, "name": "small"}
    settings = [f"--set={key}={value}" for key, value in keys.items()]
    assert main(["run", "--engine", "inline", "--output-dir", str(tmp_path), *settings]) == 0
    assert re.search(r"\nfinished in [\d.]+ s, engine: inline\n", capsys.readouterr().out)
    other = fedapps.open_run(tmp_path / "small")
    assert same_bits(other.arrays("fedavg"), result.arrays("fedavg"))
    same = ["method", "round", "node", "phase", "test.total_loss"]
    assert other.nodes[same].equals(result.nodes[same])


def test_a_run_that_fails_is_an_error_that_names_it(tmp_path, worlds):
    given = SMALL | {"methods": "fedavg", "learning-rate": 1e30}
    with pytest.raises(RunFailedError, match=r"the run failed in: fedavg\. See the log above; trained models are in "):
        fedapps.run(None, given, engine="inline", output_dir=tmp_path, cache_dir=worlds)
    assert [(path / "config.toml").exists() for path in tmp_path.iterdir()] == [True]


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"overrides": {"rouns": 3}}, r"rouns: unknown key; did you mean 'rounds'\?"),
        ({"rounds": 0}, r"rounds = 0: must be a whole number at least 1"),
        ({"methods": ["magic"]}, r"methods: 'magic' is unknown"),
        ({"overrides": {"rounds": 2}, "rounds": 3}, r"rounds: given in overrides and as a keyword"),
        ({"recipe": "no-such-recipe"}, r"no recipe no-such-recipe: give a run-config file or one of "),
        ({"engine": "steam"}, r"engine = 'steam': must be one of 'auto', 'inline', 'ray'"),
    ],
)
def test_bad_input_is_refused_before_any_work(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        fedapps.run(**({"engine": "inline", "output_dir": tmp_path} | given))
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_refuses_what_the_command_refuses(tmp_path):
    for given, message in [
        ({"seeds": 0}, "must be at least 1"),
        ({"methods": "magic"}, "methods: 'magic' is unknown"),
        ({"vary": {"rounds": []}}, "rounds.*has no value"),
        ({"vary": {"name": ["a"]}}, "this command sets the key"),
        (
            {"vary": {"rounds": "48"}},
            r"vary: 'rounds' = '48': must be a list of values; write it as \{'rounds': \['48'",
        ),
        ({"vary": {"rounds": 48}}, "vary: 'rounds' = 48: must be a list of values"),
        ({"engine": "steam"}, "engine = 'steam': must be one of"),
        ({"recipe": None}, "recipe: name a recipe"),
        ({"resume": tmp_path}, "the folder has the recipe, methods, keys and values; leave them out"),
        ({"recipe": None, "resume": tmp_path}, r"not the folder of a comparison \(it has no plan.json\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            fedapps.compare(**({"recipe": "lqr", "output_dir": tmp_path} | given))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such run folder"):
        fedapps.open_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no config\.toml; a run folder contains"):
        fedapps.open_run(tmp_path)


def test_a_folder_in_the_home_of_the_user(result, tmp_path, monkeypatch, worlds, reports):
    monkeypatch.setenv("HOME", str(result.folder.parent))
    assert fedapps.open_run("~/small").folder == result.folder
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text('task = "lqr"')
    with reports():
        again = fedapps.run("~/one.toml", SMALL | {"rounds": 1}, engine="inline", output_dir="~/runs", name="a",
                            cache_dir=worlds)  # fmt: skip
    assert again.folder == tmp_path / "runs" / "a"
    assert not (tmp_path / "~").exists()


def test_a_folder_of_unrelated_runs_is_no_pipeline(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    with pytest.raises(ValueError, match=r"neither a run, a comparison nor a pipeline, but it has the runs a, b: open"):
        fedapps.open_run(tmp_path)


def test_keywords_are_keys_with_hyphens():
    given = run_keys(
        {"lqr": {"horizon": 5}},
        {"num_nodes": 3, "data_dir": Path("/data"), "ewc": {"lambda_": 1.0}, "methods": ["a", "b"]},
    )
    assert given == {"lqr.horizon": 5, "num-nodes": 3, "data-dir": "/data", "ewc.lambda": 1.0, "methods": "a,b"}


# -- comparisons and pipelines ---------------------------------------------------------------------------------


def test_a_comparison_has_a_row_for_each_run(compared):
    content = json.loads((compared.folder / "compare.json").read_text())
    head = ["method", "seed", "lqr.trajectories"]
    parts = content["varied"]
    rows = {
        (row["method"], row["seed"], part["point"]["lqr.trajectories"]): row["metrics"]
        for part in parts
        for row in part["rows"]
    }
    assert {tuple(row) for row in compared.metrics[head].itertuples(index=False)} == rows.keys() == compared.runs.keys()
    for _, row in compared.metrics.iterrows():
        expected = rows[tuple(row[head])]
        assert all(row[name] == value for name, value in expected.items())
    assert len(compared.rounds) == 2 * len(rows)
    assert list(compared.rounds.columns[:3]) == head
    of_run = compared.nodes[(compared.nodes[head] == ("fedprox(mu=0.1)", 1, 6)).all(axis=1)]
    alone = compared.runs["fedprox(mu=0.1)", 1, 6].nodes
    assert np.array_equal(of_run["loss"].dropna(), alone["loss"].dropna())


def test_its_table_and_tests_are_those_of_the_file(compared):
    content = json.loads((compared.folder / "compare.json").read_text())
    part = content["varied"][1]
    table = compared.table.set_index(["method", "lqr.trajectories", "metric"])
    found = table.loc["fedavg", 6, "total_loss"]
    one = part["table"]["fedavg"]["total_loss"]
    expected = [one["mean"], one["sd"], (one["high"] - one["low"]) / 2]
    assert found[["mean", "std", "half"]].tolist() == pytest.approx(expected)
    assert len(compared.tests) == sum(len(part["tests"]) for part in content["varied"])
    assert compared.figures
    assert "<table" in compared._repr_html_()


def test_one_seed_has_no_spread(compared, monkeypatch):
    part = SimpleNamespace(table={"fedavg": {"loss": Estimate(0.5)}})
    monkeypatch.setattr(ComparisonResult, "_parts", lambda _: [({}, part)])
    (row,) = ComparisonResult(compared.folder).table.to_dict("records")
    assert (row["mean"], row["seeds"]) == (0.5, 1)
    assert np.isnan([row["std"], row["half"]]).all()


def test_a_comparison_is_opened_again(compared, tmp_path):
    assert isinstance(again := fedapps.open_run(compared.folder), ComparisonResult)
    assert again.metrics.equals(compared.metrics)
    (tmp_path / "plan.json").write_text((compared.folder / "plan.json").read_text())
    with pytest.raises(ValueError, match=r"this comparison is not finished; resume it with compare\(resume="):
        fedapps.open_run(tmp_path)


@pytest.mark.slow
def test_a_pipeline_has_a_result_for_each_stage(tmp_path, worlds):
    (tmp_path / "two.toml").write_text(PIPELINE)
    done = fedapps.run(tmp_path / "two.toml", engine="inline", output_dir=tmp_path / "runs", cache_dir=worlds)
    assert isinstance(done, PipelineResult)
    assert list(done.stages) == ["zebra", "ant"]
    assert len(done["ant"].rounds) == 1
    assert list(fedapps.open_run(done.folder).stages) == ["zebra", "ant"]
    with pytest.raises(KeyError, match=r"the stages of .* are zebra, ant"):
        done["bee"]


# -- imports ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.subprocesses
def test_importing_fedapps_loads_neither_torch_nor_flower():
    code = (
        "import sys, fedapps; print(sorted({'torch', 'flwr', 'numpy', 'pandas', 'matplotlib'} & sys.modules.keys())); "
        "fedapps.watch; print(sorted({'flwr', 'pandas', 'matplotlib'} & sys.modules.keys())); "
        "print(*(getattr(fedapps, name).__name__ for name in fedapps.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]", "adapt compare export load open_run run watch"]
