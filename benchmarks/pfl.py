"""pfl-research as a side of a benchmark: a process in a separate environment trains a round whenever it is asked.

The package of pfl-research pins versions that this project does not use. Its environment is built once, in the user's
cache. It has ``pfl`` and what ``pfl`` pins, and takes all other packages from the running environment. Both sides of a
benchmark therefore use the same build of torch and NumPy.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_WORKER = Path(__file__).with_name("pfl_worker.py")
REQUIREMENT = "pfl==0.6.0"
_DONE = "complete"


def pfl_python() -> Path:
    """The interpreter of the environment, which is built if it does not exist.

    Raises
    ------
    RuntimeError
        The environment could not be built, for example without a network; the message has the last lines of pip.
    """
    folder = _folder()
    python = folder / "bin" / "python"
    if not (folder / _DONE).exists():
        print(f"building an environment with {REQUIREMENT} in {folder}", file=sys.stderr, flush=True)
        _call([sys.executable, "-m", "venv", "--clear", str(folder)])
        (_site(folder) / "below.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        _call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT])
        (folder / _DONE).touch()
    return python


def _folder() -> Path:
    """One folder for each running environment and requirement."""
    key = hashlib.sha256("\n".join((sys.prefix, sys.version, REQUIREMENT)).encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fedapps" / "benchmarks" / f"{REQUIREMENT.replace('==', '-')}-{key}"


def _site(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RuntimeError(f"no environment with {REQUIREMENT}: {' '.join(command)} failed:\n{last}")


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
