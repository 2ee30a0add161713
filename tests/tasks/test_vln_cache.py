"""Cached folders, and the labels of a speaker that are kept in them."""

from dataclasses import replace

import pytest
import torch
from drawn_houses import THINGS, saved, speaking, task_with, write_world
from fedapps.tasks.vln.instructions import Vocabulary, cached, key_of
from fedapps.tasks.vln.task import VlnTask
from hypothesis import given
from hypothesis import strategies as st


def write_text(text):
    def compute(folder):
        (folder / "text").write_text(text)

    return compute


def contents(cache):
    return {path.name: (path / "text").read_text() for path in cache.iterdir()}


# -- folders -----------------------------------------------------------------------------------------------------


def test_what_is_there_is_not_computed_again(tmp_path):
    cache = tmp_path / "some" / "cache"
    for text in ("first", "second"):
        assert (cached(cache, "key", write_text(text)) / "text").read_text() == "first"
    assert contents(cache) == {"key": "first"}


def test_an_interrupted_computation_leaves_nothing(tmp_path):
    def interrupted(folder):
        write_text("half")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path, "key", interrupted)
    assert contents(tmp_path) == {}

    def full(folder):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        cached(tmp_path, "key", full)
    assert contents(tmp_path) == {}


def test_of_two_processes_at_the_same_time_the_first_to_finish_counts(tmp_path):
    def slow(folder):
        cached(tmp_path, "key", write_text("of the other"))
        write_text("mine")(folder)

    assert (cached(tmp_path, "key", slow) / "text").read_text() == "of the other"
    assert contents(tmp_path) == {"key": "of the other"}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=2)), max_size=3), st.data())
def test_keys_differ_where_inputs_do(parts, data):
    other = data.draw(st.permutations(parts) | st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=2))))
    assert (key_of(parts) == key_of(other)) == (parts == other)
    assert len(key_of(parts)) == 32


# -- labels ------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path):
    return task_with(stage="pre-exploration", **speaking(tmp_path))


@pytest.fixture
def calls(monkeypatch):
    """How many paths each call of the speaker describes."""
    from fedapps.tasks.vln import nodes

    found, describe = [], nodes.label_paths

    def counted(speaker, houses, words, paths, *more):
        found.append(len(paths))
        return describe(speaker, houses, words, paths, *more)

    monkeypatch.setattr(nodes, "label_paths", counted)
    return found


def with_options(task, **changes):
    return VlnTask(replace(task.options, **changes))


def labels(task, homes):
    return task.load_node(homes, 2, 3).extra["paths"]["train"]


def test_a_house_is_labelled_once(homes, task, calls):
    first, again = labels(task, homes), labels(task, homes)
    assert calls == [5]
    assert first == again
    assert {len(path.instructions) for path in first} == {1}


def test_pooled_houses_have_the_labels_of_their_nodes(tmp_path, calls):
    homes = write_world(tmp_path / "world", seen=("houseA",), unseen=("houseC", "houseD"))
    task = task_with(stage="pre-exploration", **speaking(tmp_path))
    nodes = [task.load_node(homes, partition, 3).extra["paths"]["train"] for partition in (1, 2)]
    assert task.load_all(homes).extra["paths"]["train"] == nodes[0] + nodes[1]
    assert calls == [5, 5]


def test_other_inputs_are_other_labels(homes, task, calls, tmp_path):
    labels(task, homes)
    torch.manual_seed(7)
    other = saved(task_with(stage="speaker").build_model(), tmp_path / "other.safetensors")
    listeners = [saved(task_with().build_model(), tmp_path / f"listener-{number}.safetensors") for number in range(2)]
    Vocabulary(("walk", "the", *THINGS)).write(tmp_path / "words.txt")
    for changes in (
        {"speaker_file": other},
        {"sampled_paths": 4},
        {"sample_seed": 1},
        {"vocabulary_file": str(tmp_path / "words.txt")},
        {"max_length": 20},
        {"ablation": "angles-only"},
        {"speaker_temperature": 1.0},
        {"speaker_temperature": 1.0, "sample_seed": 1},
        {"speaker_temperature": 1.0, "speaker_samples": 2, "listener_file": listeners[0]},
        {"speaker_temperature": 1.0, "speaker_samples": 2, "listener_file": listeners[1]},
    ):
        before = len(calls)
        changed = with_options(task, **changes)
        assert labels(changed, homes) == labels(changed, homes)
        assert len(calls) == before + 1, changes
    unchanged = len(calls)
    labels(with_options(task, augmented_weight=0.1, hidden=8, learning="imitation"), homes)
    assert len(calls) == unchanged


def test_another_graph_is_another_label(tmp_path, calls):
    task, worlds = task_with(stage="pre-exploration", **speaking(tmp_path)), []
    for name in ("one", "two"):
        worlds.append(write_world(tmp_path / name))
    graph = next(worlds[1].rglob("houseC_connectivity.json"))
    graph.write_text(graph.read_text().replace("6.0", "6.25"))
    for homes in worlds:
        labels(task, homes)
    assert calls == [5, 5]
