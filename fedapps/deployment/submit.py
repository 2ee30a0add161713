"""Submit a recipe to a SuperLink that is already running, or print the run-config file that ``flwr run`` takes."""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.config.keys import for_flower
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.app_folder import app_folder
from fedapps.launch.runner import RunFailedError
from fedapps.registry.local_methods import local_methods
from fedapps.sim.flower_run import submission


def run_config_text(recipe: Path, overrides: Mapping[str, Any]) -> str:
    """The keys of a recipe as one flat TOML file for ``flwr run --run-config``, which knows no ``base``.

    Raises
    ------
    ValueError
        If the recipe or a key is invalid, or nodes with their own data cannot run it.
    """
    given = read_recipe(recipe, overrides)
    check_deployable(parse(given, files_exist=False))
    return tomli_w.dumps(for_flower(given))


def deploy(recipe: Path, federation: str, overrides: Mapping[str, Any], *, stream: bool) -> int:
    """Run a recipe on the SuperLink of a federation.

    Parameters
    ----------
    recipe : Path
        Name of a recipe, or path of a run-config file.
    federation : str
        The name of a connection in Flower's ``config.toml``; empty for its default.
    overrides : mapping
        Keys of the run config that replace those of the recipe. Paths are those of the server.
    stream : bool
        Show the log of the run until it ends.

    Returns
    -------
    int
        The exit status of ``flwr run``.

    Raises
    ------
    ValueError
        As :func:`run_config_text`.
    RunFailedError
        If the SuperLink does not take the run.
    """
    given = read_recipe(recipe, overrides)
    check_deployable(parse(given, files_exist=False))
    with app_folder() as app, tempfile.TemporaryDirectory(prefix="fedapps-submit-") as folder:
        command = submission(app, Path(folder), for_flower(given), federation, stream=stream)
        status = subprocess.run(command, check=False).returncode
    if status:
        raise RunFailedError(
            f"flwr run ended with exit status {status}: see its message above; `flwr config list` shows the federations"
        )
    return status


def check_deployable(config: Config) -> None:
    """Check that nodes with their own data and processes can run a config.

    Raises
    ------
    ValueError
        If nodes shall train at once, or in simulated time, or if a method needs the pooled data of all nodes or is not
        part of a package.
    """
    config.run.check_separate_nodes()
    config.check_real_nodes()
    if pooled := [label for label, method in config.methods.items() if method.pools_data]:
        others = ",".join(label for label in config.methods if label not in pooled)
        raise ValueError(
            f"methods: {', '.join(pooled)} trains on the pooled data of all nodes, which no node of a fleet has: "
            "use `fedapps run`" + (f", or add --set methods={others}" if others else "")
        )
    if local := [label for label, method in config.methods.items() if method.name in local_methods()]:
        raise ValueError(
            f"methods: {', '.join(local)} is defined in a file of this machine, which the nodes do not have: make a "
            "package of it (docs/extending.md) and install it on the server and on every node"
        )
