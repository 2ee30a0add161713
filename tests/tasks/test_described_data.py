"""What readers say that they took for what, and folders that they refuse because they can be read in two ways."""

import json

import numpy as np
import pytest
from drawn_houses import task_with, write_world
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.social.networks import Options as SocialOptions
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.vpr.datasets import read_dataset
from fedapps.tasks.vpr.options import Options as VprOptions
from fedapps.tasks.vpr.task import VprTask

from fedapps.base.errors import DataError
from fedapps.cli.commands import main


def line(folder):
    """A railway line of 40 frames."""
    frames = np.zeros((40, 2, 2), dtype=np.uint8)
    np.savez(folder / "nordland_64x32.npz", summer=frames, winter=frames, usable=np.ones(40, dtype=bool))


def test_robots(tmp_path):
    LqrTask().make_world(tmp_path, 2, 0)
    expected = "2 robots (robot-00.csv to robot-01.csv), steps by the column split: 2160 train, 0 validation, 240 test"
    assert LqrTask().describe_data(tmp_path) == expected


def test_participants(tmp_path):
    task = SocialTask(SocialOptions(source="simulated", participants="a,b", world_scenes=20, augment=False))
    task.make_world(tmp_path, 1, 0)
    (tmp_path / "notes.json").write_text(json.dumps({}))
    expected = "participants a, b; other files: notes; scenes: 28 train, 6 validation, 6 test; cm and degrees, "
    assert task.describe_data(tmp_path) == expected + "scores from 0 (worst) to 100"


def test_places(tmp_path):
    line(tmp_path)
    assert VprTask(VprOptions(nordland_stretches=5)).describe_data(tmp_path) == (
        "data set nordland, training: 32 queries and 32 database images of region-0, region-1, region-2, region-3; "
        "common test: 8 queries and 8 database images of region-4; positions in m, right within 25 m"
    )
    east = read_dataset(tmp_path, VprOptions(nordland_stretches=5, nordland_spacing=10.0)).training.position[:3, 0]
    assert east.tolist() == [0.0, 10.0, 20.0]
    (tmp_path / "places.csv").touch()
    with pytest.raises(
        DataError, match=r"has nordland_64x32\.npz \(nordland\) and places\.csv \(table\), and could be"
    ):
        VprTask().describe_data(tmp_path)
    assert VprTask(VprOptions(dataset="nordland", nordland_stretches=5)).describe_data(tmp_path)


def test_houses(tmp_path):
    said = task_with().describe_data(write_world(tmp_path))
    assert said.startswith("r2r, ")
    assert "; features of views features.npz; m and radians" in said


def test_instructions_without_spaces_between_words_are_doubtful(tmp_path, monkeypatch):
    assert "of the words" not in task_with().describe_data(write_world(tmp_path / "words"))
    monkeypatch.setattr("drawn_houses.TEXTS", ("走过厨房左边的沙发然后停在卧室的床边",) * 3)
    said = task_with().describe_data(write_world(tmp_path / "characters"))
    assert "100% of the words are of one letter" in said


def test_check_node_says_it(tmp_path, capsys):
    LqrTask().make_world(tmp_path / "data", 1, 0)
    keys = ["--set", "num-nodes=1", "--set", "methods=fedavg"]
    main(["check-node", "lqr", "--data-dir", str(tmp_path / "data"), "--state-dir", str(tmp_path), *keys])
    assert "read:   1 robots (robot-00.csv to robot-00.csv), steps by the column split" in capsys.readouterr().out
