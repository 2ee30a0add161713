"""The commands that let a model of a run answer for files, and evaluate it on other data."""

import csv
import io
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import LQR, run_inline
from trained_runs import last_evaluation, world_of

import fedapps
from fedapps.base.report.numbers import mean_and_interval, over_examples, share_interval
from fedapps.cli.commands import main
from fedapps.runs.run_folder import RunFolder
from fedapps.trained.evaluate import PredictionFiles, evaluate_run, evaluation_text


@pytest.fixture(scope="module")
def robots(runs, tmp_path_factory):
    """The run of robots, and a folder for each robot with its file."""
    folder = runs("lqr")
    own = {}
    for path in world_of(folder).glob("*.csv"):
        own[path.stem] = tmp_path_factory.mktemp(path.stem)
        shutil.copy(path, own[path.stem])
    return folder.path, own


def answering(*answers):
    """A model that gives these answers."""
    return SimpleNamespace(rows=lambda inputs, batch_size: iter(answers))


def command(*given):
    return main([str(word) for word in given])


# -- predict ------------------------------------------------------------------------------------------------------


def test_rows_of_files_and_of_standard_input_come_in_their_order(robots, tmp_path, monkeypatch, capsys):
    run, _ = robots
    states = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 0.0]])
    (tmp_path / "a.csv").write_text("v,y\n2,1\n")
    (tmp_path / "b.jsonl").write_text('{"y": -3, "v": 0.5}\n')
    monkeypatch.setattr("sys.stdin", io.StringIO("y,v\n0,0\n"))
    inputs = (tmp_path / "a.csv", tmp_path / "b.jsonl", "-")
    assert command("predict", run, "--method", "apfl", "--node", "robot-01", *inputs) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model = fedapps.load(run, "apfl", "robot-01")
    assert [(row["y"], row["v"]) for row in rows] == [tuple(state) for state in states]
    assert [row["u"] for row in rows] == model.control(states)[:, 0].tolist()
    assert [[row["next_y"], row["next_v"]] for row in rows] == pytest.approx(model.step(states), abs=1e-12)


def test_what_is_not_utf_8_is_refused_on_standard_input(robots, monkeypatch, capsys):
    """As Python reads it where the locale is C."""
    monkeypatch.setattr("sys.stdin", io.StringIO(b"y,v\n0,caf\xe9\n".decode(errors="surrogateescape")))
    assert command("predict", robots[0], "--method", "fedavg", "-") == 2
    assert capsys.readouterr().err.rstrip().endswith("write UTF-8")


def test_a_csv_file_has_the_columns_of_all_rows(tmp_path):
    model = answering({"text": "a", "label": "x"}, {"label": "y", "scores": [0.5, 0.25]})
    assert PredictionFiles((), tmp_path / "out.csv", 1).write(model) == 2
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"text": "a", "label": "x", "scores": ""}, {"text": "", "label": "y", "scores": "[0.5, 0.25]"}]


def test_a_text_that_utf_8_cannot_encode_is_escaped_and_no_row_is_lost(tmp_path):
    """JSON can have half of a surrogate pair, and so can the name of a file."""
    answers = [{"text": "ä", "label": "x"}, {"text": "a \ud83d b", "label": "y"}, {"text": "c", "label": "x"}]
    for name in ("out.jsonl", "out.csv"):
        assert PredictionFiles((), tmp_path / name, 1).write(answering(*answers)) == 3
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, lines)) == answers
    assert lines[0] == '{"text": "ä", "label": "x"}'
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file)] == ["ä", r"a \ud83d b", "c"]


def test_standard_output_gets_what_its_encoding_lacks_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert PredictionFiles().write(answering({"text": "ä"}, {"text": "日"})) == 2
    assert written.getvalue().decode("latin-1") == '{"text": "ä"}\n{"text": "\\u65e5"}\n'


