"""A fleet whose nodes speak HTTP: TLS and node keys, the same bits as in one process, and strangers refused.

``make test`` runs this file with ``.venv-http``.
"""

from pathlib import Path
from typing import Any

import pytest
from strangers import turned_away
from toys import same_bits

from fedapps.config.parsing import parse
from fedapps.deployment.fleet import LocalFleet
from fedapps.deployment.superlink import nodes_speak_http
from fedapps.launch.launch import execute, launch, resolve
from fedapps.runs.checkpoints import read_snapshot

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not nodes_speak_http(), reason="nodes of this Flower speak gRPC; `make test` uses .venv-http"),
]

NODES, ROUNDS, METHOD = 2, 2, "apfl"


def settings(folder: Path) -> dict[str, Any]:
    given = {"task": "lqr", "methods": METHOD, "num-nodes": NODES, "rounds": ROUNDS, "evaluate-every": ROUNDS}
    training = {"epochs": 1, "spfl.epochs": 1, "apfl.epochs": 1, "batch-size": 32, "collect-after": 0}
    return given | training | {"cache-dir": str(folder / "worlds"), "name": "run"}


def test_over_http_a_fleet_with_tls_and_keys_gives_the_same_bits_as_one_process(tmp_path: Path) -> None:
    one_at_a_time = settings(tmp_path) | {"in-flight": 1}
    launch(one_at_a_time, LocalFleet(tls=True, auth=True), str(tmp_path))
    requests = (tmp_path / "run-fleet" / "superlink.log").read_text()
    assert requests.count('"POST /v1/fleet/activate-node HTTP/1.1" 200') == NODES
    assert "https://127.0.0.1:" in requests

    inline = tmp_path / "inline"
    execute(parse(resolve(settings(tmp_path), str(inline))), "inline")
    last = Path("run") / "checkpoints" / METHOD / f"round-{ROUNDS:06d}.safetensors"
    ours, theirs = read_snapshot(inline / last), read_snapshot(tmp_path / last)
    assert same_bits(ours.arrays, theirs.arrays)


def test_over_http_strangers_and_plain_text_are_refused(tmp_path: Path) -> None:
    with turned_away(tmp_path, "Server disconnected", "Connection reset by peer"):
        pass
