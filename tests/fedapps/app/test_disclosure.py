"""What a curious server gets from a node under ``dp = "local"`` and under the rules of its operator."""

import numpy as np
import pytest
from fedapps.clients.rules import RulesError
from fedapps.strategies import epsilon
from fedapps.tasks.images.options import PUBLISHED
from fedapps.tasks.lqr.world import write_world
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from image_files import write_folders
from toys import arrays_of, record_of

from fedapps.app.client_app import app
from fedapps.app.disclosure import Disclosure, NodeFailedError
from fedapps.app.node import Node
from fedapps.app.node_ledger import NodeLedger
from fedapps.app.server_app import initial_arrays
from fedapps.base.errors import DivergedError
from fedapps.config.parsing import parse

pytestmark = pytest.mark.usefixtures("flower_identity")
LQR = {"task": "lqr", "methods": "sfl", "collect-after": 0, "num-nodes": 1, "name": "run", "epochs": 1, "steps": 1}
NOISY = {"dp": "local", "dp-noise": 100.0}
RULES = {"dp": "local", "dp-noise": 2.0}


class CuriousServer:
    """A server that sends a deployed node what it likes."""

    def __init__(self, folder, data, keys, node_config, method):
        config = parse({"collect-after": 0, "num-nodes": 1, "name": "run", "methods": method, **keys})
        self.whole = arrays_of(initial_arrays(config))
        node_config = {"data-dir": str(data), "state-dir": str(folder / "state"), **node_config}
        self.context = Context(1, 7, node_config, RecordDict(), config.flat())
        self.folder, self.method = folder, method

    def asks(self, kind="train", changes=None, server_round=1, **config):
        orders = {"run": "label", "method": self.method, "server-round": server_round, **config}
        content = RecordDict({"arrays": record_of(self.whole | (changes or {})), "config": ConfigRecord(orders)})
        return app(Message(content, 7, kind), self.context)

    def profile(self):
        return app(Message(RecordDict(), 7, "query.profile"), self.context).content["profile"]

    def ledger(self):
        return NodeLedger(self.folder / "state", Disclosure.of(self.context).rules)


class Robot(CuriousServer):
    """A deployed node of the lqr task, as its server sees it."""

    def __init__(self, folder, keys=None, rows=None, **node_config):
        (path,) = write_world(folder / "world", 1, seed=1)
        header, *rest = path.read_text().splitlines()
        if rows is not None:
            rest = [row for row in rest if ",train," not in row]
            path.write_text("\n".join([header, *rows, *rest]) + "\n")
        super().__init__(folder, path.parent, LQR | (keys or {}), node_config, "sfl")


def one_example(y, next_y):
    """The rows of a robot with one training example."""
    return [f"0,1,train,0,0,{y},0.25,0.5,{next_y},-0.75"]


def stolen(robot, kind):
    """y · next_y of the node's training example by two exact losses of models y' = ± a y, else None."""
    losses = []
    for a in (1.0, -1.0):
        model = {name: np.zeros_like(array) for name, array in robot.whole.items()}
        model["dynamics.A"] = np.array([[a, 0.0], [0.0, 0.0]], np.float32)
        metrics = robot.asks(kind, model, **{"learning-rate": 1e-9, "batch-size": 1}).content["metrics"]
        losses += [value for name, value in metrics.items() if name.endswith(("loss", "error"))]
    return (losses[-1] - losses[0]) if losses else None


def test_two_exact_losses_reveal_the_example_of_a_node_and_local_privacy_lets_none_leave(tmp_path):
    """(next_y + y)² − (next_y − y)² = 4 y next_y; with further messages each number of the example follows."""
    open_node = Robot(tmp_path / "open", rows=one_example(0.5, 3.0))
    other = Robot(tmp_path / "other", rows=one_example(0.5, -3.0))
    assert stolen(open_node, "train") == pytest.approx(-stolen(other, "train"))
    assert abs(stolen(open_node, "train")) > 1
    noisy = Robot(tmp_path / "noisy", NOISY, rows=one_example(0.5, 3.0))
    assert stolen(noisy, "train") is None
    assert stolen(noisy, "evaluate") is None


