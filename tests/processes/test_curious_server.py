"""A server that asks real SuperNodes for what they must not give, and nodes whose key or group is not their own."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
from fedapps.tasks.lqr.world import write_world

from fedapps.app.server_app import initial_arrays
from fedapps.base.atomic import path_name
from fedapps.config.parsing import parse
from fedapps.deployment.superlink import deployment

pytestmark = [pytest.mark.processes, pytest.mark.slow]

#: A key from the name of a file: a backslash, which steps down a folder on some systems, and a quoted slash.
KEY = "robot-\\%2Fescaped"

PROJECT = {
    "project": {"name": "curious-server", "version": "1.0.0", "dependencies": []},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "tests",
                "components": {
                    "serverapp": "curious_server.server_app:app",
                    "clientapp": "curious_server.client_app:app",
                },
            }
        }
    },
}
CLIENT = """
from fedapps.app import client_app

app = client_app.app
"""
SERVER = """
import json
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

from fedapps.app.server_app import initial_arrays
from fedapps.config.parsing import parse
from fedapps.strategies import Admission
from fedapps.strategies.registry import NodeRegistry

app = ServerApp()
TIMEOUT = 300


@app.main()
def main(grid, context):
    admission = Admission(allowed_groups={"control-weight": {"1"}}, bind_keys=True)
    registry = NodeRegistry(admission=admission, min_nodes=3)
    known = registry.connected(grid)
    (node,) = [profile.node_id for profile in known if not profile.no_data]
    whole = initial_arrays(parse(context.run_config))
    private, *shared = whole

    def asked(names, **config):
        orders = {"run": "label", "method": "sfl", "server-round": 1, "attempts": "0:a1", **config}
        orders = {name.replace("_", "-"): value for name, value in orders.items() if value is not None}
        arrays = ArrayRecord({name: whole.get(name, whole[private]) for name in names})
        message = Message(RecordDict({"arrays": arrays, "config": ConfigRecord(orders)}), node, "train")
        (reply,) = grid.send_and_receive([message], timeout=TIMEOUT)
        return f"error: {reply.error.reason}" if reply.has_error() else sorted(reply.content["arrays"])

    said = {
        "profiles": [(profile.key, profile.no_data) for profile in known],
        "private": asked([private, *shared]),
        "private without a method": asked([private], method=None),
        "unknown": asked(["huh"]),
        "a path": asked(shared, run="../../../../escaped"),
        "first": asked(shared),
        "second": asked(shared, server_round=2),
        "third, after going back to the first": asked(shared, server_round=3, attempts="0:a1 1:b2"),
    }
    Path(context.run_config["output-dir"], "said.json").write_text(json.dumps(said))
"""


def test_nodes_give_away_nothing_of_theirs(tmp_path: Path) -> None:
    package = tmp_path / "app" / "curious_server"
    package.mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("server_app.py", SERVER), ("client_app.py", CLIENT)):
        (package / name).write_text(text)
    given = {"task": "lqr", "methods": "sfl", "collect-after": 0, "num-nodes": 3, "epochs": 1, "name": "run"}
    config = parse(given | {"output-dir": str(tmp_path), "batch-size": 32}).flat()
    project = PROJECT | {"tool": {"flwr": {"app": PROJECT["tool"]["flwr"]["app"] | {"config": config}}}}
    (tmp_path / "app" / "pyproject.toml").write_text(tomli_w.dumps(project))
    private, *shared = initial_arrays(parse(given))
    (data,) = write_world(tmp_path / "data", 1, seed=1)
    data = data.rename(data.with_name(f"{KEY}.csv"))
    copied, invented = tmp_path / "copied", tmp_path / "invented"
    shutil.copytree(data.parent, copied)
    invented.mkdir()
    table = pd.read_csv(data).assign(control_weight=2)
    table.to_csv(invented / "robot-01.csv", index=False)
    lines: list[str] = []
    with deployment(tmp_path / "fleet", tls=True, auth=True) as fleet:
        fleet.start_superlink()
        nodes = [{"data-dir": str(folder), "private": private} for folder in (data.parent, copied, invented)]
        fleet.start_supernodes(nodes)
        fleet.run(tmp_path / "app", {}, lines.append)
        logs = "".join(node.log.read_text() for node in fleet.nodes)
    told = tmp_path / "said.json"
    assert told.exists(), "\n".join(lines)[-5000:]
    said = json.loads(told.read_text())

    # Both nodes claim the key of the file's name: one of them is left out.
    (admitted,) = [key for key, no_data in said["profiles"] if not no_data]
    refused = sorted(no_data for _, no_data in said["profiles"] if no_data)
    assert admitted == KEY
    assert refused == [
        f"it claims the key {KEY!r}, which belongs to a node with another public key",
        "its control-weight is '2'; allowed are 1",
    ]

    for name, kind in (
        ("private", "PrivateParametersError"),
        ("private without a method", "PrivateParametersError"),
        ("unknown", "ValueError"),
    ):
        found = re.search(rf"{kind}; the node's log has the details of error (\w{{8}})", said[name])
        assert found, said[name]
        assert f"error {found[1]}: " in logs
        assert not re.search(r"\(\d+,|Traceback|\.py|\n", said[name]), "neither shapes nor places in the code"
    assert f"{private}: private on this node" in logs

    assert said["a path"] == said["first"] == said["second"] == sorted(shared)
    assert not list(tmp_path.rglob("escaped"))
    (folder,) = tmp_path.glob("fleet/node-*/state/label/sfl/*")
    assert folder.name == path_name(KEY) != KEY, "a key is quoted, too"
    versions = sorted(path.name for path in folder.iterdir())
    assert versions == ["round-000001.safetensors", "round-000003.safetensors"], "the second round did not count"
    quoted = folder.parents[2] / "%2E.%2F..%2F..%2F..%2Fescaped" / "sfl" / folder.name / "round-000001.safetensors"
    assert quoted.exists()
