"""Reading paths, instructions and graphs: formats, compression, languages, and the tokenizer."""

import gzip
import json
import lzma
import shutil
import tarfile
from dataclasses import fields

import numpy as np
import pytest
from drawn_houses import EDGES, NAMES, POSITIONS, THINGS, message_of, path_entry, task_with, write_graph
from fedapps.tasks.base import DataError
from fedapps.tasks.vln.agent import LEARNING
from fedapps.tasks.vln.connectivity import read_graphs
from fedapps.tasks.vln.instructions import BEGIN, END, UNKNOWN, Vocabulary, find_dataset, read_split, words_of
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.task import VlnTask
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.options import parse_options


def annotation(number, language, text):
    return {
        "path_id": number,
        "split": "train",
        "scan": "houseA",
        "heading": 1.5,
        "path": NAMES[:3],
        "instruction_id": 0,
        "annotator_id": 7,
        "language": language,
        "instruction": text,
        "timed_instruction": [{"word": "Go", "start_time": 0.0, "end_time": 0.1}],
    }


@pytest.mark.parametrize(("ending", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_r2r_plain_or_compressed(tmp_path, ending, opener):
    entry = path_entry("houseA", (0, 1, 2), 17, heading=3.751, texts=2) | {"path_id": 17}
    (tmp_path / "below").mkdir()
    with opener(tmp_path / "below" / f"R2R_train.json{ending}", "wt") as file:
        json.dump([entry], file)
    assert find_dataset(tmp_path) == "r2r"
    (path,) = read_split(tmp_path, "r2r", "train")
    assert (path.scan, path.path_id, path.path, path.heading) == ("houseA", "17", ("v00", "v01", "v02"), 3.751)
    assert path.instructions == ("Walk past the sofa and stop at the sink.", "go to the sink , leaving the sofa !")
    assert read_split(tmp_path, "r2r", "val_seen") is None


def test_rxr_groups_the_guides_of_a_path_and_takes_the_languages_asked_for(tmp_path):
    lines = [
        annotation(1, "en-US", "Go ahead."),
        annotation(2, "hi-IN", "आगे जाएं।"),
        annotation(1, "en-IN", "Walk straight."),
        annotation(1, "te-IN", "ముందుకు వెళ్ళండి."),
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n"
    (tmp_path / "rxr_train_guide.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "rxr_train_follower.jsonl.gz").write_bytes(gzip.compress(b"no guide\n"))
    assert find_dataset(tmp_path) == "rxr"
    (english,) = read_split(tmp_path, "rxr", "train")
    assert english.instructions == ("Go ahead.", "Walk straight.")
    everything = read_split(tmp_path, "rxr", "train", ())
    assert [len(path.instructions) for path in everything] == [3, 1]
    (american,) = read_split(tmp_path, "rxr", "train", ("en-US",))
    assert american.instructions == ("Go ahead.",)
    with pytest.raises(DataError, match=r"no instruction in vln\.languages = 'de'"):
        read_split(tmp_path, "rxr", "train", ("de",))


def test_guides_that_say_different_things_about_a_path_are_refused(tmp_path):
    lines = [annotation(1, "en-US", "Go."), annotation(1, "en-US", "Walk.") | {"heading": 2.0}]
    (tmp_path / "rxr_train_guide.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(
        DataError, match="line 2: path_id 1 of scan houseA has another path or heading than in an earlier"
    ):
        read_split(tmp_path, "rxr", "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"path_id": 1},
            r"entry 2: path_id 1 of scan houseA occurs for the second time \(first in entry 1\); keep one",
        ),
        ({"heading": 90}, r"entry 2: heading = 90; expected radians, from -2 pi to 2 pi"),
        ({"heading": 10**400}, r"entry 2: heading = 1000.*; expected radians"),
    ],
)
def test_paths_of_r2r_that_are_implausible(tmp_path, change, message):
    entries = [path_entry("houseA", (0, 1, 2), 1), path_entry("houseA", (0, 1, 2), 2) | change]
    (tmp_path / "R2R_train.json").write_text(json.dumps(entries))
    with pytest.raises(DataError, match=message):
        read_split(tmp_path, "r2r", "train")


def test_two_data_sets_in_one_folder_need_a_choice(tmp_path):
    (tmp_path / "R2R_train.json").write_text("[]")
    (tmp_path / "rxr_train_guide.jsonl").write_text("")
    with pytest.raises(DataError, match=r"set vln\.dataset = 'r2r' or 'rxr'"):
        find_dataset(tmp_path)
    assert find_dataset(tmp_path, "rxr") == "rxr"


def test_a_graph_of_a_folder_is_that_of_an_archive(tmp_path):
    write_graph(tmp_path / "files", "houseA", excluded=(6,))
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "connectivity.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "files", "connectivity")
    one, other = (read_graphs(tmp_path / name)["houseA"] for name in ("files", "packed"))
    kept = [row for row in range(len(NAMES)) if row != 6]
    assert one.viewpoints == other.viewpoints == tuple(NAMES[row] for row in kept)
    np.testing.assert_array_equal(one.positions, POSITIONS[kept])
    np.testing.assert_array_equal(one.navigable, other.navigable)
    joined = {frozenset((kept[i], kept[j])) for i, j in np.argwhere(one.navigable)}
    assert joined == {frozenset(edge) for edge in EDGES if 6 not in edge}
    assert (one.visible >= one.navigable).all()
    assert not one.visible.diagonal().any()


def test_what_archivers_left_is_no_graph(tmp_path):
    write_graph(tmp_path, "houseA")
    (tmp_path / "._houseA_connectivity.json").write_bytes(b"\0\5\x16\7")
    with tarfile.open(tmp_path / "connectivity.tar", "w") as archive:
        archive.add(tmp_path / "houseA_connectivity.json", "houseB_connectivity.json")
        archive.add(tmp_path / "._houseA_connectivity.json", "__MACOSX/._houseB_connectivity.json")
        link = tarfile.TarInfo("houseC_connectivity.json")
        link.type, link.linkname = tarfile.SYMTYPE, "houseC_connectivity.json"
        archive.addfile(link)
    assert list(read_graphs(tmp_path)) == ["houseA", "houseB"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.update(included="false"), "included, visible and unobstructed are not all true or false"),
        (lambda entry: entry.update(image_id=None), "expected included viewpoints with different names"),
        (lambda entry: entry.update(pose=[10**400] * 16), "OverflowError"),
        (lambda entry: entry["pose"].__setitem__(3, float("nan")), "NaN is not a number"),
    ],
)
def test_graphs_that_are_implausible(tmp_path, change, message):
    write_graph(tmp_path, "houseA")
    file = tmp_path / "houseA_connectivity.json"
    entries = json.loads(file.read_text())
    change(entries[0])
    file.write_text(json.dumps(entries))
    with pytest.raises(DataError, match=message):
        read_graphs(tmp_path)