@pytest.mark.parametrize(
    ("place", "durable"),
    [
        ({}, True),
        ({"data-dir": "", "partition-id": 0, "num-partitions": 1}, True),
        ({"data-dir": "", "state-dir": "", "partition-id": 0, "num-partitions": 1}, False),
    ],
)
def test_only_a_node_with_a_folder_of_its_own_waits_for_its_disk(tmp_path, monkeypatch, place, durable):
    synced = []
    monkeypatch.setattr("fedapps.clients.state.write_whole", lambda path, content, *, sync: synced.append(sync))
    robot = Robot(tmp_path, {"output-dir": str(tmp_path), "cache-dir": str(tmp_path / "worlds")}, **place)
    robot.whole = dict([*robot.whole.items()][:1])  # the rest of the model is private
    robot.asks("train")
    assert synced == [durable]


class ImageNode(CuriousServer):
    """A deployed node with one training image and one test image, uint8 ``[8, 8]``, both of one class."""

    def __init__(self, folder, pixels, label, keys=None):
        for split in ("train", "test"):
            write_folders(folder / "data" / split, [pixels], [label], classes="0123456789")
        keys = {"task": "images", "images.model": "mlp", "steps": 1} | (keys or {})
        super().__init__(folder, folder / "data", keys, {}, "fedavg")


def exact_loss(node, kind, pixel=None):
    """The loss of the node's image by a model with the logits 0, 1, ..., 9, else None.

    With a ``pixel`` this normalised pixel plus 1 stands in the place of every logit but that of class 0, which is 0.
    """
    model = {name: np.zeros_like(array) for name, array in node.whole.items()}
    if pixel is None:
        model["head.bias"] += np.arange(10, dtype=np.float32)
    else:
        model["body.1.weight"][0, pixel] = model["body.1.bias"][0] = model["body.3.weight"][0, 0] = 1
        model["head.weight"][1:, 0] = 1
    metrics = node.asks(kind, model, **{"learning-rate": 1e-30}).content["metrics"]
    return metrics.get({"train": "loss", "evaluate": "test.local_loss"}[kind])


def stolen_image(node, kind):
    """The label and the pixels ``[8, 8]`` of the node's image by 65 exact losses."""
    label = round(float(np.log(np.exp(np.arange(10)).sum())) - exact_loss(node, kind))
    losses = np.array([exact_loss(node, kind, pixel) for pixel in range(64)])
    # The loss of class 0 is log(1 + 9 e^x), that of another class log(9 + e^-x).
    inputs = np.log(np.expm1(losses) / 9) if label == 0 else -np.log(np.exp(losses) - 9)
    (mean,), (deviation,) = PUBLISHED["digits"].statistics
    return label, 255 * ((inputs - 1) * deviation + mean).reshape(8, 8)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_65_exact_losses_are_an_image_and_its_label_and_local_privacy_lets_none_leave(tmp_path, kind):
    images = np.random.default_rng(1).integers(256, size=(2, 8, 8), dtype=np.uint8)
    for label, pixels in zip((7, 0), images, strict=True):
        node = ImageNode(tmp_path / str(label), pixels, label)
        stolen_label, stolen_pixels = stolen_image(node, kind)
        assert stolen_label == label
        assert stolen_pixels == pytest.approx(pixels, abs=0.05)
    noisy = ImageNode(tmp_path / "noisy", images[0], 7, NOISY)
    assert {exact_loss(noisy, kind, pixel) for pixel in (None, *range(64))} == {None}


@pytest.mark.parametrize(("kind", "config"), [("train", {}), ("train", {"steps": 0, "epochs": 2}), ("evaluate", {})])
def test_replies_of_nodes_with_other_data_differ_in_noised_arrays_alone(tmp_path, kind, config):
    config |= {"timings": True}
    replies = [
        Robot(tmp_path / str(count), NOISY, rows=one_example(count, 1.0) * count).asks(kind, **config).content
        for count in (1, 5)
    ]
    assert [list(reply) for reply in replies] == [["metrics"] if kind == "evaluate" else ["metrics", "arrays"]] * 2
    assert replies[0]["metrics"] == replies[1]["metrics"] == MetricRecord({"num-examples": 1})


def test_the_profile_says_no_more_than_that_there_are_examples(tmp_path):
    assert Robot(tmp_path / "open").profile()["num-examples"] > 1
    assert dict(Robot(tmp_path / "noisy", NOISY).profile()) == {"key": "robot-00", "own-data": True, "num-examples": 1}
    told = Robot(tmp_path / "told", NOISY, **{"may-leave": "groups,num-ex*"}).profile()
    assert dict(told) == dict(Robot(tmp_path / "again").profile())


