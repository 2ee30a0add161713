"""A federation with TLS and node keys: the same bits as in one process, and strangers refused.

Its nodes speak gRPC or HTTP, as the installed Flower does; ``make test-all`` runs this file with both.
"""

from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from example_apps import EXAMPLES, load_example, told
from fedapps.sim.inprocess import run_inprocess
from fedapps.tasks.trained import TrainedModel
from safetensors.numpy import load_file
from toys import same_bits

from fedapps.config.parsing import parse
from fedapps.deployment.credentials import make_key_pair
from fedapps.deployment.superlink import Deployment, deployment, nodes_speak_http
from fedapps.launch.inputs import APP, resolve
from fedapps.launch.launch import execute
from fedapps.registry.tasks import task_class
from fedapps.runs.checkpoints import read_snapshot
from fedapps.runs.run_folder import RunFolder

pytestmark = pytest.mark.processes

ROUNDS = 2
TRAINING = {
    "num-nodes": 2,
    "rounds": ROUNDS,
    "evaluate-every": ROUNDS,
    "epochs": 1,
    "batch-size": 32,
    "collect-after": 0,
}
#: A method with private parameters.
LQR: dict[str, Any] = {"task": "lqr", "methods": "apfl", "spfl.epochs": 1, "apfl.epochs": 1, "in-flight": 1}


def test_a_run_gives_the_same_bits_as_one_process(federation: Deployment, tmp_path: Path) -> None:
    nodes = len(federation.nodes)
    given = TRAINING | LQR | {"name": "run", "num-nodes": nodes, "cache-dir": str(tmp_path / "worlds")}
    method = given["methods"]
    lines: list[str] = []
    federation.run(APP, parse(resolve(given, str(tmp_path))).flat(), lines.append)
    log = "\n".join(lines)
    assert f"round {ROUNDS}/{ROUNDS} took" in log
    assert (tmp_path / "run" / "report.html").exists(), log

    inline = tmp_path / "inline"
    execute(parse(resolve(given, str(inline))), "inline")
    last = Path("run") / "checkpoints" / method / f"round-{ROUNDS:06d}.safetensors"
    ours, theirs = read_snapshot(inline / last), read_snapshot(tmp_path / last)
    assert same_bits(ours.arrays, theirs.arrays)
    states = sorted((inline / "run" / "nodes").glob(f"*/{method}/*/"))
    assert len(states) == nodes, "what is private stays on its node"
    for index, own in enumerate(states):
        mine = {path.name: load_file(path) for path in own.glob("*.safetensors")}
        state = federation.node_folder(index) / "state"
        deployed = {path.name: load_file(path) for path in state.glob(f"*/{method}/*/*.safetensors")}
        assert mine.keys() == deployed.keys()
        assert all(same_bits(arrays, deployed[name]) for name, arrays in mine.items())
    evaluated = [row for row in RunFolder(tmp_path / "run", "").lines("nodes.jsonl") if row["phase"] == "evaluate"]
    for index, row in enumerate(sorted(evaluated, key=lambda row: row["node"])):
        kept = federation.node_folder(index) / "state" / "models" / "run" / method / row["node"] / "current"
        origin = TrainedModel.read(kept, task_class).origin
        assert (origin.round, origin.metrics) == (ROUNDS, row["metrics"]), "for other programs of the machine"


def test_strangers_and_plain_text_are_refused(federation: Deployment, tmp_path: Path) -> None:
    known = federation.nodes
    with deployment(tmp_path / "plain") as plain:
        plain.fleet_port = federation.fleet_port
        once = ("--max-retries", "1")  # and not for ever, as it is without
        plain_text = ("Server disconnected", "Connection reset by peer", "Failed to initialize the connection")
        refused = {
            federation.start_supernode("stranger", {}, make_key_pair(tmp_path / "unknown"), *once): (
                "Failed to activate",
            ),
            federation.start_supernode("keyless", {}, None, *once): ("must be registered",),
            plain.start_supernode("open", {}, None, *once): plain_text,
        }
        for started, reasons in refused.items():
            assert started.process.wait() != 0
            assert any(text in started.log.read_text() for text in reasons), started.exit_report()
    federation.nodes = known
    with pytest.raises((URLError, OSError)):
        urlopen(f"http://127.0.0.1:{federation.control_port}/health", timeout=5).close()
    assert federation.count_online() == len(known)


@pytest.mark.skipif(not nodes_speak_http(), reason="nodes of this Flower speak gRPC")
def test_nodes_speak_http_over_tls(federation: Deployment) -> None:
    requests = (federation.folder / "superlink.log").read_text()
    assert requests.count('"POST /v1/fleet/activate-node HTTP/1.1" 200') == len(federation.nodes)
    assert "https://127.0.0.1:" in requests


@pytest.mark.slow
def test_the_pytorch_example_keeps_its_heads(federation: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    federation.run(EXAMPLES / "pytorch-partial", {"num-server-rounds": 2}, lines.append)
    losses = told("\n".join(lines), "eval_loss")
    assert len(losses) == 2, lines
    # Had a node lost its head between two messages, it would not come as far as nodes in one process do.
    server_app, client_app, config = load_example(EXAMPLES / "pytorch-partial")
    run_inprocess(server_app, client_app, num_nodes=2, run_config=config | {"num-server-rounds": 2}, errors="reply")
    np.testing.assert_allclose(losses, told(caplog.text, "eval_loss"), rtol=1e-2)
    assert losses[0] > losses[1]
