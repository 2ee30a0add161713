"""A new node adapts the model of a run: as held-out nodes of the run do, from the run or from a model folder."""

import numpy as np
import pytest
import torch
from small_runs import run_inline

import fedapps
from fedapps.cli.commands import main

HELD_OUT = "robot-03"


@pytest.fixture(scope="module")
def folder(run_with_a_new_robot):
    return run_with_a_new_robot({"methods": "local,fedavg,apfl,h-fl,fedavg(run.learning-rate=0.1)"})


def robot(folder):
    return folder.path.parent / "robot"


@pytest.mark.parametrize("method", ["local", "fedavg", "apfl", "h-fl", "fedavg(run.learning-rate=0.1)"])
def test_it_is_what_a_held_out_node_of_the_run_has(folder, method):
    found = folder.summary()["methods"][method]["held_out"]["nodes"][HELD_OUT]
    for epochs, model in ((0, "shared"), (3, "adapted")):
        adapted = fedapps.adapt(folder.path, robot(folder), method, epochs=epochs)
        assert (adapted.origin.node, adapted.origin.method, adapted.origin.round) == (HELD_OUT, method, 3)
        assert adapted.origin.adapted_epochs == epochs
        metrics = adapted.origin.metrics
        assert metrics == {name: found[model][name] for name in metrics}


def test_a_held_out_node_has_no_model_before_it_is_adapted_if_it_has_private_parameters(folder):
    said = (
        "node = 'robot-03': it took part in no round of method 'local' .* fedapps adapt .*run --method local --data-dir"
    )
    with pytest.raises(ValueError, match=said):
        fedapps.load(folder.path, "local", HELD_OUT)
    for method in ("fedavg", "apfl", "h-fl"):  # it has what the others share, and what apfl trains before an evaluation
        assert fedapps.load(folder.path, method, HELD_OUT).origin.node == HELD_OUT


def test_a_model_folder_serves_as_well_and_the_result_is_one(folder, tmp_path):
    fedapps.load(folder.path, "fedavg").save(tmp_path / "shared")
    output = tmp_path / "own"
    model = fedapps.adapt(tmp_path / "shared", robot(folder), epochs=3, output=output)
    assert model.evaluate() == fedapps.adapt(folder.path, robot(folder), "fedavg", epochs=3).origin.metrics
    again = fedapps.load(output)
    assert again.origin == model.origin
    assert again.evaluate(robot(folder)) == model.evaluate()
    assert main(["export", str(output), "--format", "safetensors", "--output", str(tmp_path / "with-card")]) == 0
    card = (tmp_path / "with-card" / "README.md").read_text()
    assert f"which node {HELD_OUT} fitted to its own data afterwards" in card
    assert f"| epochs of adaptation | 3 (of node {HELD_OUT}) |" in card


def test_a_learning_rate_replaces_the_methods_own(folder):
    def gain(**given):
        return fedapps.adapt(folder.path, robot(folder), "fedavg", epochs=2, **given).module.policy.K.detach().numpy()

    assert np.array_equal(gain(), gain(learning_rate=0.01))
    assert not np.allclose(gain(), gain(learning_rate=0.05))


def test_the_command_prints_both_and_writes_the_model(folder, tmp_path, capsys):
    arguments = [str(folder.path), "--data-dir", str(robot(folder)), "--epochs", "2", "--output", str(tmp_path / "m")]
    assert main(["adapt", *arguments, "--method", "fedavg"]) == 0
    head, columns, *rest = capsys.readouterr().out.splitlines()
    assert head.startswith(f"node {HELD_OUT}, ")
    assert columns.split() == ["0", "epochs", "2", "epochs"]
    assert rest[-1] == f"model: {tmp_path / 'm'}"
    assert fedapps.load(tmp_path / "m").origin.adapted_epochs == 2


def test_the_help_says_that_a_model_in_the_folder_is_replaced(capsys):
    with pytest.raises(SystemExit):
        main(["adapt", "--help"])
    assert "replaces a model that is there" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": -1}, "epochs = -1, learning-rate = 0: both must be at least 0"),
        ({"learning_rate": float("nan")}, "learning-rate = nan: both must be at least 0"),
        ({"method": "none"}, "method = 'none': must be one of 'local', 'fedavg'"),
        ({"round": 99}, "round = 99: its checkpoint is not kept"),
        ({"data_dir": "/no/where"}, "data-dir = '/no/where': no such folder"),
    ],
)
def test_what_is_wrong_is_said_before_training(folder, changes, said):
    given = {"data_dir": robot(folder), "method": "fedavg", "epochs": 1} | changes
    with pytest.raises(ValueError, match=said):
        fedapps.adapt(folder.path, **given)


@pytest.mark.parametrize("by", ["function", "command"])
def test_a_full_folder_is_refused_before_training(folder, tmp_path, monkeypatch, capsys, by):
    monkeypatch.setattr("fedapps.clients.new_node.NewNode.adapt", lambda *_: pytest.fail("training has started"))
    (tmp_path / "notes").touch()
    if by == "function":
        with pytest.raises(ValueError, match=r"is not empty: choose another folder.*notes"):
            fedapps.adapt(folder.path, robot(folder), "fedavg", epochs=1, output=tmp_path)
        return
    model = ["--data-dir", str(robot(folder)), "--epochs", "0", "--output", str(tmp_path), "--method", "fedavg"]
    assert main(["adapt", str(folder.path), *model]) != 0
    assert "is not empty: choose another folder" in capsys.readouterr().err


def test_a_folder_without_data_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        fedapps.adapt(folder.path, tmp_path, "fedavg", epochs=1)


def test_a_model_folder_without_what_the_method_sends_is_refused(folder, tmp_path):
    fedapps.load(folder.path, "apfl").save(tmp_path / "shared")
    with pytest.raises(ValueError, match=r"method 'apfl' also sends adaptive\.rates, which a model folder does not"):
        fedapps.adapt(tmp_path / "shared", robot(folder), epochs=1)
    fedapps.load(folder.path, "fedavg", "robot-00").save(tmp_path / "own")
    with pytest.raises(ValueError, match="has the model of node robot-00: give the shared model"):
        fedapps.adapt(tmp_path / "own", robot(folder), epochs=1)


# -- private words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedvocab", "local"])
def test_a_device_adapts_its_own_words_and_leaves_the_shared_parameters_as_they_are(texts, method):
    folder, own = texts
    before, after = (fedapps.adapt(folder.path, own, method, epochs=epochs) for epochs in (0, 2))
    shared = set(fedapps.open_run(folder.path).arrays(method))
    moved = {
        name
        for name, tensor in after.module.state_dict().items()
        if not torch.equal(tensor, before.module.state_dict()[name])
    }
    assert moved
    assert moved <= shared if method == "fedavg" else not moved & shared
    assert after.predict(["win"]).labels.shape == (1,)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A run of three devices, and the folder of a fourth."""
    parent = tmp_path_factory.mktemp("texts")
    given = {
        "task": "text", "num-nodes": 3, "rounds": 1, "epochs": 1, "batch-size": 8, "learning-rate": 0.01,
        "collect-after": 0, "name": "run", "methods": "local,fedavg,fedvocab", "text.source": "simulated",
        "text.world-examples": 24, "text.embedding-width": 8, "text.hidden": 4, "text.vocabulary-size": 100,
        "cache-dir": str(parent / "worlds"),
    }  # fmt: skip
    folder = run_inline(given, parent)
    (world,) = (path for path in (parent / "worlds").glob("*") if path.is_dir())
    return folder, world
