"""The command of a SuperNode and how often it polls."""

import subprocess
import time

import pytest

from fedapps.deployment.supernode import LIBRARIES, SuperNode, _Clock


def test_pauses_of_a_supernode_are_cut_to_the_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = _Clock(0.5)
    clock.sleep(3)
    clock.sleep(0.1)
    assert slept == [0.5, 0.1]
    assert clock.monotonic is time.monotonic


@pytest.mark.parametrize("seconds", [0.0, -1.0, 3.5, float("nan")])
def test_a_poll_interval_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"poll interval = .* s: must be above 0 and at most Flower's 3 s"):
        SuperNode(poll_interval=seconds)


def test_many_nodes_poll_less_often_and_import_nothing_beforehand() -> None:
    assert SuperNode.on_this_machine(1) == SuperNode(LIBRARIES, 0.2)
    assert SuperNode.on_this_machine(10_000) == SuperNode((), 1.0)


@pytest.mark.subprocesses
def test_the_command_of_a_supernode_starts() -> None:
    helped = subprocess.run(SuperNode().command(["--help"]), capture_output=True, text=True)
    assert helped.returncode == 0, helped.stderr
    assert "--superlink" in helped.stdout
    assert "torch" in LIBRARIES
