"""The cost of SuperNodes: what counts as that of a node."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

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


def test_the_time_of_workers_counts_for_their_node_also_after_their_end(fleet: Any) -> None:
    assert supernodes._processor_seconds(fleet) >= 0.35
    spent, megabytes = supernodes._waiting(fleet, 0.1)
    assert spent < 1000, "what was spent before does not count"
    assert megabytes > 1
