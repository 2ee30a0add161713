"""pfl-research as a side of a benchmark: a process in a separate environment trains a round whenever it is asked."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .environments import environment

_WORKER = Path(__file__).with_name("pfl_worker.py")
REQUIREMENT = "pfl==0.6.0"


def pfl_python() -> Path:
    """The interpreter of the environment; see :func:`benchmarks.environments.environment`."""
    return environment(REQUIREMENT)


@dataclass(frozen=True)
class PflSide:
    """A process of :mod:`benchmarks.pfl_worker`."""

    process: "subprocess.Popen[str]"

    def ask(self, what: str) -> float:
        """Let the process train one round: ``time`` for CPU milliseconds per client, ``memory`` for megabytes.

        Raises
        ------
        RuntimeError
            The process ended; its error is on stderr.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(what, file=self.process.stdin, flush=True)
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError) as error:
            self.process.kill()
            raise RuntimeError(f"pfl failed: exit status {self.process.wait()}; its error is above") from error


@contextmanager
def pfl_side(python: Path, width: int, clients: int, batch: int) -> Iterator[PflSide]:
    """A process in which ``clients`` clients train ``Linear(width, width)`` on batches of size ``batch``."""
    command = [str(python), "-P", str(_WORKER), str(width), str(clients), str(batch)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield PflSide(process)
