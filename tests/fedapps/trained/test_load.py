"""A loaded model is the one that the run evaluated, bit for bit, and a model folder has all of it."""

import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import tomli_w
import torch
from small_runs import LQR, run_inline
from toys import same_bits
from trained_runs import RUNS, last_evaluation, world_of

import fedapps
from fedapps.registry.expressions import split_expressions

CASES = [(task, method) for task, methods in RUNS.items() for method in split_expressions(methods)]
#: Of each task, one method is quick: the first, with which nothing is private or trained before an evaluation.
QUICK = [(task, split_expressions(methods)[0]) for task, methods in RUNS.items()]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(model):
    return {name: tensor.cpu().numpy() for name, tensor in model.module.state_dict().items()}


@pytest.mark.parametrize(
    ("task", "method"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_nodes_model_has_the_metrics_that_the_run_reported(runs, task, method):
    folder = runs(task)
    before = contents(folder.path)
    for node, reported in last_evaluation(folder, method).items():
        model = fedapps.load(folder.path, method, node)
        metrics = model.evaluate()
        assert metrics
        assert metrics == {name: reported[name] for name in metrics}
        assert (model.origin.method, model.origin.node, model.origin.metrics) == (method, node, reported)
    assert contents(folder.path) == before  # a run is only read


def test_the_shared_model_is_the_one_of_a_node_that_does_nothing_before_an_evaluation(runs):
    folder = runs("lqr")
    shared = weights(fedapps.load(folder.path, "fedavg"))
    assert same_bits(shared, weights(fedapps.load(folder.path, "fedavg", "robot-01")))
    assert same_bits(shared, fedapps.open_run(folder.path).arrays("fedavg"))
    assert not same_bits(
        weights(fedapps.load(folder.path, "apfl")), weights(fedapps.load(folder.path, "apfl", "robot-01"))
    )


def test_clusters_have_models_of_their_own_beside_the_shared_one(runs):
    folder = runs("lqr")
    for method in ("clustered", "h-fl"):
        models = [weights(fedapps.load(folder.path, method, f"robot-0{robot}"))["policy.K"] for robot in range(3)]
        shared = weights(fedapps.load(folder.path, method))["policy.K"]
        assert len({one.tobytes() for one in [*models, shared]}) > 2


def test_origin_says_where_a_model_comes_from(runs):
    folder = runs("lqr")
    origin = fedapps.load(folder.path, "apfl", "robot-01").origin
    assert (origin.run, origin.round, origin.rounds, origin.seed) == ("run", 3, 3, 0)
    assert origin.nodes == 3
    sizes = {row["node"]: row["num_examples"] for row in folder.lines("nodes.jsonl") if row["phase"] == "train"}
    assert origin.examples == sizes["robot-01"]
    assert fedapps.load(folder.path, "fedavg").origin.examples == sum(sizes.values())
    assert origin.settings["lqr.horizon"] == LQR["lqr.horizon"]
    assert torch.__version__.startswith(origin.versions["torch"])


@pytest.mark.parametrize(
    ("method", "has_metrics"), [("fedavg", True), ("clustered", True), ("h-fl", True), ("apfl", False)]
)
def test_the_metrics_of_the_shared_model_are_its_own(runs, method, has_metrics):
    """Under clustered FL and H-FL nodes report them beside those of their clusters, under APFL not at all."""
    path = runs("lqr").path
    shared = fedapps.load(path, method)
    assert bool(shared.origin.metrics) == bool(shared.origin.spread) == has_metrics
    if has_metrics:
        own = [fedapps.load(path, method, f"robot-0{robot}").own for robot in range(3)]
        losses = [shared.evaluate(data)["test.total_loss"] for data in own]
        assert shared.origin.metrics["test.total_loss"] == pytest.approx(sum(losses) / 3)
        assert shared.origin.spread["test.total_loss"]["mean"] == pytest.approx(sum(losses) / 3)


# -- rounds -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def six_rounds(tmp_path_factory):
    """A run of which one robot trains in each round, and whose tracked metric is best in the first one."""
    folder = tmp_path_factory.mktemp("rounds")
    given = LQR | {
        "rounds": 6, "fraction-train": 0.4, "methods": "local,fedavg", "cache-dir": str(folder / "worlds"),
        "track-metric": "test.total_loss", "track-mode": "max",
    }  # fmt: skip
    return run_inline(given, folder)


def test_the_best_round_is_loaded_with_the_private_state_of_that_round(six_rounds):
    rows = [row for row in six_rounds.lines("nodes.jsonl") if row["method"] == "local"]
    best = fedapps.load(six_rounds.path, "local", "robot-00", "best").origin.round
    assert best == 1  # the greatest loss: long before the last two rounds
    for node in ("robot-00", "robot-01", "robot-02"):
        for server_round in (best, 5, 6):
            model = fedapps.load(six_rounds.path, "local", node, "best" if server_round == best else server_round)
            metrics = model.evaluate(final=server_round == 6)
            (reported,) = (
                row["metrics"] for row in rows
                if (row["round"], row["node"], row["phase"]) == (server_round, node, "evaluate")
            )  # fmt: skip
            assert metrics == {name: reported[name] for name in metrics}


def test_a_round_that_is_not_kept_is_refused_with_those_that_are(six_rounds):
    with pytest.raises(ValueError, match=r"round = 3: .* there are those of \[5, 6\] and 1, the best one"):
        fedapps.load(six_rounds.path, "fedavg", round=3)
    with pytest.raises(ValueError, match="round = 'last': must be a round, 'best' or None"):
        fedapps.load(six_rounds.path, "fedavg", round="last")
    assert fedapps.load(six_rounds.path, "fedavg", round=1).origin.round == 1  # it is the best one


# -- errors -----------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(six_rounds, tmp_path):
    """A copy of the run, elsewhere."""
    shutil.copytree(six_rounds.path, tmp_path / "moved")
    return tmp_path / "moved"


def test_a_run_folder_may_be_moved(copied, six_rounds):
    moved, there = (fedapps.load(path, "local", "robot-02") for path in (copied, six_rounds.path))
    assert same_bits(weights(moved), weights(there))
    assert moved.origin.run == "moved"


# -- the run of a stranger ---------------------------------------------------------------------------------------


@pytest.fixture
def strangers(copied, tmp_path, monkeypatch):
    """A function of changes of the config of a copied run; the home folder is in ``tmp_path``."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def change(**changes):
        config = tomllib.loads((copied / "config.toml").read_text())
        given = {key.replace("_", "-"): value for key, value in changes.items()}
        (copied / "config.toml").write_text(tomli_w.dumps(config | given))
        return copied

    return change


def test_a_run_does_not_say_where_its_world_is_simulated(strangers, six_rounds, tmp_path):
    run = strangers(cache_dir=str(tmp_path / "theirs"))
    model = fedapps.load(run, "local", "robot-02")
    assert same_bits(weights(model), weights(fedapps.load(six_rounds.path, "local", "robot-02")))
    assert model.evaluate()
    (world,) = (path for path in (tmp_path / "home" / "fedapps" / "worlds").iterdir() if path.is_dir())
    assert sorted(path.name for path in world.iterdir()) == ["robot-00.csv", "robot-01.csv", "robot-02.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "moved"]


def test_a_world_that_is_in_the_cache_of_the_run_is_read_there(strangers, tmp_path):
    assert fedapps.load(strangers(), "fedavg", "robot-02").evaluate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved"]


def test_a_run_of_a_million_nodes_is_not_simulated(strangers, tmp_path):
    run = strangers(num_nodes=1_000_000, cache_dir=str(tmp_path / "theirs"))
    with pytest.raises(ValueError, match=r"num-nodes = 1000000, but nodes.jsonl names 3 nodes; the data of at most 30"):
        fedapps.load(run, "fedavg", "robot-02")
    assert fedapps.load(run, "fedavg").origin.round == 6, "the shared model needs no data"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "fedprox"}, "method = 'fedprox': must be one of 'local', 'fedavg'"),
        ({}, "name one of 'local', 'fedavg'"),
        (
            {"method": "fedavg", "node": "car-1"},
            "'fedavg' has no such node; its nodes are robot-00, robot-01, robot-02",
        ),
        ({"method": "local"}, r"no model that all nodes share, because \* stays on the nodes: give one of .*robot-00"),
        ({"method": "fedavg", "device": "abacus"}, "device = 'abacus': must be auto, cpu or cuda"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(six_rounds, given, message):
    with pytest.raises(ValueError, match=message):
        fedapps.load(six_rounds.path, **given)


def test_a_folder_without_a_model_is_refused(six_rounds, tmp_path):
    with pytest.raises(ValueError, match="there is no such folder"):
        fedapps.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"it has no config.toml; it has the run folders .*run"):
        fedapps.load(six_rounds.path.parent)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"config.json": {"format": 1}}, r"it has config\.json, but no model\.safetensors"),
        ({"model.safetensors": {}}, r"it has model\.safetensors, but no config\.json"),
        ({"config.json": {"format": "onnx"}, "model.onnx": {}}, "it is an export in the format 'onnx'; other programs"),
        ({"config.json": {"model_type": "bert"}, "model.safetensors": {}}, "it is a model of the library transformers"),
    ],
)
def test_a_folder_with_a_part_of_a_model_is_refused_with_what_it_lacks(tmp_path, content, message):
    for name, values in content.items():
        (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        fedapps.load(tmp_path)


def test_damaged_and_missing_files_are_named(copied):
    checkpoint = copied / "checkpoints" / "fedavg" / "round-000006.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"round-000006.safetensors is damaged"):
        fedapps.load(copied, "fedavg", round=6)
    with pytest.raises(ValueError, match=r"round-000006.safetensors is damaged .*choose round 5, or resume the run"):
        fedapps.load(copied, "fedavg")
    newest = max(copied.glob("nodes/*/local/*/round-*.safetensors"), key=lambda path: path.name)
    node = newest.parent.name
    newest.write_bytes(b"half")
    with pytest.raises(ValueError, match=rf"{newest.name} is damaged"):
        fedapps.load(copied, "local", node)
    newest.rename(copied / "aside")
    with pytest.raises(ValueError, match=rf"node = '{node}', round = 6: the node's private state is missing"):
        fedapps.load(copied, "local", node)
    for older in newest.parent.glob("round-*.safetensors"):
        older.unlink()
    shutil.copy(copied / "aside", newest.with_name("round-000006.safetensors"))
    with pytest.raises(ValueError, match=r"has only later rounds; load the last round"):
        fedapps.load(copied, "local", node, 5)
    shutil.rmtree(newest.parent)
    with pytest.raises(ValueError, match=r"it is on the node itself .*keep-model"):
        fedapps.load(copied, "local", node)
    shutil.rmtree(copied / "checkpoints" / "local")
    with pytest.raises(ValueError, match="method 'local' has no checkpoint yet"):
        fedapps.load(copied, "local", node)


def test_the_model_of_a_deployed_node_is_on_the_node(copied):
    lines = (copied / "nodes.jsonl").read_text().replace("robot-02", "car-7")
    (copied / "nodes.jsonl").write_text(lines)
    with pytest.raises(ValueError, match="its data and its private state are on the node itself"):
        fedapps.load(copied, "local", "car-7")
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(re.sub('data-dir = ""', 'data-dir = "/no/such/folder"', config))
    with pytest.raises(
        ValueError, match=r"on the node itself \(the data of the run cannot be read here: .*no such folder"
    ):
        fedapps.load(copied, "local", "car-7")


def test_a_deployed_node_with_the_key_of_a_simulated_one_gets_no_simulated_data(copied):
    rows = [json.loads(line) for line in (copied / "nodes.jsonl").read_text().splitlines()]
    own = [row | ({"own_data": True} if row["node"] == "robot-01" else {}) for row in rows]
    (copied / "nodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    with pytest.raises(ValueError, match=r"robot-01.*on the node itself; take its model there"):
        fedapps.load(copied, "local", "robot-01")
    assert fedapps.load(copied, "local", "robot-00").origin.node == "robot-00"


# -- model folders ----------------------------------------------------------------------------------------------

_OTHER_PROCESS = """
import hashlib, json, sys
import torch
from fedapps.registry.tasks import task_class
from fedapps.tasks.trained import TrainedModel

{digest}

print(json.dumps({{folder: digest(TrainedModel.read(folder, task_class)) for folder in sys.argv[1:]}}))
assert "flwr" not in sys.modules
"""


def digest(model):
    """A number for what the network of a model computes."""
    network = model.network()
    with torch.no_grad():
        outputs = network.module(*network.inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return hashlib.sha256(b"".join(output.numpy().tobytes() for output in outputs)).hexdigest()


@pytest.mark.slow
@pytest.mark.subprocesses
def test_another_process_computes_the_same_from_the_model_folders_alone(runs, tmp_path):
    expected = {}
    for task, method in CASES:
        folder = runs(task)
        node = next(iter(last_evaluation(folder, method)))
        model = fedapps.load(folder.path, method, node)
        expected[str(model.save(tmp_path / f"{task}-{len(expected)}"))] = digest(model)
    hidden = [runs(task).path.parent for task in RUNS]
    places = [path.rename(path.with_name(f"{path.name}-hidden")) for path in hidden]
    try:
        found = subprocess.run(
            [sys.executable, "-c", _OTHER_PROCESS.format(digest=inspect.getsource(digest)), *expected],
            capture_output=True, text=True, check=False, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    finally:
        for place, path in zip(places, hidden, strict=True):
            place.rename(path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == expected


def test_a_model_folder_evaluates_as_the_run_did(runs, tmp_path):
    folder = runs("text")
    for number, method in enumerate(split_expressions(RUNS["text"])):
        for partition, (node, reported) in enumerate(last_evaluation(folder, method).items()):
            kept = fedapps.load(folder.path, method, node).save(tmp_path / f"{number}-{node}")
            model = fedapps.load(kept)
            metrics = model.evaluate(model.data(world_of(folder), partition, 3))
            assert metrics == {name: reported[name] for name in metrics}
            assert "test.global_accuracy" in metrics


def test_a_model_folder_has_one_model(runs, tmp_path):
    kept = fedapps.load(runs("lqr").path, "apfl", "robot-01").save(tmp_path / "kept")
    with pytest.raises(ValueError, match="node = 'robot-02': the model folder has the model with node = 'robot-01'"):
        fedapps.load(kept, "apfl", "robot-02", 3)
