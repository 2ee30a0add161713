"""FedProto: rounds by hand, the mean of prototypes, predictions by the nearest, what travels, and training alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fedapps.clients.guard import Guard
from fedapps.strategies import FedProto, Profile, Reply, to_record
from fedapps.strategies.aggregation import StreamingMean
from fedapps.strategies.records import nested
from fedapps.strategies.wire import FEDPROTO_GLOBAL, FEDPROTO_LOCAL
from fedapps.tasks.base import NodeData, Task
from fedapps.tasks.profiles import ModelRoles
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, StagedPoints, run_method
from torch import nn
from toys import same_bits

from fedapps.methods.fedproto import FedProtoOptions, FedProtoPart

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


class Embedded(Quadratics):
    """Node i minimises ½ (e - y_i)² with the representation e = w x_i; there is one class."""

    name = "embedded"
    nodes = ((1.0, 2.0), (2.0, -1.0))  # x, y
    counts = (1, 3)
    examples = Task.examples  # a number of examples in Quadratics
    start = 1.0
    num_classes = 1

    @property
    def roles(self):
        return ModelRoles(features=True)

    def node(self, index):
        (x, y), count = self.nodes[index], self.counts[index]
        columns = {"x": torch.full((count, 1), x).double(), "y": torch.full((count, 1), y).double()}
        split = {**columns, "label": torch.zeros(count, dtype=torch.int64)}
        return NodeData(f"node-{index}", {"train": split, "test": split})

    def loss(self, model, batch):
        return 0.5 * ((self.features(model, batch) - batch["y"]) ** 2).mean()

    def features(self, model, batch):
        return model.theta * batch["x"]


class OtherSize(Points):
    """The second node has representations of another size."""

    name = "other-size"

    def build_model_for(self, data):
        model, width = self.build_model(), 4 + int(data.groups["parity"])
        model.body[0], model.body[1], model.head = nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 3)
        return model


class DeepHead(Points):
    """The head has two layers."""

    name = "deep-head"

    def build_model(self):
        model = super().build_model()
        model.head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        return model


def means(run):
    return [mean.item() for server in run.server for mean in nested(server)["prototypes"].values()]


def test_rounds_by_hand():
    run = run_method("fedproto(weight=1)", Embedded, weighting="num-examples")
    assert means(run) == near(0.3575, 0.195162)
    assert run.private("theta") == near(1.04465, -0.044)
    assert run_method("fedproto(weight=1)", Embedded, rounds=1).private("theta") == near(1.19, 0.04)
    assert means(run_method("fedproto(weight=1)", Embedded)) == near(0.635, 0.6143)  # with equal weights
    assert means(run_method("fedproto(weight=1)", Embedded, compression="int8")) == near(0.635, 0.6143)


def told(classes, prototypes, counts, examples=None):
    """A reply with local prototypes."""
    arrays = {"classes": np.array(classes), "prototypes": np.array(prototypes, np.float32), "counts": np.array(counts)}
    examples = float(sum(counts) if examples is None else examples)
    content = RecordDict({FEDPROTO_LOCAL: to_record(arrays)})
    return Reply(Profile.unknown(1), content, {}, MetricRecord(), examples, examples)


def after(*replies, strategy=None):
    strategy = strategy or FedProto(shared=())
    strategy.begin_round(1, {}, ConfigRecord(), None)
    for reply in replies:
        assert strategy.refusal_reason(reply) is None
        strategy.fold(reply, StreamingMean())
    strategy.close_round(1, {}, {})
    return strategy


def test_prototypes_are_weighted_by_the_examples_of_their_class_and_stay_where_nobody_has_any():
    strategy = after(told([0], [[1, 0]], [3]), told([0, 2], [[0, 2], [5, 5]], [1, 7]))
    assert {label: mean.tolist() for label, mean in strategy.prototypes.items()} == {0: [0.75, 0.5], 2: [5, 5]}
    after(told([1], [[4, 4]], [2]), strategy=strategy)
    assert {label: mean.tolist() for label, mean in strategy.prototypes.items()} == {
        0: [0.75, 0.5], 1: [4, 4], 2: [5, 5]
    }  # fmt: skip
    restored = FedProto(shared=())
    restored.load_state(strategy.state())
    np.testing.assert_equal(restored.state(), strategy.state())
    FedProto(shared=()).load_state(FedProto(shared=()).state())  # before the first round


NUMBERS = st.floats(-100, 100, width=32)
EXAMPLES = st.lists(st.tuples(st.integers(0, 3), NUMBERS, NUMBERS), min_size=1, max_size=6)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), NUMBERS, NUMBERS), min_size=1, max_size=6), min_size=1, max_size=5)
)
def test_the_prototypes_are_the_means_of_all_examples_however_they_are_divided(nodes):
    replies = []
    for node in nodes:
        of_class = {label: [e for own, *e in node if own == label] for label in sorted({own for own, *_ in node})}
        replies.append(
            told(list(of_class), [np.mean(e, axis=0) for e in of_class.values()], list(map(len, of_class.values())))
        )
    found, pooled = after(*replies).prototypes, [example for node in nodes for example in node]
    assert list(found) == sorted({label for label, *_ in pooled})
    for label, mean in found.items():
        np.testing.assert_allclose(mean, np.mean([e for own, *e in pooled if own == label], axis=0), atol=1e-3)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (told([1, 0], np.ones((2, 2)), [1, 1]), "ascending order"),
        (told([-1], np.ones((1, 2)), [1]), "ascending order"),
        (told([0, 1], np.ones((2, 2)), [2**62, 2**62], 1), "counts add up to 9.22337203685478e+18, but num-examples"),
        (told([0], np.ones((1, 2)), [0], 1), "counts ≥ 1"),
        (told([0], np.ones((1, 2)), [100], 1), "counts add up to 100, but num-examples is 1"),
        (told([0], [[np.nan, 0]], [1]), "must be finite"),
        (told([0], np.ones((2, 2)), [1]), "a row per class"),
        (told([0], np.ones((1, 3)), [1]), "3 dimensions, those of the federation 2: all nodes need"),
        (Reply(Profile.unknown(1), RecordDict(), {}, MetricRecord(), 1.0, 1.0), "no ArrayRecord of this name"),
    ],
)
def test_what_no_prototypes_are_is_refused(reply, reason):
    assert reason in after(told([0], np.ones((1, 2)), [1])).refusal_reason(reply)


def test_only_prototypes_travel():
    run = run_method("fedproto", Points)
    trained = [(sent, reply) for kind, _, sent, reply in run.messages if kind == "train"]
    assert [len(sent["arrays"]) for sent, _ in trained] == [0] * 4
    assert [FEDPROTO_GLOBAL in sent for sent, _ in trained] == [False, False, True, True]
    assert all(set(reply[FEDPROTO_LOCAL]) == {"classes", "prototypes", "counts"} for _, reply in trained)
    for node in (0, 1):
        labels = Points().node(node).splits["train"]["label"]
        own = trained[node][1][FEDPROTO_LOCAL]
        assert own["classes"].numpy().tolist() == labels.unique().tolist()
        assert own["counts"].numpy().tolist() == labels.unique(return_counts=True)[1].tolist()


def test_a_mean_of_too_few_examples_does_not_leave_a_node():
    """The prototype of one example is the representation of this example."""
    labels = torch.tensor([0, 1, 1, 1, 2, 2])
    data = NodeData("node", {"train": {"x": torch.ones(6, 2), "label": labels}})

    def classes(**node_config):
        node_round = SimpleNamespace(task=Points(), data=data, device=torch.device("cpu"), guard=Guard.of(node_config))
        record = FedProtoPart().records({}, Points().build_model(), node_round)[FEDPROTO_LOCAL]
        return {name: record[name].numpy().tolist() for name in ("classes", "counts")}

    assert classes(**{"data-dir": "there"}) == {"classes": [1], "counts": [3]}
    assert classes(**{"data-dir": "there", "min-count": 2}) == {"classes": [1, 2], "counts": [3, 2]}
    assert classes(**{"partition-id": 0})["classes"] == [0, 1, 2]
    with pytest.raises(ValueError, match="no class of this node has 4 training examples, the min-count of its node"):
        classes(**{"min-count": 4})
    assert after(told([1], [[1, 2]], [3], examples=6)).prototypes.keys() == {1}


def test_classes_without_a_prototype_pull_nothing():
    torch.manual_seed(1)
    task, model = Points(), Points().build_model().eval()
    batch = task.node(0).splits["train"]
    with torch.no_grad():
        features = task.features(model, batch)
    of_one = {"classes": np.array([1, 9]), "prototypes": np.zeros((2, 4), np.float32)}
    node_round = type("Round", (), {"task": task, "device": torch.device("cpu")})
    loss = FedProtoPart(FedProtoOptions(weight=2.0), of_one).loss(task.loss, model, node_round)
    pull = 2 * (features[batch["label"] == 1] ** 2).sum() / features.numel()
    assert (loss(model, batch) - task.loss(model, batch)).item() == pytest.approx(float(pull), rel=1e-4)


def test_the_head_that_stands_for_the_nearest_prototype():
    torch.manual_seed(1)
    task, model = Points(), Points().build_model().eval()
    batch = task.node(0).splits["train"]
    table = {"classes": np.array([0, 2]), "prototypes": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    with torch.no_grad():
        features = task.features(model, batch)
        node_round = type("Round", (), {"task": task})
        FedProtoPart(FedProtoOptions(predict="prototypes"), table).before_evaluation(model, node_round)
        found = model(batch["x"]).softmax(dim=1)
    wanted = (-(torch.cdist(features, torch.from_numpy(table["prototypes"])) ** 2)).softmax(dim=1)
    torch.testing.assert_close(found[:, [0, 2]], wanted, atol=1e-5, rtol=1e-4)
    assert (found[:, 1] == 0).all()


def test_a_class_without_a_prototype_is_never_predicted_whatever_the_size_of_features():
    task, model = Points(), Points().build_model()
    table = {"classes": np.array([0, 1]), "prototypes": np.array([[1200, 0, 0, 0], [0, 1100, 0, 0]], np.float32)}
    FedProtoPart(FedProtoOptions(predict="prototypes"), table).before_evaluation(model, SimpleNamespace(task=task))
    assert model.head(torch.tensor([[150.0, 90, 0, 0]])).argmax() == 1


def test_the_nearest_prototype_predicts_and_the_node_keeps_its_head(tmp_path):
    labels = ("fedproto", "fedproto(predict=prototypes)")
    head, nearest = (run_method(label, Points, folder=tmp_path / str(i)) for i, label in enumerate(labels))
    assert all(same_bits(head.kept[node], nearest.kept[node]) for node in (0, 1))
    losses = [run.folder.lines("metrics.jsonl")[-1]["evaluate"]["test.loss"] for run in (head, nearest)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("task", [Points, StagedPoints])
def test_without_weight_it_is_training_alone(task):
    still, alone = run_method("fedproto(weight=0)", task), run_method("local", task)
    assert all(same_bits(still.kept[node], alone.kept[node]) for node in (0, 1))
    assert not same_bits(run_method("fedproto", task).kept[0], alone.kept[0])


@pytest.mark.parametrize(
    ("task", "keys", "message"),
    [
        (Quadratics, {}, "no representation of single examples.*no classes"),
        (Points, {"dp": "local"}, "mean representation"),
        (Points, {"aggregation": "median"}, "prototypes"),
        (OtherSize, {"min_replies": 2}, "dimensions"),
        (DeepHead, {"method": "fedproto(predict=prototypes)"}, "set fedproto.predict to 'head'"),
    ],
)
def test_what_it_cannot_do_is_said(task, keys, message):
    with pytest.raises(Exception, match=f"(?s){message}"):
        run_method(keys.get("method", "fedproto"), task, **{name: keys[name] for name in keys if name != "method"})
