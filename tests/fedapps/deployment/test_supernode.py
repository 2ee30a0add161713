"""The command of a SuperNode and how often it polls."""

import subprocess

import pytest

from fedapps.deployment.supernode import LIBRARIES, SuperNode


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
