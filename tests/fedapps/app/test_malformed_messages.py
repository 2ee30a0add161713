"""What a node does with TRAIN messages that no server of ours sends: it says what is wrong, and keeps what it has."""

import atexit
import itertools
import shutil
import tempfile
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged_files import bounded
from drawn_houses import run_keys, saved, speaking, task_with, write_world
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import wire
from fedapps.strategies.records import RunEndedError
from fedapps.tasks.base import Task
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vln.task import VlnTask
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from method_worlds import METHODS, MORE, Rounds, registered, run_method, world_of
from rogue import header, npy, serialised
from spoiled_messages import ours, spoil, typed_errors
from toys import arrays_of, record_of

from fedapps.app.client_app import app as client_app
from fedapps.app.disclosure import NodeFailedError
from fedapps.app.server_app import initial_arrays
from fedapps.base.options import key_of
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


def of_each(change):
    """Shared arrays that are changed one by one."""
    return lambda shared: record_of({name: change(array) for name, array in shared.items()})


def serialised_as(text):
    """Arrays that are serialised with this header."""
    return lambda shared: ArrayRecord(dict.fromkeys(shared, serialised(npy(text))))


#: By what is wrong with a message: a key with its value, or arrays by a function of the right ones; what the node says.
FAULTS = {
    "no arrays": ("arrays", lambda shared: {}, "the message has no ArrayRecord 'arrays'"),
    "other shapes": ("arrays", of_each(lambda a: a[None]), "received parameters that do not fit the model"),
    "unknown names": ("arrays", lambda _: record_of({"huh": np.ones(2)}), "huh: not a parameter of the model"),
    "a bomb": (
        "arrays", serialised_as(header(shape="(1099511627776,)")),
        "array '.*' cannot be decoded: its header states 4398046511104 bytes",
    ),
    "a header that is no header": ("arrays", serialised_as("{("), "array '.*' cannot be decoded"),
    "a word for a number": ("epochs", "many", "config epochs = 'many': must be of type int"),
    "a list for a number": ("learning_rate", [0.1], "config learning-rate = .*: must be of type float"),
    "no epochs": ("epochs", 0, "config epochs = 0: must be a whole number at least 1"),
    "no batches": ("batch_size", -3, "config batch-size = -3: must be"),
    "epochs without end": ("epochs", 2**62, "config epochs = 4611686018427387904: this node"),
    "steps without end": ("steps", 2**62, "config steps = 4611686018427387904: this node"),
    "a few steps too many": ("epochs", 400, "step 401: this node takes at most 400"),
    "a round that no file can be named after": ("server_round", 10**6, "config server-round = 1000000"),
    "a round before the first": ("server_round", -1, "config server-round = -1: must be"),
    "a stage before the first": ("stage", -1, "config stage = -1: must be"),
    "an update to be reversed": ("clipping_norm", -1.0, "config clipping_norm = -1.0: must be a number"),
    "an update that NaN clips": ("clipping_norm", float("nan"), "config clipping_norm = nan: must be"),
    "complex numbers": (
        "arrays", of_each(lambda a: a.astype(np.complex64)),
        "arrays: '.*' is complex64: must be floating-point, integer or boolean",
    ),
    "another byte order": (
        "arrays", of_each(lambda a: a.astype(a.dtype.newbyteorder(">"))),
        "arrays: '.*' is >f4: must have the byte order of this machine",
    ),
    "a path for a method": ("method", "/tmp", "config method = '/tmp': the run config has the methods"),
    "NaN": ("arrays", of_each(lambda a: a * np.nan), "the training loss is nan"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_order_is_answered_with_what_is_wrong(node, fault):
    name, value, reason = FAULTS[fault]
    before = node.kept()
    reply = node.train(2, **{name: value(node.shared) if callable(value) else value})
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


# Messages to nodes and replies to the server, of every method, with records that were changed by malice.


TEXTS: dict[str, Any] = {
    "text.source": "simulated", "text.world-examples": 12, "text.embedding-width": 4, "text.hidden": 3,
    "text.max-length": 6, "text.vocabulary-size": 50, "text.global-examples": 4, "text.dropout": 0.0,
}  # fmt: skip
ALL = [*METHODS, "centralized", "fedvocab", "fedrecon", "fedvln"]
#: Methods and keys of runs whose messages have more records than those of the method alone.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{method: (method, {}) for method in ALL},
    "compressed to bf16": ("fedbn", {"compression": "bf16"}),
    "compressed to int8": ("fedbn", {"compression": "int8"}),
    "compressed to top-k": ("feddyn", {"compression": "top-k"}),
    "local privacy": ("fedbn", {"dp": "local"}),
    "central privacy": ("fedbn", {"dp": "central-client", "dp-noise": 0.1}),
    "timings": ("fedavg", {"timings": True}),
    "median": ("fedavg", {"aggregation": "median", "num_nodes": 3}),
    "trimmed mean": ("fedavg", {"aggregation": "trimmed-mean", "num_nodes": 3}),
    "held-out nodes": ("fedper", {"held-out-nodes": "node-2,", "num_nodes": 3}),
    "buffered": ("fedavg", {"mode": "async", "num_nodes": 3}),
}
FUZZ = settings(max_examples=3, suppress_health_check=list(HealthCheck))
#: What messages and replies may name beside their own records.
NAMES = sorted(
    {value for value in vars(wire).values() if isinstance(value, str) and value.isascii() and len(value) < 40}
    | {key_of(field.name) for kind in (RoundSettings, LocalTraining) for field in fields(kind)}
    | {"head.weight", "body.0.weight", "test.loss", "loss", "group.parity", "ifca.model.0", "ifca.model.2", "w", ""}
)


def run(name: str, folder: Path | None = None, **more: Any) -> Rounds:
    method, keys = RUNS[name]
    if task_of(method) is TextTask:
        keys = keys | TEXTS
    elif task_of(method) is VlnTask:
        keys = keys | house_keys()
    return run_method(method, task_of(method), folder=folder, **(MORE.get(method, {}) | keys | more))


def task_of(method: str) -> type[Task]:
    return {"fedvocab": TextTask, "fedrecon": TextTask, "fedvln": VlnTask}.get(method) or world_of(method)


@cache
def house_keys() -> dict[str, Any]:
    folder = write_world(scratch() / "houses", seen=("houseA",), unseen=("houseB",))
    torch.manual_seed(1)
    agent = saved(task_with().build_model(), folder / "agent.safetensors")
    keys = run_keys(folder, stage="pre-exploration", agent_file=agent, **speaking(folder))
    return {key: value for key, value in keys.items() if key not in ("task", "name", "rounds")} | {"num-nodes": 2}


@cache
def scratch() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def recorded(name: str) -> tuple[Rounds, dict[Path, bytes]]:
    """A run, and what its nodes kept."""
    rounds = run(name, scratch() / name)
    states = {path: path.read_bytes() for path in rounds.folder.path.joinpath("nodes").rglob("*") if path.is_file()}
    return rounds, states


def restore(rounds: Rounds, states: dict[Path, bytes]) -> None:
    """Put the private states of the nodes back."""
    folder = rounds.folder.path / "nodes"
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in states.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("name", RUNS)
@FUZZ
@given(data=st.data())
def test_a_node_works_or_says_what_is_wrong_with_a_message(name, data):
    rounds, states = recorded(name)
    kind, node, sent, _ = rounds.messages[data.draw(st.integers(0, len(rounds.messages) - 1))]
    content = sent.copy()
    spoil(content, data.draw, NAMES)
    restore(rounds, states)
    method, _ = RUNS[name]
    with typed_errors(), registered(task_of(method)), bounded():
        nodes = [{"max-steps": 60, "max-seconds": 5}] * rounds.config["num-nodes"]
        grid = InProcessGrid(client_app, nodes, rounds.config)
        with suppress(NodeFailedError):
            grid.client_app(Message(content, node + 2, kind), grid.context(node + 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@FUZZ
@given(data=st.data())
def test_the_server_goes_on_or_says_why_it_ends(name, data):
    rounds, _ = recorded(name)
    chosen = data.draw(st.sets(st.integers(0, len(rounds.messages) - 1), min_size=1, max_size=3))
    count = itertools.count()

    spoiled_kinds = set()

    def spoil_some(kind: str, node: int, content: RecordDict) -> None:
        if next(count) in chosen:
            spoiled_kinds.add(kind)
            spoil(content, data.draw, NAMES)

    with bounded():
        try:
            found = run(name, spoil=spoil_some)
        except RunEndedError as error:
            assert str(error)  # noqa: PT017 - it may also go on
            return
        except ValueError as error:  # before the first round: a node that the run config names is not there
            if not ours(error) or spoiled_kinds != {wire.PROFILE_QUERY}:
                raise
            return
    for arrays in (*found.arrays, *found.server):
        assert all(np.isfinite(array).all() for array in arrays.values())