def test_an_output_file_is_whole_or_not_there(robots, tmp_path, capsys):
    run, _ = robots
    (tmp_path / "in.csv").write_text("y,v\n1,2\n3,4\n")
    given = ("predict", run, "--method", "fedavg", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    assert command(*given) == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["y"], row["v"]) for row in rows] == [("1.0", "2.0"), ("3.0", "4.0")]
    before = (tmp_path / "out.csv").read_bytes()
    (tmp_path / "in.csv").write_text("y,v\n1,2\n3,four\n")
    assert command(*given) == 2
    assert "in.csv, line 3, column v: 'four'; expected a finite number" in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize(
    ("further", "message"),
    [
        (["nowhere.csv"], "nowhere.csv: no such file or folder"),
        (["--output", "rows.xml"], "--output rows.xml: must end in .jsonl or .csv"),
        (["--batch-size", "0"], "--batch-size 0: must be at least 1"),
    ],
)
def test_bad_arguments_are_refused_before_a_model_is_loaded(further, message, capsys):
    assert command("predict", "no-run", *further) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_is_no_input(capsys):
    with pytest.raises(SystemExit):
        command("predict", "no-run", "--method", "fedavg", "--nodes", "robot-01")
    assert "unrecognized arguments: --nodes" in capsys.readouterr().err


def test_a_terminal_shows_how_far_a_long_input_is(robots, tmp_path, monkeypatch, capsys):
    run, _ = robots
    (tmp_path / "in.csv").write_text("y,v\n" + "1,2\n" * 300)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert command("predict", run, "--method", "fedavg", tmp_path / "in.csv") == 0
    assert len(capsys.readouterr().out.splitlines()) == 300
    assert "300 rows" in terminal.getvalue()


# -- evaluate -----------------------------------------------------------------------------------------------------


def test_folders_can_be_given_together_or_one_by_one(robots, tmp_path):
    run, own = robots
    first, second = own["robot-00"], own["robot-01"]
    together, apart = tmp_path / "together.json", tmp_path / "apart.json"
    given = ("evaluate", run, "--methods", "fedavg")
    assert command(*given, "--data-dir", first, second, "--json", together) == 0
    assert command(*given, "--data-dir", first, "--data-dir", second, "--json", apart) == 0
    assert json.loads(apart.read_text()) == json.loads(together.read_text())


def test_each_method_has_its_shared_model_and_its_nodes(robots, tmp_path, capsys):
    run, own = robots
    assert command("evaluate", run, "--data-dir", own["robot-00"], "--json", tmp_path / "all.json") == 0
    table = capsys.readouterr().out
    rows = json.loads((tmp_path / "all.json").read_text())
    nodes = sorted(own)
    assert [(row["method"], row["node"]) for row in rows] == [
        ("fedavg", "shared"),
        *((method, node) for method in ("apfl", "clustered", "h-fl") for node in ("shared", *nodes, "all nodes")),
        *(("local", node) for node in (*nodes, "all nodes")),
    ]
    assert all(f"{row['metrics']['test.total_loss']['mean']:.4g}" in table for row in rows)
    reported = last_evaluation(RunFolder(run, ""), "local")["robot-00"]["test.total_loss"]
    (local,) = (row for row in rows if (row["method"], row["node"]) == ("local", "robot-00"))
    assert local["metrics"]["test.total_loss"]["mean"] == reported
    of_nodes = [
        row["metrics"]["test.excess"]["mean"] for row in rows if row["method"] == "local" and row["node"] in nodes
    ]
    (all_nodes,) = (row for row in rows if (row["method"], row["node"]) == ("local", "all nodes"))
    expected = mean_and_interval(of_nodes)
    assert all_nodes["metrics"]["test.excess"] == {key: expected[key] for key in ("mean", "low", "high")}


def test_nodes_have_rows_if_the_model_of_any_node_differs(robots, tmp_path):
    """Under IFCA, the shared model is that of the largest cluster, here of the first two nodes."""
    _, own = robots
    run = run_inline(LQR | {"methods": "ifca(clusters=3)", "num-nodes": 5, "cache-dir": str(tmp_path)}, tmp_path)
    rows = list(evaluate_run(run.path, [own["robot-00"]]))
    nodes = [f"robot-0{number}" for number in range(5)]
    assert [row.node for row in rows] == ["shared", *nodes, "all nodes"]
    shared, *of_nodes, mean = (row.metrics["test.total_loss"]["mean"] for row in rows)
    assert of_nodes[:2] == [shared, shared]
    assert shared not in of_nodes[2:]
    assert mean == pytest.approx(sum(of_nodes) / 5)


