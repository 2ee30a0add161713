"""The cost of SuperNodes: what counts as that of a node."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from benchmarks import supernodes
from fedapps.base.processes import end_groups

pytestmark = pytest.mark.subprocesses

#: A node with a worker that has ended and one that waits; both have computed for .2 s.
NODE = """
import os, time
for ended in (True, False):
    if not os.fork():
        while time.process_time() < .2:
            pass
        if ended:
            os._exit(0)
        print("computed", flush=True)
        time.sleep(1000)
    if ended:
        os.wait()
time.sleep(1000)
"""


@pytest.fixture
def fleet() -> Iterator[Any]:
    with subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline() == b"computed\n"
        yield SimpleNamespace(nodes=[SimpleNamespace(process=process)])
        end_groups([process])


@pytest.mark.slow
def test_the_time_of_workers_counts_for_their_node_also_after_their_end(fleet: Any) -> None:
    assert supernodes._processor_seconds(fleet) >= 0.35
    spent, megabytes = supernodes._waiting(fleet, 0.1)
    assert spent < 1000, "what was spent before does not count"
    assert megabytes > 1


def test_a_side_whose_run_does_not_end_keeps_what_was_measured_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(fleet: Any, nodes: int, rounds: int, folder: Path) -> tuple[float, float]:
        if rounds == 2:
            signal.pause()
        return 1.5, 7.0

    fleet = MagicMock()
    monkeypatch.setattr(supernodes, "deployment", lambda *_, **__: nullcontext(fleet))
    monkeypatch.setattr(supernodes, "_wait_until_idle", lambda fleet: None)
    monkeypatch.setattr(supernodes, "_processor_seconds", lambda fleet: 9.0)
    monkeypatch.setattr(supernodes, "_waiting", lambda fleet, seconds: (0.2, 100.0))
    monkeypatch.setattr(supernodes, "_of_flower", run)
    row = supernodes.measured(3, supernodes.FLOWER, seconds=0, minutes=0.001, folder=tmp_path)
    assert row == supernodes.Row(3, supernodes.FLOWER, start=3.0, idle=0.2, idle_megabytes=100.0, first=1.5, wall=7.0)
