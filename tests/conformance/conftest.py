"""The wheel of this project, built once."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from lean_environment import run_tool

PROJECT = Path(__file__).parents[2]
NO_SOURCE = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


def _no_source(folder: str, names: list[str]) -> set[str]:
    """What is left out of the copy; ``runs`` at the root holds run folders, elsewhere it is a package."""
    return {*NO_SOURCE(folder, names), *({"runs"} if Path(folder) == PROJECT else ())}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That in the variable ``WHEEL``, else built from a copy, because setuptools takes what an earlier build left."""
    if built := os.environ.get("WHEEL"):
        return Path(built).absolute()
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(PROJECT, folder / "source", ignore=_no_source)
    run_tool(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index",
        "--no-build-isolation", "--wheel-dir", folder, folder / "source",
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel
