"""Where a node's data come from, that a simulated world is made once, and what the process keeps loaded."""

import multiprocessing
from dataclasses import replace

import pytest
import torch
from fedapps.clients.data import DataCache, DataSource, Growth, cached_load, find_source, newest_count, world_folder
from fedapps.tasks.base import DataError, NodeData
from small_world import make_small_world
from toys import ToyOptions, ToyTask

from fedapps.base import atomic
from fedapps.base.atomic import temporary_name

TASK = ToyTask()
PARTITION = {"partition-id": 1, "num-partitions": 3}


@pytest.fixture
def folders(tmp_path):
    """A node's own folder with the data of partition 2, a shared one with 0 to 3, and a cache."""
    own, shared, cache = (tmp_path / name for name in ("own", "shared", "cache"))
    own.mkdir()
    shared.mkdir()
    (own / "2.txt").touch()
    for partition in range(4):
        (shared / f"{partition}.txt").touch()
    return own, shared, cache


def source(node_config, cache, data_dir=""):
    return find_source(TASK, node_config, data_dir=str(data_dir), cache_dir=cache, seed=5)


def test_a_nodes_own_folder_comes_first(folders):
    own, shared, cache = folders
    found = source({**PARTITION, "data-dir": str(own)}, cache, data_dir=shared)
    assert found == DataSource(own, None, 1)
    assert found.load(TASK).key == "all-1"
    assert not cache.exists()


def test_then_the_partition_of_the_shared_folder(folders):
    _, shared, cache = folders
    found = source(PARTITION, cache, data_dir=shared)
    assert found == DataSource(shared, 1, 3)
    assert found.load(TASK).key == "toy-1"
    assert not cache.exists()


def test_then_a_world_in_the_cache(folders):
    _, _, cache = folders
    found = source(PARTITION, cache)
    assert found.folder.parent == cache
    assert found.load(TASK).key == "toy-1"
    assert (found.folder / "2.txt").read_text() == "2 5"  # its seed has come through


def test_without_folder_and_partition_the_error_says_what_to_do(folders):
    with pytest.raises(DataError, match="--node-config 'data-dir="):
        source({}, folders[2], data_dir=folders[1])


@pytest.mark.parametrize(
    ("node_config", "data_dir", "what"),
    [({"data-dir": "/nowhere/at/all"}, "", "the node's data-dir"), (PARTITION, "/nowhere/at/all", "data-dir")],
)
def test_a_missing_folder_is_an_error_that_names_it(node_config, data_dir, what, tmp_path):
    with pytest.raises(DataError, match=f"^{what} = '/nowhere/at/all': no such folder"):
        source(node_config, tmp_path, data_dir=data_dir)


def test_pooled_data_are_those_of_all_nodes_and_refused_on_an_own_folder(folders):
    own, shared, cache = folders
    assert source(PARTITION, cache, data_dir=shared).pooled(TASK).count("train") == 4 * 6
    with pytest.raises(DataError, match=r"a node's own folder.*only possible in simulation"):
        source({"data-dir": str(own)}, cache).pooled(TASK)


def test_a_world_is_made_once_and_kept(tmp_path):
    diary = tmp_path / "diary"
    diary.mkdir()
    task = ToyTask(ToyOptions(diary=str(diary)))
    folder = world_folder(task, 2, 0, tmp_path / "cache")
    assert world_folder(task, 2, 0, tmp_path / "cache") == folder
    assert len(list(diary.iterdir())) == 1


def test_other_nodes_seeds_and_options_have_other_worlds(tmp_path):
    worlds = [
        world_folder(ToyTask(ToyOptions(examples=examples)), nodes, seed, tmp_path)
        for examples, nodes, seed in [(6, 2, 0), (6, 3, 0), (6, 2, 1), (7, 2, 0)]
    ]
    assert len(set(worlds)) == 4
    assert [len(list(world.iterdir())) for world in worlds] == [2, 3, 2, 2]


def test_a_new_version_of_the_world_is_made_anew(tmp_path, monkeypatch):
    before = world_folder(TASK, 2, 0, tmp_path)
    monkeypatch.setattr(ToyTask, "world_version", 2)
    assert world_folder(TASK, 2, 0, tmp_path) != before


def test_a_world_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def fail(self, folder, num_nodes, seed):
        (folder / "0.txt").touch()
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ToyTask, "make_world", fail)
        with pytest.raises(OSError, match="no space left"):
            world_folder(TASK, 2, 0, tmp_path)
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert len(list(world_folder(TASK, 2, 0, tmp_path).iterdir())) == 2


def test_a_world_that_a_killed_process_left_half_made_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "still_runs", lambda pid, started: False)
    temporary_name(tmp_path / "world").mkdir()
    (tmp_path / ".users.12345").mkdir()
    folder = world_folder(TASK, 2, 0, tmp_path)
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {folder, tmp_path / ".users.12345"}


