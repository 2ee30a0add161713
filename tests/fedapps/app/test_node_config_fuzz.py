"""Node configs of deployed and simulated nodes with any value under any key: the node works, or says what is wrong."""

from contextlib import suppress

import pytest
from damaged_files import bounded
from fedapps.clients.rules import MAX_MEMORY, MAX_STEPS
from fedapps.tasks.lqr.world import write_world
from flwr.app import ConfigRecord, Context, Message, RecordDict
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from spoiled_messages import FLOATS, INTEGERS, ours, typed_errors

from fedapps.app.client_app import app
from fedapps.app.disclosure import NodeFailedError
from fedapps.app.server_app import initial_arrays
from fedapps.config.parsing import parse
from fedapps.deployment.supernode import NODE_KEYS, check_options

pytestmark = pytest.mark.usefixtures("flower_identity")
KEYS = sorted(NODE_KEYS | {"unknown"})
TEXTS = [
    "", " ", ",", "*", "policy.*", "[", "[!", "local", "none", "groups", "loss, *", "x" * 5000, "a\0b", "true",
    "~nobody-here/x",
]  # fmt: skip
VALUES = st.sampled_from([*INTEGERS, *FLOATS, 10**400, True, False, *TEXTS])
RUN = {"task": "lqr", "methods": "apfl", "collect-after": 0, "num-nodes": 2, "name": "run", "epochs": 1, "steps": 1}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """The configs of a deployed and of a simulated node, the arrays of the run, and its config by ``dp``."""
    folder = tmp_path_factory.mktemp("nodes")
    (path, *_) = write_world(folder / "world", 2, seed=1)
    places = {"output-dir": str(folder), "cache-dir": str(folder / "worlds"), "data-dir": ""}
    runs = [parse(RUN | places | {"dp": dp}) for dp in ("none", "local")]
    own = {"data-dir": str(path.parent), "state-dir": str(folder / "state")}
    return [own, {"partition-id": 0, "num-partitions": 2}], initial_arrays(runs[0], "apfl"), runs


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Relative paths and the home folder lead into a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def number_of(value):
    """A number that a config may mean by a value; 0 for one that is none."""
    return value if isinstance(value, (int, float)) and value == value else 0


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4),
    deployed=st.booleans(),
    noisy=st.booleans(),
    kind=st.sampled_from(["query.profile", "train", "evaluate"]),
)
def test_a_node_works_or_names_the_key(nodes, changes, deployed, noisy, kind):
    configs, arrays, runs = nodes
    assume(number_of(changes.get("num-partitions")) <= 9)  # as many nodes are simulated as it says
    assume(not 0 < number_of(changes.get(MAX_MEMORY)) < 10**5)  # this process has more already
    node_config = configs[not deployed] | {MAX_STEPS: 50} | changes
    context = Context(1, 7, node_config, RecordDict(), runs[noisy].flat())
    config = ConfigRecord({"run": "label", "method": "apfl", "server-round": 1})
    content = RecordDict({} if kind == "query.profile" else {"arrays": arrays, "config": config})
    with typed_errors(), bounded(), suppress(NodeFailedError):
        app(Message(content, 7, kind), context)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_node_is_started_or_its_config_is_refused_by_name(data):
    values = st.sampled_from([*INTEGERS, *FLOATS, "true", "false", *(f'"{text}"' for text in TEXTS), "'", "[", "{a=1}"])
    given = data.draw(st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=4))
    text = " ".join(f"{key}={value}" for key, value in given.items())
    with bounded():
        try:
            check_options(["--node-config", text, "--port", "0"])
        except ValueError as error:
            assert ours(error)  # noqa: PT017 - it may also be accepted
            assert "--node-config" in str(error)  # noqa: PT017
