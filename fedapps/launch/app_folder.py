"""The folder of this package's Flower app, as ``flwr run`` takes it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import tomli_w

from fedapps.config.keys import generated

_PACKAGE = Path(__file__).parents[1]
#: The repository or the bundle that holds this package; not a folder of an app where the package is installed.
APP = _PACKAGE.parent


@contextmanager
def app_folder() -> Iterator[Path]:
    """Give the folder of the app, with ``pyproject.toml`` in it.

    For an installed wheel it is a temporary folder with a copy of the package, because ``flwr run`` bundles whatever
    stands beside ``pyproject.toml``.
    """
    if not (_PACKAGE / "strategies").is_dir():
        yield APP
        return
    with tempfile.TemporaryDirectory(prefix="fedapps-app-") as folder:
        app = Path(folder)
        shutil.copytree(_PACKAGE, app / _PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        (app / "pyproject.toml").write_text(_pyproject(), encoding="utf-8")
        yield app


def _pyproject() -> str:
    """What Flower reads of a project: its name, its two apps and the keys of its run config."""
    components = {"serverapp": "fedapps.app.server_app:app", "clientapp": "fedapps.app.client_app:app"}
    project = {
        "project": {"name": "fedapps", "version": version("fedapps"), "license": "Apache-2.0"},
        "tool": {"flwr": {"app": {"publisher": "fedapps", "components": components}}},
    }
    return f"{tomli_w.dumps(project)}\n{generated()}"