def test_without_locks_the_world_of_the_faster_process_is_taken(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError("No locks available")

    def overtaken(self, folder, num_nodes, seed, make=ToyTask.make_world):
        make(self, folder, num_nodes, seed)
        if not done:
            done.append(True)
            world_folder(TASK, num_nodes, seed, tmp_path)  # what the other process does

    done = []
    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(ToyTask, "make_world", overtaken)
    folder = world_folder(TASK, 2, 0, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.subprocesses
def test_processes_that_come_at_once_make_one_world(tmp_path):
    diary, cache = tmp_path / "diary", tmp_path / "cache"
    diary.mkdir()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(make_small_world, [(cache, diary)] * 2, chunksize=1)
    assert found[0] == found[1]
    assert len(list(diary.iterdir())) == 1
    assert sorted(path.name for path in found[0].iterdir()) == ["0.txt", "1.txt"]
    assert [path for path in cache.iterdir() if path.is_dir()] == [found[0]]


def test_loaded_data_are_kept_for_the_process(folders, monkeypatch):
    _, shared, _ = folders
    task, loads = ToyTask(), []
    real = task.load_node
    monkeypatch.setattr(task, "load_node", lambda *arguments: loads.append(1) or real(*arguments))
    first = cached_load(DataSource(shared, 1, 3), task, False)
    assert cached_load(DataSource(shared, 1, 3), task, False) is first
    assert cached_load(DataSource(shared, 1, 3), ToyTask(), False) is first
    assert len(loads) == 1
    other = ToyTask(replace(task.options, examples=4))
    assert cached_load(DataSource(shared, 1, 3), other, False).count("train") == 4
    assert cached_load(DataSource(shared, 1, 3), task, True).key == "all-4"


def used(cache, *keys):
    """Use keys in this order; the keys that had to be loaded. Each node has 24 bytes, in a split, a stage and extra."""
    loaded = []

    def load(key):
        loaded.append(key)
        one = {"x": torch.zeros(2)}
        return NodeData(key, {"train": one}, stages=({"train": one},), extra={"start": torch.zeros(2), "name": "a"})

    for key in keys:
        assert cache.get(key, lambda key=key: load(key)).key == key
    return "".join(loaded)


def test_nodes_that_take_turns_are_loaded_once_while_there_is_room():
    assert used(DataCache(nodes=1, size=72), *"abcabcabc") == "abc"


def test_a_number_of_nodes_is_kept_whatever_their_size():
    assert used(DataCache(nodes=2, size=0), *"abababab") == "ab"


def test_beyond_both_limits_the_data_used_longest_ago_goes():
    assert used(DataCache(nodes=2, size=71), *"abacbacab") == "abcbacb"


def test_a_cache_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache-dir: .*file/worlds cannot be created .*set cache-dir to another"):
        world_folder(TASK, 2, seed=0, cache_dir=tmp_path / "file" / "worlds")


def test_new_examples_are_those_behind_the_number_of_the_last_run(tmp_path):
    growth = Growth(tmp_path / "node.json")
    assert growth.before("week-1") == 0
    assert [growth.note("week-1", 5), growth.note("week-1", 5), growth.before("week-1")] == [True, False, 0]
    assert growth.before("week-2") == 5
    assert [growth.note("week-2", 8), growth.before("week-2")] == [True, 5]
    growth.note("week-2", 9)  # recorded during the run
    assert (growth.before("week-2"), growth.before("week-3")) == (5, 9)


def test_a_run_keeps_its_new_examples_while_others_train_in_between(tmp_path):
    growth = Growth(tmp_path / "node.json")
    growth.note("week-1", 5)
    growth.note("week-2", 8)
    for other in range(15):
        assert growth.before(f"other-{other}") == 8
        growth.note(f"other-{other}", 8)
    assert (growth.before("week-2"), growth.note("week-2", 8)) == (5, False)
    growth.note("week-2", 9)
    growth.note("another", 9)
    assert [growth.before(run) for run in ("week-2", "other-0", "other-1")] == [5, 9, 8], "the last 16 are known"


@pytest.mark.parametrize(
    "content",
    [b"", b'{"run": "wee', b"\0" * 40, b"[]", b"{}", b'{"runs": {"week-1": "0"}, "examples": 5}'],
    ids=["empty", "torn", "zeros", "a list", "no number", "a text"],
)
def test_a_damaged_number_of_the_last_run_is_as_none_and_is_written_anew(tmp_path, caplog, content):
    growth = Growth(tmp_path / "node.json")
    growth.path.write_bytes(content)
    assert growth.before("week-2") == 0
    assert f"{growth.path} is damaged" in caplog.text
    assert growth.note("week-2", 8)
    caplog.clear()
    assert growth.before("week-3") == 8
    assert not caplog.records


@pytest.mark.parametrize(("newest", "count"), [("all", 8), ("new", 3), ("2", 2), ("20", 8)])
def test_a_run_takes_all_the_new_or_the_newest_examples(newest, count):
    assert newest_count(newest, 8, 5) == count


@pytest.mark.parametrize(("count", "new"), [(0, 0), (4, 4), (5, 0), (6, 1)])
def test_of_fewer_examples_than_before_all_are_new(count, new):
    assert newest_count("new", count, 5) == new
