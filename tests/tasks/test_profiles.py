"""The profiles of nodes equal those of the loaded data; batches are padded with zeros."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fedapps.tasks.profiles import PrivateParameters, zero_padded

from fedapps.base.errors import DataError
from fedapps.registry.tasks import task_class

NODES = 3
SMALL = {
    "driving": [
        {"sessions_train": 2, "sessions_test": 1},
        {"sessions_train": 2, "sessions_test": 1, "window_stride": 7, "history": 3, "min_history": 9, "horizon": 11},
        {"sessions_train": 1, "sessions_test": 1, "scenario": "three-cars", "horizon": 200},
    ],
    "images": [
        {},
        {"partition": "pathological", "validation_share": 0.3, "partition_seed": 3, "global_share": 0.5},
        {"partition": "iid", "normalise": "data", "global_examples": 20},
    ],
    "lqr": [{"trajectories": 3, "horizon": 5}, {"trajectories": 9, "horizon": 2, "test_fraction": 0.9}],
    "social": [
        {"source": "simulated", "world_scenes": 20, "participants": "a,b;c,d;e,f"},
        {"source": "simulated", "world_scenes": 21, "participants": "a;b,c;d", "together": True, "augment": False},
        {"source": "simulated", "world_scenes": 22, "participants": "a;b;c", "train_fraction": 0.3, "split_seed": 5},
    ],
    "text": [
        {"source": "simulated", "world_examples": 40},
        {"source": "simulated", "world_examples": 41, "validation_share": 0.33, "partition_seed": 3, "alpha": 0.1},
        {"source": "simulated", "world_examples": 40, "partition": "linear"},
    ],
    "vln": [
        {"source": "simulated", "world_paths": 6, "world_seen_paths": 2},
        {"source": "simulated", "world_paths": 7, "world_seen_paths": 2, "houses": "unseen"},
    ],
    "vpr": [
        {"source": "simulated", "height": 16, "backbone": "squeezenet1_1-stride8", "train_all": True, **more}
        for more in ({}, {"local_share": 0.4}, {"split": "random", "validation_clients": 1}, {"split": "clustering"})
    ],
}
WORLD = {"vpr": {"world_cities": 3, "world_test_cities": 1, "world_metres": 160.0, "surplus": "draw"}}
#: The files of worlds that are the same for every seed.
FIXED = {"images": {"train.npz"}, "vln": {"scans.txt"}, "vpr": {"continents.csv"}}
CASES = [(name, {**given, **WORLD.get(name, {})}) for name, each in SMALL.items() for given in each]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """The folder of a task's world, made once for all options that it does not depend on."""
    made = {}

    def world(task):
        key = json.dumps([task.name, dict(task.world_options)], sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp(task.name)
            task.make_world(made[key], NODES, seed=1)
        return made[key]

    return world


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_profile_says_what_the_loaded_data_say(worlds, name, given):
    chosen = task_class(name).Options(**given)
    task = task_class(name)(chosen)
    folder = worlds(task)
    for node in range(NODES):
        assert task.node_profile(folder, node, NODES) == task.load_node(folder, node, NODES).profile()
    task = task.under(PrivateParameters(("embedding.*",)))  # otherwise a text node needs the words of all nodes
    assert answer(lambda: task.own_profile(folder)) == answer(lambda: task.load_own(folder).profile())


def answer(question):
    """The profile, or the words of the refusal: not every world is one that a deployed node could own."""
    try:
        return question()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", SMALL)
def test_data_that_cannot_be_loaded_have_no_profile(worlds, tmp_path, name):
    given = next(given for case, given in CASES if case == name)
    chosen = task_class(name).Options(**given)
    task = task_class(name)(chosen)
    torn = tmp_path / "torn"
    shutil.copytree(worlds(task), torn)
    for path in sorted(path for path in torn.rglob("*") if path.is_file()):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for folder in (tmp_path, torn):
        with pytest.raises(DataError) as ours:
            task.node_profile(folder, 0, NODES)
        with pytest.raises(DataError) as theirs:
            task.load_node(folder, 0, NODES)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "vpr" else name for name in SMALL]
)
def test_a_world_repeats_with_its_seed(worlds, tmp_path, name):
    given = next(given for case, given in CASES if case == name)
    task = task_class(name)(task_class(name).Options(**given))
    for folder, seed in (("again", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        task.make_world(tmp_path / folder, NODES, seed)
    one, again, other = (contents(folder) for folder in (worlds(task), tmp_path / "again", tmp_path / "other"))
    assert one == again
    assert {path.name for path in one if one[path] == other.get(path)} == FIXED.get(name, set())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LOAD = """
import sys
from fedapps.registry.tasks import own_tasks, task_class
from fedapps.app import client_app
for name in own_tasks():
    task_class(name)()
assert "torch" in sys.modules
print("torchvision" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.subprocesses
def test_tasks_are_loaded_without_torchvision():
    """Only the network and the images of "vpr" need it, and its import takes as long as that of torch."""
    ran = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert ran.stdout.split() == ["False"]


def test_tensors_are_padded_at_their_ends():
    narrow, wide = {"x": torch.ones(1, 1, 2)}, {"x": torch.full((1, 2, 1), 2.0)}
    first, second = zero_padded([narrow, wide])
    assert first["x"].tolist() == [[[1, 1], [0, 0]]]
    assert second["x"].tolist() == [[[2, 0], [2, 0]]]


def test_batches_of_equal_shapes_stay_as_they_are():
    batches = [{"x": torch.rand(2, 3), "y": torch.rand(2)} for _ in range(2)]
    for one, other in zip(zero_padded(batches), batches, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
