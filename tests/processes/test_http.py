"""A fleet whose nodes speak HTTP: TLS and node keys, the same bits as in one process, and strangers refused.

``make test`` runs this file with ``.venv-http``.
"""

from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from fedapps.checkpoints import read_snapshot
from fedapps.config import parse
from fedapps.fleet.command import run_fleet
from fedapps.fleet.deployment import deployment
from fedapps.fleet.keys import make_key_pair
from fedapps.fleet.protocol import nodes_speak_http
from fedapps.launch import execute, resolve

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not nodes_speak_http(), reason="nodes of this Flower speak gRPC; `make test` uses .venv-http"),
]

NODES, ROUNDS, METHOD = 2, 2, "apfl"


def settings(folder: Path) -> dict[str, Any]:
    given = {"task": "lqr", "methods": METHOD, "num-nodes": NODES, "rounds": ROUNDS, "evaluate-every": ROUNDS}
    training = {"epochs": 1, "personal-epochs": 1, "batch-size": 32, "collect-after": 0}
    return given | training | {"cache-dir": str(folder / "worlds"), "name": "run"}


def test_over_http_a_fleet_with_tls_and_keys_gives_the_same_bits_as_one_process(tmp_path: Path) -> None:
    assert run_fleet(settings(tmp_path), tls=True, auth=True, output_dir=str(tmp_path)) == 0
    requests = (tmp_path / "run-fleet" / "superlink.log").read_text()
    assert requests.count('"POST /v1/fleet/activate-node HTTP/1.1" 200') == NODES
    assert "https://127.0.0.1:" in requests

    inline = tmp_path / "inline"
    execute(parse(resolve(settings(tmp_path), str(inline))), "inline")
    last = Path("run") / "checkpoints" / METHOD / f"round-{ROUNDS:06d}.safetensors"
    ours, theirs = read_snapshot(inline / last), read_snapshot(tmp_path / last)
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name, array in ours.arrays.items():
        np.testing.assert_array_equal(array, theirs.arrays[name], err_msg=name)


def test_over_http_strangers_and_plain_text_are_refused(tmp_path: Path) -> None:
    with deployment(tmp_path / "guarded", tls=True, auth=True) as guarded, deployment(tmp_path / "plain") as plain:
        guarded.start_superlink()
        plain.fleet = guarded.fleet
        once = ("--max-retries", "1")  # and not for ever, as it is without
        refused = {
            guarded.start_supernode("stranger", {}, make_key_pair(tmp_path / "unknown"), *once): "Failed to activate",
            guarded.start_supernode("keyless", {}, None, *once): "must be registered",
            plain.start_supernode("open", {}, None, *once): "Server disconnected",
        }
        for started, reason in refused.items():
            assert started.process.wait(120) != 0
            assert reason in started.log.read_text(), started.obituary()
        with pytest.raises((URLError, OSError)):
            urlopen(f"http://127.0.0.1:{guarded.http}/health", timeout=5).close()
        assert guarded.count_online() == 0
