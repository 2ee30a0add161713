"""Runs of the app in one process that fail, and nodes that are refused."""

import csv

import numpy as np
import pytest
from fedapps.strategies import TooFewRepliesError
from fedapps.tasks.lqr.task import LqrOptions, LqrTask
from small_runs import LQR

from fedapps.base.errors import RunFailedError
from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.launch.launch import conclude
from fedapps.runs.run_folder import RunFolder, read_config
from fedapps.runs.tables import RefusedNodesError


def test_a_run_whose_clients_all_raise_fails_with_their_traceback(tmp_path, worlds, monkeypatch, capsys):
    def loss_of_the_culprit(self, model, batch):
        raise ArithmeticError("no loss today")

    monkeypatch.setattr(LqrTask, "loss", loss_of_the_culprit)
    pairs = [f"--set={key}={value}" for key, value in (LQR | worlds | {"methods": "sfl,apfl"}).items()]
    assert main(["run", "--engine", "inline", "--output-dir", str(tmp_path), *pairs]) == 1
    said = capsys.readouterr().err
    assert "round 1: 0 usable replies, but min_replies is 1 (key min-replies). Refused:" in said
    assert all(f"robot-{robot:02d}: " in said for robot in range(LQR["num-nodes"]))
    assert "in loss_of_the_culprit" in said
    assert said.count("ArithmeticError: no loss today") == LQR["num-nodes"]
    assert f"the run failed in: sfl, apfl. See the log above; trained models are in {tmp_path / 'run'}" in said
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.fixture
def spoilt(tmp_path):
    """A data folder; ``spoilt(column, text)`` writes a value into every row of the second robot."""
    folder = tmp_path / "data"
    folder.mkdir()
    LqrTask(LqrOptions(trajectories=4, horizon=6)).make_world(folder, LQR["num-nodes"], 0)

    def spoil(column, text):
        path = folder / "robot-01.csv"
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, table[0])
            writer.writeheader()
            writer.writerows({**row, column: text} for row in table)
        return str(folder)

    return spoil


def test_one_bad_node_is_refused_and_the_run_goes_on_to_an_error_that_names_it(federate, spoilt, tmp_path, capsys):
    error = r"these nodes.*\n  sfl, node-\d: training refused 3 times: .*column next_y: 'nan'; expected a finite number"
    with pytest.raises(RefusedNodesError, match=error):
        federate(methods="sfl", min_replies=2, data_dir=spoilt("next_y", "nan"))
    folder = RunFolder(tmp_path / "run" / "run", "")
    (folder.path / "report.html").touch()
    with pytest.raises(RunFailedError, match=error):
        conclude(parse(read_config(folder.path)), "inline", 0.0)
    assert "summary:" in capsys.readouterr().out  # the results come first
    lines = folder.lines("metrics.jsonl")
    assert [row["replies"] for row in lines] == [2, 2, 2]
    for row in lines:
        assert [refusal["phase"] for refusal in row["refused"]] == ["train", "evaluate"]
        assert all("expected a finite number" in refusal["reason"] for refusal in row["refused"])
        assert np.isfinite(row["evaluate"]["test.total_loss"])
    assert {row["node"] for row in folder.lines("nodes.jsonl")} == {"robot-00", "robot-02"}
    assert folder.summary()["methods"]["sfl"]["refused"] == 6


def test_but_not_with_fewer_replies_than_wanted(federate, spoilt):
    with pytest.raises(
        TooFewRepliesError, match=r"2 usable replies, but min_replies is 3 .*: lower it to 2, or"
    ) as caught:
        federate(methods="sfl", min_replies=3, data_dir=spoilt("next_y", "nan"))
    assert "robot-01.csv, line 2, column next_y: 'nan'; expected a finite number" in str(caught.value)


def test_the_wrong_tracked_metric_names_those_that_exist(federate):
    with pytest.raises(ValueError, match=r"tracked metric 'loss' is not reported; .*test\.total_loss"):
        federate(methods="sfl", track_metric="loss")