def test_positions_in_millimetres_are_refused(tmp_path):
    write_graph(tmp_path, "houseA", positions=1000 * POSITIONS)
    with pytest.raises(
        DataError, match=r"walk between are 2000 apart \(median\); expected poses in metres, 0\.05 to 50"
    ):
        read_graphs(tmp_path)


def test_an_edge_that_one_end_knows_of_counts_both_ways(tmp_path):
    write_graph(tmp_path, "houseA")
    file = tmp_path / "houseA_connectivity.json"
    entries = json.loads(file.read_text())
    entries[0]["unobstructed"][1] = False
    file.write_text(json.dumps(entries))
    navigable = read_graphs(tmp_path)["houseA"].navigable
    assert navigable[0, 1]
    assert navigable[1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Walk down one flight of stairs. ", ["walk", "down", "one", "flight", "of", "stairs", "."]),
        ("Stop!? Now...", ["stop", "!", "?", "now", "..."]),
        ("the L-shaped couch,(left).", ["the", "l", "-", "shaped", "couch", ",", "(", "left", ")", "."]),
        ("don't  wait", ["don", "'", "t", "wait"]),
        ("  ", []),
    ],
)
def test_words_as_the_agents_of_r2r_split_them(text, words):
    assert words_of(text) == words


def test_the_vocabulary_has_frequent_words_of_training():
    texts = ["go left"] * 5 + ["go right"] * 4 + ["left turn"] * 5
    assert Vocabulary.of(texts, 992).words == ("left", "go", "turn")
    assert Vocabulary.of(texts, 6).words == ("left", "go")
    words = Vocabulary.of(texts, 992)
    assert len(words) == 7
    assert words.encode("Go right, left", 80) == [BEGIN, 5, UNKNOWN, UNKNOWN, 4, END]
    assert words.encode("left left left left", 4) == [BEGIN, 4, 4, END]
    assert words.decode([4, 5, END, 6]) == ["left", "go"]


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=12))
def test_known_words_come_back(said):
    words = Vocabulary(("a", "b", "c"))
    assert words.decode(words.encode(" ".join(said), 80)[1:]) == said


def test_a_vocabulary_file_comes_back(tmp_path):
    words = Vocabulary(("left", "go", "..."))
    words.write(tmp_path / "words.txt")
    assert Vocabulary.read(tmp_path / "words.txt") == words
    (tmp_path / "published.txt").write_text("<PAD>\n<UNK>\n<EOS>\nleft\ngo\n<BOS>\n")
    assert Vocabulary.read(tmp_path / "published.txt").words == ("left", "go")


# Houses and options that cannot be used: every error says what is wrong and what is expected.


@pytest.fixture
def damaged(homes, tmp_path):
    """A world to damage."""
    return shutil.copytree(homes, tmp_path / "world")


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
