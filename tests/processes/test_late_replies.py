"""Replies that no real SuperNode would send, from a node made by hand on Flower's gRPC transport."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from example_apps import EXAMPLES, load_example, told
from fedapps.sim.inprocess import run_inprocess

from fedapps.deployment.superlink import deployment

pytest.importorskip("flwr.client.grpc_rere_client.connection", reason="this Flower has no gRPC transport")
from hand_made_node import HandMadeNode

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NUMPY = EXAMPLES / "numpy-hierarchy"


def all_fetched(database: Path) -> bool:
    """Whether the server has every reply that has come to the SuperLink."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        (waiting,) = connection.execute("SELECT COUNT(*) FROM message_res WHERE delivered_at = ''").fetchone()
    return bool(waiting == 0)


def with_hand_made_node(folder: Path, rounds: int, **manner: Any) -> tuple[HandMadeNode, str]:
    """The NumPy example on one SuperNode and one made by hand; the latter, and the log."""
    _, client_app, config = load_example(NUMPY)
    config |= {"num-server-rounds": rounds, "strategy": "fedavg"}
    lines: list[str] = []
    with deployment(folder / "fleet", libraries=()) as fleet:
        fleet.start_superlink()
        fleet.start_supernodes([{"partition-id": 0, "num-partitions": 2}])
        config_of_it = {"partition-id": 1, "num-partitions": 2}
        manner["fetched"] = partial(all_fetched, fleet.database)
        with HandMadeNode(f"127.0.0.1:{fleet.fleet_port}", client_app, config_of_it, config, **manner) as node:
            fleet.run(NUMPY, config, lines.append)
    return node, "\n".join(lines)


def test_second_and_late_replies_count_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node, log = with_hand_made_node(tmp_path, 2, repeats=True)
    server_app, client_app, config = load_example(NUMPY)
    config |= {"num-server-rounds": 2, "strategy": "fedavg"}
    run_inprocess(server_app, client_app, num_nodes=2, run_config=config)
    losses = told(log, "eval_loss")
    assert len(losses) == 2, log
    assert losses == told(caplog.text, "eval_loss")
    assert (node.answered, node.ignored) == (5, 5 + 4)  # who it is, twice training and evaluating


def test_a_node_that_replies_and_leaves_has_not_worked_for_nothing(tmp_path: Path) -> None:
    node, log = with_hand_made_node(tmp_path, 2, messages=2)
    assert node.answered == 2  # who it is, and training
    assert "round 1: 2 nodes train" in log
    assert "refused the train reply" not in log
    assert "round 2: 1 nodes train" in log