@pytest.mark.parametrize(
    ("node", "kind", "metrics"),
    [
        ({"data-dir": "there"}, "train", {"num-examples": 1}),
        ({"data-dir": "there"}, "evaluate", {"num-examples": 1}),
        ({"data-dir": "there", "may-leave": "q-ffl.*, timings"}, "train", {"num-examples": 1, "q-ffl.loss": 2.0}),
        ({"partition-id": 0}, "train", {"num-examples": 1, "steps": 9.0}),
        ({"partition-id": 0}, "evaluate", {"num-examples": 5, "loss": 0.5, "q-ffl.loss": 2.0, "steps": 9.0}),
    ],
)
def test_of_the_metrics_only_what_the_operator_allows_leaves_and_the_evaluation_of_a_simulated_node(
    node, kind, metrics
):
    asked = Message(RecordDict(), 7, kind)
    sent = {"num-examples": 5, "loss": 0.5, "q-ffl.loss": 2.0, "steps": 9.0}
    content = {"metrics": MetricRecord(sent), "timings": ConfigRecord({"train": 1.0})}
    reply = Message(RecordDict(content), reply_to=asked)
    Disclosure.of(Context(1, 7, node, RecordDict(), parse(LQR | NOISY).flat())).reply(reply)
    assert dict(reply.content["metrics"]) == metrics
    assert ("timings" in reply.content) == ("partition-id" in node or "may-leave" in node)


def test_a_record_that_is_computed_from_the_data_does_not_leave_beside_noised_arrays():
    asked, query = (Message(RecordDict(), 7, kind) for kind in ("train", "query.adaptive"))
    noised = {"arrays": ArrayRecord(), "compressed.values": ArrayRecord()}
    disclosure = Disclosure.of(Context(1, 7, {"data-dir": "there"}, RecordDict(), parse(LQR | NOISY).flat()))
    disclosure.reply(Message(RecordDict(noised), reply_to=asked))
    with pytest.raises(RulesError, match=r"fedweit\.adaptive: computed from the data without noise"):
        disclosure.reply(Message(RecordDict({**noised, "fedweit.adaptive": ArrayRecord()}), reply_to=asked))
    for name in (*noised, "fedweit.adaptive"):  # the answer to a query gets no noise
        with pytest.raises(RulesError, match=f"{name}: computed from the data without noise"):
            disclosure.reply(Message(RecordDict({name: ArrayRecord()}), reply_to=query))


@pytest.mark.parametrize("method", ["q-ffl", "ifca", "fednova", "fedvc"])
def test_methods_that_need_exact_numbers_are_refused_on_the_node_too(tmp_path, method):
    robot = Robot(tmp_path, NOISY)
    robot.context.run_config["methods"] = method
    with pytest.raises(NodeFailedError, match="ConfigError"):
        robot.asks(method=method)


def test_whether_the_loss_overflows_is_not_told(tmp_path, monkeypatch):
    def diverging(*_):
        raise DivergedError("the loss is inf")

    huge = {"dynamics.A": np.full((2, 2), 1e30, np.float32)}
    open_node = Robot(tmp_path / "open")
    with pytest.raises(NodeFailedError, match="DivergedError"):
        open_node.asks(changes=huge)
    noisy = Robot(tmp_path / "noisy", NOISY, **RULES)
    reply = noisy.asks(changes=huge, **{"learning-rate": 1e-9})
    assert reply.content["metrics"] == MetricRecord({"num-examples": 1})
    distance = arrays_of(reply.content["arrays"])["policy.K"] - noisy.whole["policy.K"]
    assert 0 < np.abs(distance).max() < 1000, "noise of deviation 100"
    assert noisy.ledger().spent().count == 1
    monkeypatch.setattr("fedapps.clients.base.FederatedClient.evaluate_round", diverging)
    assert noisy.asks("evaluate").content["metrics"] == MetricRecord({"num-examples": 1})


def test_whether_the_statistics_of_a_normalisation_change_is_not_told(tmp_path):
    """They stay at 0 for inputs that are small enough, so an error would tell a threshold of the images."""
    images = np.zeros((8, 8), np.uint8), np.full((8, 8), 200, np.uint8)
    network = {"images.model": "resnet8", "images.norm": "batch"}
    for number, pixels in enumerate(images):
        node = ImageNode(tmp_path / str(number), pixels, 7, NOISY | network)
        reply = node.asks()
        assert reply.content["metrics"] == MetricRecord({"num-examples": 1})
        arrays = arrays_of(reply.content["arrays"])
        for name, array in node.whole.items():
            assert np.array_equal(arrays[name], array) == name.endswith(("running_mean", "running_var")), name


