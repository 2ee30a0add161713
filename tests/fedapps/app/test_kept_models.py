"""Deployed nodes that keep their personal models: the evaluated one, the trained one, and never a failed round."""

import pytest
from fedapps.tasks.lqr.world import write_world
from fedapps.tasks.trained import TrainedModel

from fedapps.registry.tasks import task_class

ROBOTS = ("robot-00", "robot-01", "robot-02")


@pytest.fixture(scope="module")
def own_folders(tmp_path_factory):
    """The data folders of three robots."""
    folder, found = tmp_path_factory.mktemp("robots"), []
    for path in write_world(folder, len(ROBOTS), seed=1, count=4, horizon=6):
        own = folder / path.stem
        own.mkdir()
        found.append(path.rename(own / path.name).parent)
    return found


@pytest.fixture
def deployed(federate, own_folders, tmp_path):
    """Run the app on nodes with folders and more keys of their node configs; the run's folder."""

    def run(more=({}, {}, {}), **changes):
        configs = [
            {"data-dir": str(own), "state-dir": str(tmp_path / f"state-{index}"), "keep-model": True, **more[index]}
            for index, own in enumerate(own_folders)
        ]
        return federate(node_configs=configs, **changes)

    return run


def models(tmp_path, method, index):
    return tmp_path / f"state-{index}" / "models" / "run" / method / ROBOTS[index]


def read(folder):
    return TrainedModel.read(folder, task_class)


def reported(run, node):
    """The metrics of a node's last evaluation, as the server has them."""
    return [row for row in run.lines("nodes.jsonl") if (row["phase"], row["node"]) == ("evaluate", node)][-1]["metrics"]


@pytest.mark.parametrize("method", ["fedavg", "apfl", "sfl"])
def test_after_an_evaluation_it_is_the_evaluated_model_to_the_bit(deployed, own_folders, tmp_path, method):
    """Shared, personalised before the evaluation, and with a private part."""
    run = deployed(methods=method)
    for index, node in enumerate(ROBOTS):
        folder = models(tmp_path, method, index)
        found = sorted(path.name for path in folder.iterdir())
        assert found == ["current", "round-000003-evaluate", "round-000003-train"]
        model = read(folder / "current")
        assert (model.origin.node, model.origin.method, model.origin.round) == (node, method, 3)
        assert model.origin.nodes == 0, "a node does not know how many took part"
        metrics = model.evaluate(own_folders[index])
        assert {**reported(run, node), **metrics} == reported(run, node)
        assert metrics.keys() >= {"test.total_loss"}


def test_it_changes_no_message(deployed, federate, own_folders, tmp_path):
    kept = deployed(methods="sfl")
    without = deployed(
        [{"keep-model": False, "state-dir": str(tmp_path / f"other-{index}")} for index in range(3)],
        methods="sfl",
        place="without",
    )
    assert kept.lines("nodes.jsonl") == without.lines("nodes.jsonl")
    same = ("bytes_down", "bytes_up")
    for mine, theirs in zip(kept.lines("metrics.jsonl"), without.lines("metrics.jsonl"), strict=True):
        assert [mine[key] for key in same] == [theirs[key] for key in same]
    assert not list(tmp_path.glob("other-*/models"))


def test_a_model_that_cannot_be_written_costs_no_round(deployed, tmp_path, caplog):
    folder = models(tmp_path, "sfl", 0)
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    run = deployed(methods="sfl")
    assert [row["replies"] for row in run.lines("metrics.jsonl")] == [3, 3, 3]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 6, "in training and in evaluation"
    assert said[0].startswith(f"the model of round 1 is not kept: {folder}/round-000001-train cannot be written (")
    assert (models(tmp_path, "sfl", 1) / "current").exists()
