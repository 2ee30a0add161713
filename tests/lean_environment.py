"""A Python environment with a few of the distributions that are installed here, and no other: nothing is downloaded."""

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import example_apps
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_environment(folder: Path, *names: str) -> Path:
    """The interpreter of a new virtual environment that sees the named distributions and all that they require."""
    venv.create(folder, with_pip=False)
    shown = folder / "shown"
    shown.mkdir()
    for found in _with_requirements(names):
        for entry in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = shown / entry
            if not link.exists():  # two distributions may share a namespace package
                link.symlink_to(Path(str(found.locate_file(entry))).resolve())
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "shown.pth").write_text(f"{shown}\n")
    return folder / "bin" / "python"


def run_python(python: Path, *arguments: str | Path) -> str:
    """Both outputs of an interpreter that heeds no setting of this one, and must not fail."""
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
    # No PYTHONPATH (-E), no packages of the user's own (-s), nothing from the folder that the tests were started in.
    return run_tool(python, "-E", "-s", *arguments, environment=environment, folder=python.parent)


def run_tool(*command: str | Path, environment: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Both outputs of a command that must not fail."""
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=folder
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_example(python: Path, scratch: Path, folder: Path, nodes: int, *settings: str) -> str:
    """The log of an example on an interpreter that has this project's ``sim``, or gets its in-process engine.

    The script is copied to ``scratch``, so that nothing of this project lies beside it.
    """
    script = Path(shutil.copy(example_apps.__file__, scratch))
    return run_python(python, script, folder, str(nodes), *settings)


def _with_requirements(names: tuple[str, ...]) -> list[Distribution]:
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [Requirement(name) for name in names]
    while queue:
        wanted = queue.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = distribution(name)
        for requirement in map(Requirement, found[name].requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                queue.append(requirement)
    return list(found.values())


def install(python: Path, wheel: Path) -> None:
    """Put a wheel into the environment of an interpreter, without what it requires."""
    run_tool(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python,
        "install", "--quiet", "--no-deps", "--no-index", wheel,
    )  # fmt: skip
