"""The projects in ``examples/`` in one process: their apps, their run config, what they tell of their rounds.

As a script, for environments that have flwr and little else: ``example_apps.py FOLDER NODES [KEY=VALUE ...]``.
"""

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from fedapps.sim.inprocess import run_inprocess

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """ServerApp, ClientApp and run config of the Flower project in a folder."""
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    sys.path.insert(0, str(folder))
    try:
        server_app, client_app = (_load(app["components"][kind]) for kind in ("serverapp", "clientapp"))
    finally:
        sys.path.remove(str(folder))
    return server_app, client_app, app["config"]


def told(log: str, metric: str) -> list[float]:
    """The values of a metric in the log of a run, by round."""
    return [float(value) for value in re.findall(rf"round \d+: (?:\S+ \S+, )*{metric} ([^\s,]+)", log)]


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _main(folder: str, nodes: str, *settings: str) -> None:
    server_app, client_app, config = load_example(Path(folder))
    config |= tomllib.loads("\n".join(settings))
    run_inprocess(server_app, client_app, num_nodes=int(nodes), run_config=config, errors="reply")


if __name__ == "__main__":
    _main(*sys.argv[1:])
