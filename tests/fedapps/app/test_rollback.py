"""A server that goes back to an earlier round, and what a node that misses a round starts from then."""

import numpy as np
import pytest
from fedapps.clients.state import DiskState
from flwr.app import ConfigRecord, Context, Message, RecordDict
from toys import arrays_of, record_of

from fedapps.app.client_app import app
from fedapps.app.server_app import initial_arrays
from fedapps.config.parsing import parse

pytestmark = pytest.mark.usefixtures("flower_identity")
BEFORE, AFTER = "0:a1", "0:a1 3:b2"


@pytest.fixture(params=["disk", "context"])
def make_node(request, tmp_path):
    """A function that makes a node with private parameters; it returns a function that trains or evaluates a round."""
    given = {"task": "lqr", "methods": "sfl", "num-nodes": 1, "collect-after": 0, "epochs": 1, "name": "run"}
    given |= {"state-backend": request.param, "cache-dir": str(tmp_path / "worlds"), "output-dir": str(tmp_path)}
    config = parse(given)
    (name, shared), *_ = arrays_of(initial_arrays(config)).items()

    def make(place):
        node_config = {"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path / place)}
        context = Context(1, 7, node_config, RecordDict(), config.flat())

        def ask(server_round, attempts, kind="train"):
            orders = {"run": "label", "method": "sfl", "server-round": server_round, "attempts": attempts}
            content = RecordDict({"arrays": record_of({name: shared}), "config": ConfigRecord(orders)})
            reply = app(Message(content, 7, kind), context)
            if kind == "evaluate":
                return dict(reply.content["metrics"])
            return arrays_of(reply.content["arrays"])[name].tobytes()

        return ask

    return make


def test_a_node_that_misses_the_repeated_round_starts_from_the_last_round_that_counts(make_node):
    node, undisturbed = make_node("node"), make_node("undisturbed")
    for server_round in range(1, 6):
        node(server_round, BEFORE)
    for server_round in range(1, 4):
        undisturbed(server_round, BEFORE)
    # The server goes back to round 3. Round 4 is repeated without this node.
    assert node(4, AFTER, "evaluate") == undisturbed(4, AFTER, "evaluate")
    assert node(5, AFTER) == undisturbed(5, AFTER)


def test_a_node_that_repeats_all_rounds_has_the_same_state_as_without_the_fault(make_node):
    node, undisturbed = make_node("node"), make_node("undisturbed")
    for server_round in range(1, 6):
        last = undisturbed(server_round, BEFORE)
        node(server_round, BEFORE)
    assert [node(server_round, AFTER) for server_round in (4, 5)][-1] == last


def test_rounds_that_do_not_count_are_deleted(make_node, tmp_path):
    node = make_node("node")
    for server_round in range(1, 6):
        node(server_round, BEFORE)
    node(5, AFTER, "evaluate")
    states = list((tmp_path / "node").rglob("round-*"))
    assert sorted(path.stem for path in states) in ([], ["round-000001", "round-000002", "round-000003"])
    assert all(np.isfinite(a).all() for path in states for a in DiskState(path.parent).load(9).values())
