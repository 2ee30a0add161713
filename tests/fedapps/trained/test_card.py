"""The model card: what Hugging Face reads from it, the facts of the run, and what it says about privacy."""

import re

import pytest
import torch
from fedapps.tasks.answers import Network
from fedapps.tasks.lqr.task import LqrTask, LqrTrained
from fedapps.tasks.lqr.world import A
from fedapps.tasks.partitioners import adjust_logits
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.trained import TextTrained
from fedapps.tasks.trained import Origin
from huggingface_hub import ModelCard

import fedapps
from fedapps.trained.export import card
from fedapps.trained.formats import Onnx, Safetensors, Written
from fedapps.trained.programs import Difference

WRITTEN = Written({"model.safetensors": "all weights"}, "import fedapps")


def of_robots(private=PrivateParameters(), **origin):  # noqa: B008 - immutable
    task = LqrTask()
    torch.manual_seed(0)
    return LqrTrained(task, task.build_model(), {}, Origin(**origin), private=private)


def section(text, title):
    return re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]


def rows_of(table):
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    return {row[0]: row[1:] for row in cells}


def test_the_facts_and_metrics_are_those_of_the_run(runs, tmp_path):
    run = runs("lqr")
    model = fedapps.load(run.path, "fedavg")
    text = (fedapps.export(model, "safetensors", tmp_path / "m", licence="mit").folder / "README.md").read_text()
    read = ModelCard(text).data
    assert (read.license, read.library_name, read.pipeline_tag) == ("mit", "fedapps", "robotics")
    assert {"federated-learning", "fedapps", "lqr", "fedavg", "safetensors"} <= set(read.tags)
    final = run.summary()["methods"]["fedavg"]["final"]
    found = {result.metric_type: result.metric_value for result in read.eval_results}
    assert found["test.total_loss"] == final["test.total_loss"]
    facts = rows_of(text.partition("## Use")[0])
    assert facts["round"] == ["3 of 3"]
    assert facts["nodes"] == ["3"]
    assert facts["parameters"] == [str(A.size + 2 + 2)]
    assert "McMahan" in facts["paper of the method"][0]
    trained = {row["node"]: row["num_examples"] for row in run.lines("nodes.jsonl") if row["phase"] == "train"}
    assert facts["training examples"] == [str(int(sum(trained.values())))]
    shown = section(text, "Settings")
    assert "learning-rate = 0.01" in shown
    assert "lqr.horizon = 6" in shown
    assert "output-dir" not in shown
    assert "spfl" not in shown
    assert str(run.path.parent) not in text
    assert "All trained parameters were shared" in section(text, "What was private")


def test_the_interval_over_nodes_by_hand():
    """Of 1, 2 and 3, the mean is 2 and half the interval 4.303 x 1 / √3 = 2.484."""
    spread = {"test.total_loss": {"mean": 2.0, "nodes": 3, "low": -0.484, "high": 4.484}}
    model = of_robots(method="fedavg", round=4, metrics={"test.total_loss": 1.9}, spread=spread)
    rows = rows_of(section(card(model, Safetensors(), WRITTEN, "unknown"), "Metrics"))
    assert rows["test total loss  (lower is better)"] == ["1.900", "2", "−0.4840 to 4.484", "3"]


def test_a_personal_model_says_what_it_has_of_its_node():
    private = PrivateParameters(("policy.*",))
    text = card(of_robots(private, method="spfl", node="robot-7", nodes=3), Safetensors(), WRITTEN, "unknown")
    assert "The personal model of node robot-7" in text
    said = section(text, "What was private")
    assert "Parameters that stayed on the nodes in training: `policy.*`." in said
    assert "this node's private parameters (1 tensor, 2 numbers)" in said
    assert "no guarantee of differential privacy" in said
    guarded = of_robots(method="fedavg", node="robot-7", guarantee="dp = local: epsilon = 3 at delta = 1e-05")
    said = section(card(guarded, Safetensors(), WRITTEN, "unknown"), "What was private")
    assert "Differential privacy: dp = local: epsilon = 3 at delta = 1e-05." in said
    assert "does not cover what is personal" in said


def test_a_vocabulary_of_a_node_is_named():
    task = TextTask(TextTask.Options(source="simulated", hidden=4, embedding_width=4))
    facts = {"classes": ["up", "down"], "words": ["<pad>", "<unk>", "secret"]}
    model = TextTrained(task, task.model_of(facts, None), facts, Origin(method="fedvocab", node="client-1"))
    said = section(card(model, Safetensors(), WRITTEN, "unknown"), "What was private")
    assert "Facts of this node that inputs need are in the files, too: `classes`, `words`." in said
    added = "Its logits have the logarithms of this node's label shares added, as in the evaluation on the node's own"
    assert added not in said
    adjust_logits(model.module, torch.zeros(2, dtype=torch.float64))
    assert added in section(card(model, Safetensors(), WRITTEN, "unknown"), "What was private")


