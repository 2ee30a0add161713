"""Packages of methods and tasks, installed into a folder by pip, and commands that see them."""

import os
import shutil
import sys
from pathlib import Path

from lean_environment import run_tool

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedsam", "tabular-task")


def install(source: Path, scratch: Path, target: Path) -> Path:
    """Install the project in ``source`` into the folder ``target``, without what it requires; pip works on a copy."""
    copy = shutil.copytree(source, scratch / source.name, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    options = ["--disable-pip-version-check", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run_tool(sys.executable, "-m", "pip", "install", *options, "--target", target, copy)
    return copy


def install_examples(folder: Path) -> Path:
    """Install the packages of ``examples/`` below ``folder``; the folder that holds them."""
    for name in PACKAGES:
        install(ROOT / "examples" / name, folder / "sources", folder / "installed")
    return folder / "installed"


def environment_with(target: Path) -> dict[str, str]:
    """The environment of a process that sees what is installed in ``target``, and this project."""
    paths = [str(target), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
