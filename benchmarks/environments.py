"""Environments of packages that this project does not use, for the other sides of benchmarks.

Each is built once, in the user's cache. Where it has the version of Python that runs, it takes all packages that it
does not pin from the running environment, so that both sides of a benchmark use the same build of torch and NumPy.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_DONE = "complete"


def environment(requirement: str, python: str = "") -> Path:
    """The interpreter of an environment with a package, which is built if it does not exist.

    Parameters
    ----------
    requirement : str
        For pip, for example ``pfl==0.6.0``.
    python : str, optional
        Another interpreter, for example ``python3.13``, for a package that needs it. The environment then takes no
        package from the running one.

    Raises
    ------
    RuntimeError
        There is no such interpreter, or the environment could not be built, for example without a network; the message
        has the last lines of pip.
    """
    base = _works(python) if python else sys.executable
    key = hashlib.sha256("\n".join((sys.prefix, sys.version, base, requirement)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedapps" / "benchmarks"
    folder = cache / f"{requirement.partition('[')[0].replace('==', '-')}-{key}"
    built = folder / "bin" / "python"
    if not (folder / _DONE).exists():
        print(f"building an environment with {requirement} in {folder}", file=sys.stderr, flush=True)
        _call(requirement, [base, "-m", "venv", "--clear", str(folder)])
        if not python:
            site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
            (site / "below.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", requirement]
        _call(requirement, [str(built), *install])
        (folder / _DONE).touch()
    return built


def _works(python: str) -> str:
    """The path of an interpreter that starts."""
    path = shutil.which(python)
    if path is None or subprocess.run([path, "-V"], capture_output=True, check=False).returncode:
        raise RuntimeError(f"{python}: no such interpreter on the PATH")
    return path


def _call(requirement: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RuntimeError(f"no environment with {requirement}: {' '.join(command)} failed:\n{last}")
