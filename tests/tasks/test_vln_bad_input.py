"""Houses and options that cannot be used: every error says what is wrong and what is expected."""

import json
import shutil
from dataclasses import fields

import numpy as np
import pytest
from drawn_houses import NAMES, THINGS, message_of, task_with, write_graph
from fedapps.tasks.vln.agent import LEARNING
from fedapps.tasks.vln.instructions import Vocabulary
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.task import VlnTask

from fedapps.base.options import parse_options


@pytest.fixture
def damaged(homes, tmp_path):
    """A world to damage."""
    return shutil.copytree(homes, tmp_path / "world")


@pytest.fixture
def words(tmp_path):
    Vocabulary(("walk", "the", *THINGS)).write(tmp_path / "words.txt")
    return str(tmp_path / "words.txt")


def rewrite(path, change):
    entries = json.loads(path.read_text())
    change(entries)
    path.write_text(json.dumps(entries))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda e: e[1]["path"].__setitem__(2, "v99"),
            "path 1 of house houseA: viewpoint v99 is not in the house's graph",
        ),
        (
            lambda e: e[0].update(scan="houseZ"),
            "path 0 of house houseZ: the house has no graph; add houseZ_connectivity.json",
        ),
        (
            lambda e: e[0].update(path=["v00", "v05"]),
            "path 0 of house houseA: the graph has no edge from v00 to v05; give the graph of the path",
        ),
        (
            lambda e: e[0].update(path=["v00"]),
            "entry 1: path 0 has a start and no further viewpoint, as in the test split",
        ),
        (lambda e: e[2].update(instructions=[]), "entry 3: path 2 has an instruction without text"),
        (lambda e: e[2].update(instructions=["go", " "]), "entry 3: path 2 has an instruction without text"),
        (lambda e: e[0].pop("instructions"), "entry 1: instructions is nothing; expected an array"),
        (lambda e: e[0].update(heading="north"), "entry 1: heading = 'north'; expected radians"),
        (lambda e: e[0].update(path=[]), r"path = []; expected names of viewpoints"),
    ],
)
def test_instructions_that_cannot_be_used(damaged, change, said):
    rewrite(damaged / "R2R_train.json", change)
    assert said in message_of(task_with().load_node, damaged, 0, 3)


def test_files_that_cannot_be_used(damaged):
    (damaged / "R2R_val_seen.json").write_text("{")
    assert "R2R_val_seen.json: no JSON" in message_of(task_with().load_all, damaged)
    (damaged / "R2R_val_seen.json").write_text("{}")
    assert "expected a JSON array of objects" in message_of(task_with().load_all, damaged)
    (damaged / "connectivity" / "houseB_connectivity.json").write_text("[{}]")
    assert "houseB_connectivity.json: KeyError: 'included'" in message_of(task_with().load_all, damaged)
    shutil.rmtree(damaged / "connectivity")
    assert "no graph of a house; expected files <scan>_connectivity.json" in message_of(task_with().load_all, damaged)


def test_an_excluded_viewpoint_is_not_in_the_graph(damaged):
    write_graph(damaged / "connectivity", "houseA", excluded=(3,))
    assert "viewpoint v03 is not in the house's graph (unknown, or not included)" in message_of(
        task_with().load_node, damaged, 0, 3
    )


def test_features_that_are_missing_or_of_another_width(damaged):
    with np.load(damaged / "features.npz") as archive:
        kept = {name: archive[name] for name in archive if name not in ("houseA_v03", "houseA_v04")}
    np.savez(damaged / "features.npz", **kept)
    assert "no features for 2 of 13 viewpoints: houseA_v03, houseA_v04" in message_of(
        task_with().load_node, damaged, 0, 3
    )
    said = message_of(task_with(feature_width=7).load_node, damaged, 1, 3)
    assert "houseB_v00 have the shape [36, 6]; expected [36, 7]" in said
    assert task_with().load_node(damaged, 1, 3).count("train") == 12  # a house needs only its own


def test_another_number_of_nodes(homes, tmp_path):
    said = message_of(task_with().load_node, homes, 0, 2)
    assert said.endswith("are 3 houses (2 seen, 1 unseen), but num-nodes is 2: set num-nodes = 3")
    assert "node 3 of 3: expected an index from 0 to 2" in message_of(task_with().load_node, homes, 3, 3)
    write_graph(tmp_path, "houseA")
    assert "no house with paths" in message_of(task_with().load_all, tmp_path)


def test_no_file_of_the_data_set(homes):
    """The folder has Room-to-Room alone."""
    for load in (task_with(dataset="rxr").load_all, lambda folder: task_with(dataset="rxr").load_node(folder, 0, 3)):
        said = message_of(load, homes)
        assert "no house with paths for vln.houses = 'all'" in said
        assert "expected rxr_train_guide.jsonl, rxr_val_seen_guide.jsonl, rxr_val_unseen_guide.jsonl" in said


def test_a_file_that_changed_is_read_again(damaged):
    assert task_with().load_node(damaged, 0, 3).count("train") == 12
    rewrite(damaged / "R2R_train.json", lambda entries: entries.pop(0))
    assert task_with().load_node(damaged, 0, 3).count("train") == 9


# -- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": "resnet152", "feature_file": "", "feature_width": 0}, "name their file in vln.feature-file"),
        ({"features": "file", "feature_width": 0}, "vln.feature-width = 0 with vln.features = 'file'"),
        ({"features": "objects", "feature_width": 6}, "vln.feature-width = 6 with vln.features = 'objects'"),
        ({"label_width": 4}, "vln.label-width = 4: only vln.features = 'objects' have labels"),
        ({"hidden": 9}, "vln.hidden = 9: must be even"),
        ({"described_share": 0.5}, "vln.described-share = 0.5 with vln.stage = 'agent'"),
        ({"stage": "speaker", "agent_file": "a"}, "the stage 'speaker' trains no agent"),
    ],
)
def test_options_that_do_not_go_together(changes, said):
    assert said in message_of(lambda: task_with(**changes))


def test_a_vocabulary_that_has_no_room(homes, words):
    said = message_of(task_with(vocabulary_file=words, vocabulary_size=9).load_node, homes, 0, 3)
    assert "vln.vocabulary-size = 9:" in said
    assert said.endswith(f"set vln.vocabulary-size = {2 + len(THINGS) + 4}")
    assert "no such file" in message_of(task_with(vocabulary_file="nowhere").load_node, homes, 0, 3)


def test_without_data_or_a_world_there_is_nothing(tmp_path):
    assert task_with().has_world
    assert not task_with(source="files").has_world
    assert "set data-dir to the folder of the houses" in message_of(
        task_with(source="files").make_world, tmp_path, 3, 0
    )
    assert "vln.world-unseen = 3: must leave a house to train in" in message_of(
        task_with(world_unseen=3).make_world, tmp_path, 3, 0
    )


def test_options_say_what_they_allow():
    learning = next(field for field in fields(Options) if field.name == "learning")
    assert set(learning.metadata["choices"]) == set(LEARNING)
    assert parse_options(Options, {"stage": "dreaming"}, "vln.")[1] == [
        "vln.stage = 'dreaming': must be one of 'agent', 'speaker', 'augmented', 'pre-exploration'"
    ]
    assert VlnTask() == VlnTask(Options())
    assert len(NAMES) == 13
