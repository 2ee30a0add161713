"""The nodes of every task as Flower's ``NumPyClient``."""

import pytest
import torch
from fedapps.clients.numpy_client import evaluation_loss
from flwr.app import Context, Message, RecordDict
from trained_runs import RUNS, trained_run

from fedapps.app.node import Node
from fedapps.base.text_files import flattened
from fedapps.config.parsing import parse
from fedapps.runs.run_folder import read_config


@pytest.mark.usefixtures("flower_identity")
@pytest.mark.parametrize("task", RUNS)
def test_an_evaluation_returns_the_loss_of_the_task(task, tmp_path_factory):
    """It is the mean over the examples, taken here one after another; an accuracy or a part of the loss is another."""
    parent = tmp_path_factory.getbasetemp() / "trained-runs"
    parent.mkdir(exist_ok=True)
    config = parse(flattened(read_config(trained_run(task, parent).path)))
    run_config, nodes = config.flat(), config.run.num_nodes
    context = Context(1, 1, {"partition-id": 0, "num-partitions": nodes}, RecordDict(), run_config)
    client = Node(Message(RecordDict(), dst_node_id=0, message_type="evaluate"), context).numpy_client()
    parameters = client.get_parameters({})
    loss, _, metrics = client.evaluate(parameters, {})
    prepared = client.node.prepared_model(client._named(parameters), client.settings)
    core, data, model = client.node.task, prepared.node_round.data, prepared.at(0).eval()
    if task in ("vpr", "vln", "driving"):  # triplets are mined with the model; the others draw random numbers
        assert loss == evaluation_loss(prepared) > 0
        return
    split = "test" if data.count("test") else "train"
    with torch.no_grad():
        losses = [float(core.loss(model, example)) for example in core.examples(data, split, 1)]
    assert loss == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    if task in ("images", "text"):
        assert loss != pytest.approx(next(iter(metrics.values()))), "an accuracy"
