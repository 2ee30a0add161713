"""A separate environment for pfl-research, whose package pins versions that this project does not use.

The environment is built once, in the user's cache. It has ``pfl`` and what ``pfl`` pins, and takes all other packages
from the running environment. Both sides of a benchmark therefore use the same build of torch and NumPy.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

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
        (_site(folder) / "below.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
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
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        last = "\n".join(found.stderr.strip().splitlines()[-5:])
        raise RuntimeError(f"no environment with {REQUIREMENT}: {' '.join(command)} failed:\n{last}")