ALL_SHARED = "All trained parameters were shared."


@pytest.mark.parametrize(
    ("method", "private", "node", "whose", "shared"),
    [
        ("fedavg", (), "", "The model that all nodes share, trained by federated learning.", ALL_SHARED),
        ("fedavg(logit-adjustment=1)", (), "robot-7", "of node robot-7, trained by federated learning.", ALL_SHARED),
        ("not-installed(mu=0.1)", (), "", "trained by a method that is not installed here.", ALL_SHARED),
        ("centralized", (), "", "without federated learning", "Nothing: one node had the data of all nodes."),
        ("local", ("*",), "robot-7", "of node robot-7, which trained alone", "each node trained alone"),
        ("", (), "", "A model of the task lqr. How it was trained is not recorded.", "is not recorded."),
    ],
)
def test_whose_model_it_is_and_what_was_shared(method, private, node, whose, shared):
    text = card(of_robots(PrivateParameters(private), method=method, node=node), Safetensors(), WRITTEN, "unknown")
    assert whose in text
    assert shared in section(text, "What was private")
    assert ("federated-learning" in ModelCard(text).data.tags) == method.startswith("fedavg")
    assert ModelCard(text).data.license == "unknown"
    assert "No evaluation of this model is recorded." in text


def test_a_network_has_its_inputs_and_what_stays_outside():
    module = torch.nn.Identity()
    inputs = torch.zeros(2, 5, dtype=torch.int32), torch.zeros(2, 3)
    dynamic = {"ids": {0: "batch", 1: "words"}, "x": {0: "batch"}}
    network = Network(module, inputs, ("ids", "x"), ("a", "b"), dynamic, "The planner stays outside.")
    written = Written({"model.onnx": "the network"}, "run()", network, Difference(3e-8, 1e-7))
    use = section(card(of_robots(), Onnx(), written, "unknown"), "Use")
    assert rows_of(use)["`ids`"] == ["int32", "[batch, words]"]
    assert rows_of(use)["`x`"] == ["float32", "[batch, 3]"]
    assert "Outputs: `a`, `b`." in use
    assert "The planner stays outside." in use
    assert "at most 3e-08" in use


def test_paths_and_names_from_outside_do_no_harm():
    settings = {"task": "lqr", "data-dir": "/home/alice/robots", "weighting": "uniform|x"}
    model = of_robots(method="fedavg", node='a"b: [c]|d', settings=settings, metrics={"test.total_loss": 1.0})
    text = card(model, Safetensors(), WRITTEN, "unknown")
    assert "alice" not in text
    read = ModelCard(text).data
    assert read.eval_results[0].dataset_name == 'data of node a"b: [c]|d'
    assert read.model_name == 'lqr fedavg of a"b: [c]|d'


# -- what is not known -------------------------------------------------------------------------------------------------

KNOWN = {"method": "fedavg", "settings": {"data-dir": ""}, "metrics": {"test.total_loss": 1.0}, "round": 3}


@pytest.mark.parametrize("settings", [{"data-dir": ""}, {"data-dir": "/srv/robots"}, {}])
def test_a_card_does_not_say_what_data_the_nodes_have(settings):
    """The nodes of a fleet have folders of their own; the server's ``data-dir``, also an empty one, is not theirs."""
    text = card(of_robots(**KNOWN | {"settings": settings}), Safetensors(), WRITTEN, "unknown")
    assert ModelCard(text).data.eval_results[0].dataset_name == "data of the nodes"
    assert "simulated" not in text.lower()
    assert "Measured by the nodes after round 3." in text


def test_what_is_not_recorded_is_not_stated():
    text = card(of_robots(), Safetensors(), WRITTEN, "unknown")
    assert "federated" not in text.lower()
    assert "What was shared in the training is not recorded." in section(text, "What was private")
    assert "The record of the training has no guarantee of differential privacy." in section(text, "What was private")
    assert section(text, "Settings").startswith("They are not recorded.")
    assert "nodes" not in rows_of(text.partition("## Use")[0])


def test_a_guarantee_that_is_not_recorded_is_not_denied():
    """A node that keeps its model does not know in how many rounds it will take part."""
    text = card(of_robots(**KNOWN | {"settings": {"dp": "local"}}), Safetensors(), WRITTEN, "unknown")
    private = section(text, "What was private")
    assert "the training had `dp = local`. Its guarantee is not recorded in this model" in private
    assert "no guarantee" not in private
