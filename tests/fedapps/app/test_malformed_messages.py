"""What a node does with TRAIN messages that no server of ours sends: it says what is wrong, and keeps what it has."""

import numpy as np
import pytest
from fedapps.sim.inprocess import InProcessGrid
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from rogue import header, npy, serialised
from toys import arrays_of, record_of

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import initial_arrays
from fedapps.config.parsing import parse

pytestmark = pytest.mark.usefixtures("flower_identity")


class Node:
    """One node of the app, with private parameters, that is sent messages by hand."""

    def __init__(self, folder):
        given = {"task": "lqr", "methods": "sfl", "num-nodes": 1, "rounds": 2, "collect-after": 0, "name": "run"}
        config = parse(given | {"output-dir": str(folder), "cache-dir": str(folder / "worlds")})
        self.states = folder / "run" / "nodes"
        self.grid = InProcessGrid(client_app, [{"max-steps": 400}], config.flat(), errors="reply")
        name, *_ = whole = arrays_of(initial_arrays(config))
        self.shared = {name: whole[name]}
        assert len(whole) > 1, "the others are private"

    def train(self, number, arrays=None, **config):
        orders = {"run": "label", "method": "sfl", "server-round": number, "epochs": 1}
        orders |= {n if n == "clipping_norm" else n.replace("_", "-"): value for n, value in config.items()}
        record = {} if arrays == {} else {"arrays": arrays or record_of(self.shared)}
        content = RecordDict({**record, "config": ConfigRecord(orders)})
        (node,) = self.grid.get_node_ids()
        (reply,) = self.grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
        return reply

    def kept(self):
        return {path: path.read_bytes() for path in self.states.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """It has trained in the first round."""
    trained = Node(tmp_path_factory.mktemp("node"))
    assert trained.train(1).has_content()
    assert trained.kept()
    return trained


FAULTS = {
    "no arrays": (lambda shared: {"arrays": {}}, "the message has no ArrayRecord 'arrays'"),
    "other shapes": (
        lambda shared: {"arrays": record_of({name: array[None] for name, array in shared.items()})},
        "received parameters that do not fit the model",
    ),
    "unknown names": (lambda shared: {"arrays": record_of({"huh": np.ones(2)})}, "huh: not a parameter of the model"),
    "a bomb": (
        lambda shared: {
            "arrays": ArrayRecord(dict.fromkeys(shared, serialised(npy(header(shape="(1099511627776,)")))))
        },
        "array '.*' cannot be decoded: its header states 4398046511104 bytes",
    ),
    "a header that is no header": (
        lambda shared: {"arrays": ArrayRecord(dict.fromkeys(shared, serialised(npy("{("))))},
        "array '.*' cannot be decoded",
    ),
    "a word for a number": (lambda shared: {"epochs": "many"}, "config epochs = 'many': must be of type int"),
    "a list for a number": (
        lambda shared: {"learning_rate": [0.1]},
        "config learning-rate = .*: must be of type float",
    ),
    "no epochs": (lambda shared: {"epochs": 0}, "config epochs = 0: must be a whole number at least 1"),
    "no batches": (lambda shared: {"batch_size": -3}, "config batch-size = -3: must be"),
    "epochs without end": (
        lambda shared: {"epochs": 2**62},
        "config epochs = 4611686018427387904: this node",
    ),
    "steps without end": (lambda shared: {"steps": 2**62}, "config steps = 4611686018427387904: this node"),
    "a few steps too many": (lambda shared: {"epochs": 400}, "step 401: this node takes at most 400"),
    "a round that no file can be named after": (
        lambda shared: {"server_round": 10**6},
        "config server-round = 1000000",
    ),
    "a round before the first": (lambda shared: {"server_round": -1}, "config server-round = -1: must be"),
    "a stage before the first": (lambda shared: {"stage": -1}, "config stage = -1: must be"),
    "an update to be reversed": (
        lambda shared: {"clipping_norm": -1.0},
        "config clipping_norm = -1.0: must be a number",
    ),
    "an update that NaN clips": (lambda shared: {"clipping_norm": float("nan")}, "config clipping_norm = nan: must be"),
    "complex numbers": (
        lambda shared: {"arrays": record_of({n: a.astype(np.complex64) for n, a in shared.items()})},
        "arrays: '.*' is complex64: must be floating-point, integer or boolean",
    ),
    "another byte order": (
        lambda shared: {"arrays": record_of({n: a.astype(a.dtype.newbyteorder(">")) for n, a in shared.items()})},
        "arrays: '.*' is >f4: must have the byte order of this machine",
    ),
    "a path for a method": (
        lambda shared: {"method": "/tmp"},
        "config method = '/tmp': the run config has the methods",
    ),
    "NaN": (
        lambda shared: {"arrays": record_of({n: a * np.nan for n, a in shared.items()})},
        "the training loss is nan",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_order_is_answered_with_what_is_wrong(node, fault):
    spoil, reason = FAULTS[fault]
    before = node.kept()
    reply = node.train(2, **spoil(node.shared))
    assert reply.has_error()
    with pytest.raises(ValueError, match=reason):
        raise ValueError(reply.error.reason)
    assert node.kept() == before
    assert not list(node.states.parent.parent.glob("**/elsewhere"))


def test_keys_that_a_node_does_not_know_are_not_for_it(node):
    assert node.train(2, something_new="x").has_content()


@pytest.mark.parametrize("run", ["../../elsewhere", "..", "", "/elsewhere", "a\nb"])
def test_a_path_for_a_run_stays_inside_the_state_folder(node, run):
    outside = {path for path in node.states.parent.parent.rglob("*") if not path.is_relative_to(node.states)}
    before = node.kept()
    assert node.train(1, run=run).has_content()
    assert {path for path in node.states.parent.parent.rglob("*") if not path.is_relative_to(node.states)} == outside
    (written,) = node.kept().keys() - before.keys()
    assert len(written.relative_to(node.states).parts) == 4, "run, method, node, file"
    written.unlink()
