"""The folder of this package's Flower app, as ``flwr run`` takes it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files, requires, version
from pathlib import Path

import tomli_w

from fedapps.config.keys import generated

_PACKAGE = Path(__file__).parents[1]
#: The repository or the bundle that holds this package; not a folder of an app where the package is installed.
APP = _PACKAGE.parent
_LICENSE = "LICENSE"  # which Flower's bundles of format 1 contain


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
        licenses = (file.locate() for file in files("fedapps") or () if file.name == _LICENSE)
        shutil.copy(next(licenses), app / _LICENSE)
        yield app


def _pyproject() -> str:
    """What Flower reads of a project: its name, its requirements, its two apps and the keys of its run config."""
    app = {
        "publisher": "fedapps",
        "fab-format-version": 1,
        "flwr-version-target": version("flwr"),
        "components": {"serverapp": "fedapps.app.server_app:app", "clientapp": "fedapps.app.client_app:app"},
    }
    project = {
        "project": {
            "name": "fedapps",
            "version": version("fedapps"),
            "license": {"file": _LICENSE},
            "dependencies": [needed for needed in requires("fedapps") or () if "extra ==" not in needed],
        },
        "tool": {"flwr": {"app": app}},
    }
    return f"{tomli_w.dumps(project)}\n{generated()}"