@pytest.mark.parametrize(
    ("keys", "rules", "said"),
    [
        (NOISY, {}, "dp = 'local': a NumPyClient sends its updates without noise"),
        ({}, {"may-leave": "steps"}, "may-leave = 'steps': a NumPyClient sends all metrics"),
    ],
)
def test_the_older_client_without_mods_is_refused_where_something_may_not_leave(tmp_path, keys, rules, said):
    robot = Robot(tmp_path, keys, **rules)
    with pytest.raises(RulesError, match=said):
        Node(Message(RecordDict(), 7, "train"), robot.context).numpy_client()


# -- the operator's rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "dp = 'none': must be 'local'"),
        ({"dp": "central-client"}, "dp = 'central-client': must be 'local'"),
        ({"dp": "local", "dp-noise": 1.0}, "dp-noise = 1: must be at least 2"),
        ({"dp": "local", "dp-noise": 2.0, "dp-clip": 1.5}, "dp-clip = 1.5: must be at most 1"),
        ({"dp": "local", "dp-noise": 2.0, "dp-seeded": True}, "dp-seeded = true: must be false"),
    ],
)
def test_a_run_that_protects_less_than_the_operator_demands_gets_nothing(tmp_path, keys, said):
    robot = Robot(tmp_path, keys, **RULES, **{"dp-clip": 1.0})
    for kind in ("train", "evaluate"):
        with pytest.raises(NodeFailedError, match=f"RulesError: the node config of this node demands .*{said}"):
            robot.asks(kind)
    profile = robot.profile()
    assert profile["num-examples"] == 0
    assert said in profile["no-data"]
    assert not list((tmp_path / "state").glob("*"))


def test_the_node_counts_what_leaves_over_all_runs_and_stops_at_its_budget(tmp_path):
    robot = Robot(tmp_path, {"dp": "local", "dp-noise": 4.0}, **RULES, **{"max-releases": 3})
    robot.asks()
    robot.asks(repeat=1)  # the same round once more
    robot.asks("evaluate")  # nothing leaves
    robot.asks(run="other")
    assert robot.ledger().spent().count == 3
    assert robot.ledger().spent().epsilon(1e-5) == pytest.approx(epsilon(4.0, 3, 1e-5, sensitivity=2.0))
    with pytest.raises(NodeFailedError, match="max-releases = 3: 3 updates have left this node, and 1 more would"):
        robot.asks(run="third")
    assert "max-releases = 3" in robot.profile()["no-data"]
    assert robot.ledger().spent().count == 3


def test_epsilon_is_a_budget_too(tmp_path):
    limit = epsilon(4.0, 2, 1e-5, sensitivity=2.0)
    robot = Robot(tmp_path, {"dp": "local", "dp-noise": 4.0}, **RULES, **{"max-epsilon": limit * 1.001})
    robot.asks()
    robot.asks(server_round=2)
    with pytest.raises(NodeFailedError, match=r"max-epsilon = .*: 2 updates have left this node, and after 1 more"):
        robot.asks(server_round=3)


def test_an_update_that_cannot_be_counted_does_not_leave(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    robot = Robot(tmp_path, NOISY, **RULES)
    monkeypatch.setattr("fedapps.app.node_ledger.append_line", full)
    with pytest.raises(NodeFailedError, match="UnwritableError: the node cannot write a file"):
        robot.asks()


def test_tracked_metrics_are_refused_on_real_nodes_before_the_start():
    config = parse(LQR | NOISY | {"track-metric": "loss"})
    with pytest.raises(ValueError, match="track-metric = 'loss': must be empty on a fleet with dp = 'local'"):
        config.check_real_nodes()
    parse(LQR | {"track-metric": "loss"}).check_real_nodes()


def test_under_secure_aggregation_a_node_with_its_own_data_tells_no_number_of_it(tmp_path):
    robot = Robot(tmp_path, {"secure-aggregation": True, "num-nodes": 3})
    assert robot.profile()["num-examples"] == 1
    assert {name: dict(record) for name, record in robot.asks("evaluate").content.items()} == {
        "metrics": {"num-examples": 1}
    }
    with pytest.raises(NodeFailedError, match=r"secure-aggregation = true: .* asks for an update without masks"):
        robot.asks("train")


def test_a_node_that_requires_secure_aggregation_says_so_in_its_profile(tmp_path):
    profile = Robot(tmp_path, secagg="required").profile()
    assert 'secagg = "required" needs secure-aggregation = true' in profile["no-data"]
