"""The profiles of nodes, which need no torch, equal those of the loaded data."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.vpr import backbones, layers, options

from fedapps.base.errors import DataError
from fedapps.config.keys import defaults
from fedapps.registry.tasks import own_tasks, profiles_class, task_class

NODES = 3
TASKS = own_tasks()
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


def test_every_task_has_the_half_that_needs_no_torch():
    for name in TASKS:
        assert profiles_class(name).__module__ == f"fedapps.tasks.{name}.profile"
        assert issubclass(task_class(name), profiles_class(name))
        assert profiles_class(name).name == name


def test_the_names_that_options_know_are_those_there_are():
    assert tuple(backbones.BACKBONES) == options.BACKBONES
    assert tuple(layers.POOLINGS) == options.POOLINGS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_profile_says_what_the_loaded_data_say(worlds, name, given):
    chosen = profiles_class(name).Options(**given)
    task, profiles = task_class(name)(chosen), profiles_class(name)(chosen)
    assert (profiles.has_world, profiles.world_options) == (task.has_world, task.world_options)
    folder = worlds(profiles)
    for node in range(NODES):
        assert profiles.node_profile(folder, node, NODES) == task.load_node(folder, node, NODES).profile()
    kept_apart = PrivateParameters(("embedding.*",))  # otherwise a text node needs the words of all nodes
    ours, theirs = profiles.under(kept_apart), task.under(kept_apart)
    assert answer(lambda: ours.own_profile(folder)) == answer(lambda: theirs.load_own(folder).profile())


def answer(question):
    """The profile, or the words of the refusal: not every world is one that a deployed node could own."""
    try:
        return question()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", SMALL)
def test_data_that_cannot_be_loaded_have_no_profile(worlds, tmp_path, name):
    given = next(given for case, given in CASES if case == name)
    chosen = profiles_class(name).Options(**given)
    task, profiles = task_class(name)(chosen), profiles_class(name)(chosen)
    torn = tmp_path / "torn"
    shutil.copytree(worlds(profiles), torn)
    for path in sorted(path for path in torn.rglob("*") if path.is_file()):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for folder in (tmp_path, torn):
        with pytest.raises(DataError) as ours:
            profiles.node_profile(folder, 0, NODES)
        with pytest.raises(DataError) as theirs:
            task.load_node(folder, 0, NODES)
        assert str(ours.value) == str(theirs.value)


ANSWER = """
import json, sys
from flwr.app import Context, Message, RecordDict
from fedapps.app.client_app import app
from fedapps.sim.flower_internals import flower_identity
for run_config, folder, nodes in json.loads(sys.argv[1]):
    node_config = {"partition-id": 0, "num-partitions": nodes}
    context = Context(run_id=1, node_id=2, node_config=node_config, state=RecordDict(), run_config=run_config)
    with flower_identity():
        reply = app(Message(RecordDict(), dst_node_id=2, message_type="query.profile"), context)
    heavy = ("torchvision", "transformers", "datasets", "matplotlib", "ray")
    print(json.dumps([dict(reply.content["profile"]), [name for name in heavy if name in sys.modules]]))
"""


@pytest.mark.subprocesses
def test_a_worker_answers_the_profile_query_without_what_training_alone_needs(worlds):
    methods = {"driving": "apfl", "lqr": "apfl", "text": "fedvocab"}
    given, expected = [], []
    for name in sorted(SMALL, key="images".__eq__):  # the last one divides its images by flwr-datasets
        own = next(given for case, given in CASES if case == name)
        chosen = profiles_class(name).Options(**own)
        folder = worlds(profiles_class(name)(chosen))
        run_config = defaults() | {f"{name}.{key.replace('_', '-')}": value for key, value in own.items()}
        run_config |= {
            "task": name,
            "methods": methods.get(name, "fedavg"),
            "data-dir": str(folder),
            "num-nodes": NODES,
        }
        given.append((run_config, str(folder), NODES))
        profile = task_class(name)(chosen).load_node(folder, 0, NODES).profile()
        groups = {f"group.{kind}": label for kind, label in profile.groups.items()}
        expected.append({"key": profile.key, "num-examples": profile.num_examples, **groups})
    answered = subprocess.run(
        [sys.executable, "-c", ANSWER, json.dumps(given)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    profiles, imported = zip(*map(json.loads, answered.stdout.splitlines()), strict=True)
    assert list(profiles) == expected
    assert imported[:-1] == ([],) * (len(SMALL) - 1)
    assert imported[-1] == ["datasets", "matplotlib"]


LOAD = """
import sys
from fedapps.registry.tasks import own_tasks, task_class
from fedapps.app import client_app
for name in own_tasks():
    task_class(name)()
assert "torch" in sys.modules
print("torchvision" in sys.modules)
"""


@pytest.mark.subprocesses
def test_tasks_are_loaded_without_torchvision():
    """Only the network and the images of "vpr" need it, and its import takes as long as that of torch."""
    ran = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert ran.stdout.split() == ["False"]
