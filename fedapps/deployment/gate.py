"""``fedapps gate`` and ``fedapps rollback``: runs that change the model in use, on a federation or simulated nodes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapps.config.parsing import parse
from fedapps.launch.launch import execute
from fedapps.runs.champions import Registry
from fedapps.runs.run_folder import read_config

from .fleet import check_deployable, submit

#: What stands for the default connection of Flower's config.
DEFAULT = "-"


def steer(registry: Path, run: Path | None, action: str, federation: str, overrides: Mapping[str, Any]) -> None:
    """Let the nodes do what the key ``gate`` says.

    Parameters
    ----------
    registry : Path
    run : Path or None
        The folder of the challenger's run; by default that of the newest champion, whose config the nodes get.
    action : str
        A value of the key ``gate``.
    federation : str
        The name of a connection; empty for simulated nodes.
    overrides : mapping
        Keys that replace those of the run.

    Raises
    ------
    ValueError
        There is no champion yet, or the run folder or a key is invalid.
    RunFailedError
        The run on the federation failed.
    """
    folder = registry.expanduser().absolute()
    if run is None:
        if not (generations := Registry.read(folder).generations):
            raise ValueError(f"{folder} has no champion yet: promote one with `fedapps gate RUN --registry {registry}`")
        run = Path(generations[-1].run)
    path = run.expanduser().absolute()
    if not (path / "config.toml").is_file():
        raise ValueError(f"{path} is no run folder: give the folder of a finished run")
    paths = {"name": path.name, "output-dir": str(path.parent), "start": str(path), "registry": str(folder)}
    keys = {**read_config(path), "resume": False, "trackers": "", **paths, "gate": action, **overrides}
    config = parse(keys)
    if federation:
        check_deployable(config)
        submit(keys, "" if federation == DEFAULT else federation, stream=True)
        return
    execute(config, "inline")
