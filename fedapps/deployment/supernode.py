"""Flower's SuperNode, with workers that start from imported libraries.

For every message, Flower starts a new process ``flwr-clientapp``, which imports Flower and torch before it does
anything. That takes seconds of processor time, on a small computer more than training. With this command the SuperExec
of the node imports them once, and each worker is a fork that handles one message and ends.
"""

import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .flower_command import run_flower

#: What workers of this project import before they train; ``torch._dynamo`` is imported by torch's optimizers.
LIBRARIES: tuple[str, ...] = ("torch", "torch._dynamo", "scipy.spatial", "PIL.Image", "safetensors.numpy")
#: Memory of the process that has imported them.
PRELOADED_BYTES = 400_000_000
#: Seconds that Flower's SuperNode waits before it asks the SuperLink for messages again.
POLL_INTERVAL = 3.0


def supernode_command(
    arguments: Sequence[str], libraries: Sequence[str] = LIBRARIES, poll_interval: float = POLL_INTERVAL
) -> list[str]:
    """The command line of such a SuperNode.

    Parameters
    ----------
    arguments : sequence of str
        Options of ``flower-supernode``.
    libraries : sequence of str
        Modules that workers need; those that are not installed are skipped.
    poll_interval : float
        Largest number of seconds (> 0) between two questions to the SuperLink for messages, at most Flower's 3.
    """
    return [sys.executable, "-P", "-m", __name__, f"{poll_interval:g}", ",".join(libraries), *arguments]


def main() -> None:
    """Run the SuperNode until it is stopped."""
    interval, libraries, *arguments = sys.argv[1:]
    import_module("flwr.supernode.start_client_internal").time = _Clock(float(interval))  # type: ignore[attr-defined]
    superexec = [sys.executable, "-P", "-m", "fedapps.deployment.superexec", libraries]
    run_flower("flower-supernode", arguments, replace="flower-superexec", start=lambda given: [*superexec, *given])


class _Clock:
    """The module ``time`` with shorter pauses, for the loop in which Flower's SuperNode polls."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


if __name__ == "__main__":
    main()
