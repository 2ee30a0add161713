"""Whole runs in one process."""

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import app as server_app
from fedapps.config.parsing import parse
from fedapps.launch.launch import resolve
from fedapps.runs.run_folder import RunFolder
from sim.inprocess import run_inprocess


def run_inline(given, folder, node_configs=()):
    """Run the app on a run config that has a name; the run's folder, in ``folder``."""
    config = parse(resolve(given, str(folder)))
    run_inprocess(
        server_app, client_app, num_nodes=config.run.num_nodes, node_configs=node_configs, run_config=config.flat(),
        errors="reply",
    )  # fmt: skip
    return RunFolder(folder / config.run.name, "")


def with_changes(given, changes):
    """A run config with other values; keys may be written as Python's names."""
    return given | {key.replace("_", "-"): value for key, value in changes.items()}