def test_nodes_that_add_something_else_to_their_logits_have_rows(runs):
    run = runs("text")
    nodes = ["client-000", "client-001", "client-002", "all nodes"]
    for method, expected in (("fedavg", []), ("fedavg(logit-adjustment=1)", nodes)):
        rows = list(evaluate_run(run.path, [world_of(run)], methods=[method]))
        assert [row.node for row in rows] == ["shared", *expected]


def test_several_folders_give_intervals_over_them(robots):
    run, own = robots
    folders = sorted(own.values())
    (row,) = evaluate_run(run, folders, methods=["fedavg"])
    model = fedapps.load(run, "fedavg")
    losses = [model.evaluate(folder)["test.total_loss"] for folder in folders]
    expected = mean_and_interval(losses)
    assert row.metrics["test.total_loss"] == {key: expected[key] for key in ("mean", "low", "high")}
    assert "95 % intervals over 3 folders" in evaluation_text([row], 3)


def test_nodes_can_be_chosen_and_a_model_folder_gives_one_row(robots, tmp_path):
    run, own = robots
    rows = list(evaluate_run(run, [own["robot-00"]], methods=["local"], nodes=["robot-02"]))
    assert [row.node for row in rows] == ["robot-02"]
    kept = fedapps.load(run, "local", "robot-02").save(tmp_path / "kept")
    assert list(evaluate_run(kept, [own["robot-00"]])) == rows
    asked = {"methods": ["local"], "nodes": ["robot-02"], "round": 3}
    assert list(evaluate_run(kept, [own["robot-00"]], **asked)) == rows
    for other, said in (
        ({"methods": ["local", "apfl"]}, "method = 'apfl'"),
        ({"nodes": ["robot-02", "robot-00"]}, "node = 'robot-00'"),
        ({"round": 2}, "round = 2"),
    ):
        with pytest.raises(ValueError, match=f"{said}: the model folder has the model with"):
            list(evaluate_run(kept, [own["robot-00"]], **asked | other))
    with pytest.raises(ValueError, match="node = 'car': method 'local' has no such node; its nodes are robot-00"):
        list(evaluate_run(run, [own["robot-00"]], methods=["local"], nodes=["car"]))


def test_a_folder_without_test_data_is_refused(robots, tmp_path):
    run, own = robots
    text = (own["robot-00"] / "robot-00.csv").read_text().replace(",test,", ",train,")
    (tmp_path / "robot-09.csv").write_text(text)
    with pytest.raises(ValueError, match="has no test data for this model; its splits: train"):
        list(evaluate_run(run, [tmp_path], methods=["fedavg"]))


# -- intervals ----------------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_students():
    # t with 2 degrees of freedom at 97.5 %: 4.302653; the standard deviation of 1, 2, 3 is 1
    found = mean_and_interval([1.0, 2.0, 3.0])
    assert (found["mean"], found["nodes"]) == (2.0, 3)
    assert (found["low"], found["high"]) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-6)
    assert mean_and_interval([5.0]) == {"mean": 5.0, "nodes": 1}


def test_the_interval_of_a_share_is_wilsons():
    # R. G. Newcombe, Statistics in Medicine 17, 1998, Table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for count, total, expected in ((81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0, 0.1611)),
                                   (1, 29, (0.0061, 0.1718))):  # fmt: skip
        assert share_interval(count / total, total) == pytest.approx(expected, abs=5e-5)


def test_the_interval_of_none_or_all_examples_ends_at_the_share():
    for count in (1, 3, 7, 20, 1000):
        none, every = share_interval(0.0, count), share_interval(1.0, count)
        assert none[0] == 0.0 < none[1] < 1.0
        assert every == pytest.approx((1 - none[1], 1.0))
        assert every[1] == 1.0


def test_only_shares_of_examples_have_an_interval_over_examples():
    metrics = {
        "accuracy": 0.75, "accuracy.count": 8.0, "loss": 0.3, "loss.count": 8.0, "recall": 0.5,
        "list": [1.0, 2.0], "empty": 0.0, "empty.count": 0.0,
    }  # fmt: skip
    assert list(over_examples(metrics)) == ["accuracy"]
    many = {"accuracy": 799_999 / 800_000, "accuracy.count": 8e5, "loss": 1 / 3, "loss.count": 8e5}
    assert list(over_examples(many)) == ["accuracy"]
