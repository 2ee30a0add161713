"""Servers that ask the app's nodes for more than they may have, by hand-made messages to the real ClientApp."""

import logging
import re

import numpy as np
import pytest
from fedapps.clients.guard import PrivateParametersError
from fedapps.clients.rules import LimitError, RulesError
from fedapps.strategies.wire import FISHER
from fedapps.tasks.lqr.world import write_world
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import ClientApp
from toys import arrays_of, record_of

from fedapps.app.client_app import app, client_fn
from fedapps.app.disclosure import DEFAULT_STATE, Disclosure, NodeFailedError
from fedapps.app.node import Node
from fedapps.app.server_app import initial_arrays
from fedapps.base import atomic
from fedapps.base.atomic import UnwritableError, temporary_name
from fedapps.config.parsing import parse

pytestmark = pytest.mark.usefixtures("flower_identity")
TEXT = {
    "task": "text", "epochs": 1, "batch-size": 8, "collect-after": 0, "num-nodes": 2, "text.source": "simulated",
    "text.hidden": 8, "text.world-examples": 20, "name": "run",
}  # fmt: skip


class Server:
    """A server that sends one node what it likes."""

    def __init__(self, given, folder, node_config):
        config = parse({"output-dir": str(folder), "cache-dir": str(folder / "worlds"), **given})
        self.whole = arrays_of(initial_arrays(config))
        self.context = Context(1, 7, node_config, RecordDict(), config.flat())

    def asks(self, names, kind="train", records=None, **config):
        orders = {"run": "label", "server-round": 1, **config}
        arrays = record_of({name: self.whole.get(name, np.zeros(1)) for name in names})
        content = RecordDict({"arrays": arrays, "config": ConfigRecord(orders), **(records or {})})
        return app(Message(content, 7, kind), self.context)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def text_server(folder, methods, **node_config):
    return Server(TEXT | {"methods": methods}, folder, {"partition-id": 0, "num-partitions": 2, **node_config})


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("methods", "config", "name"),
    [
        ("fedvocab", {"method": "fedvocab"}, "embedding.weight"),
        ("fedvocab", {}, "embedding.weight"),  # as a strategy of Flower, which names no method
        ("fedvocab,lg-fedavg", {}, "embedding.weight"),  # private in both
        ("lg-fedavg", {"method": "lg-fedavg"}, "encoder."),
        ("local", {"method": "local"}, "classifier.weight"),
        ("local", {}, "classifier.weight"),
    ],
)
def test_a_request_for_a_private_parameter_is_refused(folder, kind, methods, config, name):
    server = text_server(folder, methods)
    name = next(other for other in server.whole if other.startswith(name))
    with pytest.raises(NodeFailedError, match="PrivateParametersError") as refused:
        server.asks([name], kind, **config)
    shape = server.whole[name].shape
    assert not re.search(rf"\b{shape[0]}, {shape[-1]}\b", str(refused.value).split("Traceback")[0])


def test_what_the_method_shares_is_answered_as_before(folder):
    server = text_server(folder, "fedvocab")
    shared = [name for name in server.whole if not name.startswith("embedding.")]
    for config in ({"method": "fedvocab"}, {}):
        assert list(server.asks(shared, **config).content["arrays"]) == shared
    both = text_server(folder, "fedvocab,fedavg")
    assert list(both.asks(["embedding.weight"]).content["arrays"]) == ["embedding.weight"], "fedavg shares it"


@pytest.mark.slow
def test_the_operators_patterns_win_over_method_and_run_config(folder):
    """The server sets methods and message; ``private`` is in the node config."""
    server = text_server(folder, "fedavg,fedcurv", private="embedding.*")
    for method in ("fedavg", "fedcurv"):
        with pytest.raises(NodeFailedError, match=r"embedding\.weight: private on this node"):
            server.asks(list(server.whole), method=method)
    shared = [name for name in server.whole if not name.startswith("embedding.")]
    reply = server.asks(shared, method="fedcurv", records={FISHER: ConfigRecord({"estimator": "per-sample"})})
    assert {name for record in reply.content.array_records.values() for name in record} == set(shared)


def test_a_misspelt_pattern_of_the_operator_stops_the_node(folder):
    server = text_server(folder, "fedavg", private="embeding.*")
    with pytest.raises(NodeFailedError, match=r"private = embeding\.\*: no parameter of the model matches"):
        server.asks(["classifier.weight"], method="fedavg")


def test_a_query_that_the_method_does_not_have_is_refused(tmp_path):
    """APD keeps what each stage adds; its local part would answer FedWeIT's query for it."""
    given = {"task": "social", "methods": "fedavg-apd", "num-nodes": 2, "rounds": 4, "collect-after": 0, "name": "run"}
    given |= {"evaluate-every": 1, "social.source": "simulated", "social.participants": "a,b;c,d"}
    server = Server(given, tmp_path, {"partition-id": 0, "num-partitions": 2})
    orders = ConfigRecord({"run": "label", "method": "fedavg-apd", "server-round": 2, "decomposition": "fedweit"})
    with pytest.raises(NodeFailedError, match="query 'adaptive': the method 'fedavg-apd' answers none"):
        app(Message(RecordDict({"config": orders}), 7, "query.adaptive"), server.context)


def test_the_older_numpy_client_has_no_private_parameter(folder):
    server = text_server(folder, "fedvocab")
    with_words = sum(array.size for array in server.whole.values())
    client = Node(Message(RecordDict(), 7, "train"), server.context).numpy_client()
    given = client.get_parameters({})
    assert sum(array.size for array in given) == with_words - server.whole["embedding.weight"].size
    with pytest.raises(ValueError, match=r"received .* arrays, but"):
        client.fit(list(server.whole.values()), {})
    with pytest.raises(PrivateParametersError):
        client.node.train_round({"embedding.weight": server.whole["embedding.weight"]}, client.settings)
    assert ClientApp(client_fn=client_fn)


@pytest.fixture
def deployed(tmp_path):
    """A node with its own folder, whose operator keeps one of its parameters private."""
    (path,) = write_world(tmp_path / "world", 1, seed=1)
    given = {"task": "lqr", "methods": "sfl", "collect-after": 0, "num-nodes": 1, "name": "run", "epochs": 1}
    secret, *_ = arrays_of(initial_arrays(parse(given)))
    node_config = {"data-dir": str(path.parent), "state-dir": str(tmp_path / "state"), "private": secret}
    return Server(given, tmp_path, node_config), secret


def failure(server, names, **config):
    with pytest.raises(NodeFailedError) as refused:
        server.asks(names, method="sfl", **config)
    return str(refused.value)


def test_a_deployed_node_answers_without_shapes_and_logs_why(deployed, caplog):
    server, secret = deployed
    with caplog.at_level(logging.ERROR, "flwr"):
        reply = failure(server, [secret])
    sent = re.fullmatch(r"PrivateParametersError; the node's log has the details of error (\w{8})", reply)
    assert sent, reply
    (line,) = [record.getMessage() for record in caplog.records if sent[1] in record.getMessage()]
    assert f"{secret}: private on this node" in line
    assert all(part.startswith("  | ") for part in line.splitlines()[1:]), "no line of it can pass for another's"


def assert_no_data(reply, tmp_path):
    assert re.fullmatch(r"\w+(: the node's data are missing or cannot be used)?; the node's log has .* \w{8}", reply)
    assert not any(word in reply for word in ("4711", str(tmp_path), "Traceback", "shape", "\n"))


def test_no_error_of_a_deployed_node_carries_shapes_or_paths(deployed, tmp_path):
    server, _ = deployed
    others = list(server.whole)[1:]
    for names, config in ((["huh"], {}), (others, {"epochs": "many"}), (others, {"attempts": "../.."})):
        assert_no_data(failure(server, names, **config), tmp_path)


def test_no_error_of_a_deployed_node_quotes_its_data(deployed, tmp_path, caplog):
    server, _ = deployed
    path = next((tmp_path / "world").iterdir())
    path.write_text(path.read_text() + "4711,medication\nERROR : forged\n")
    with caplog.at_level(logging.ERROR, "flwr"):
        assert_no_data(failure(server, list(server.whole)[1:]), tmp_path)
        profile = app(Message(RecordDict(), 7, "query.profile"), server.context).content["profile"]
    assert_no_data(profile["no-data"], tmp_path)
    assert str(path) in caplog.text


def test_a_deployed_node_writes_only_into_its_own_folder(deployed, tmp_path):
    """Whatever ``output-dir`` the run config names, and though its node config has a partition-id."""
    server, _ = deployed
    server.context.node_config["partition-id"] = 0
    server.context.node_config.pop("state-dir")
    root = Disclosure.of(server.context).root
    assert root.is_relative_to(DEFAULT_STATE.replace("~", str(root.home())))


@pytest.mark.parametrize("name", ["x" * 256, "a\0b", "\ud800", "~nobody-here/x", "/dev/null/x"])
def test_a_state_folder_that_cannot_be_is_refused_by_its_key(deployed, name):
    server, _ = deployed
    server.context.node_config["state-dir"] = name
    with pytest.raises(UnwritableError, match=r"^node config state-dir = '.*': cannot be used \("):
        _ = Disclosure.of(server.context).root


def test_a_deployed_node_has_limits_that_no_server_changes(deployed, tmp_path):
    server, _ = deployed
    limit = "LimitError: the message asks for more steps or time than the node gives; the node's log has"
    assert failure(server, list(server.whole)[1:], epochs=2**62).startswith(limit)
    server.context.node_config["max-steps"] = 1
    assert failure(server, list(server.whole)[1:], steps=2).startswith(limit)
    assert not list((tmp_path / "state").rglob("round-*"))


def test_a_numpy_client_works_by_the_rules_of_its_node(deployed):
    server, _ = deployed

    def client(**rules):
        server.context.node_config.update(rules)
        return Node(Message(RecordDict(), 7, "train"), server.context).numpy_client()

    start = client().get_parameters({})
    with pytest.raises(LimitError, match="this node takes at most 1 optimizer steps"):
        client(**{"max-steps": 1}).fit(start, {"steps": 2})
    resting = client(eligible="false")
    for work in (resting.fit, resting.evaluate):
        with pytest.raises(RulesError, match="exit status 1, so that this node may not work now"):
            work(start, {})


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_node_that_may_not_work_now_refuses_work(deployed, kind):
    """Whatever it said in its profile, and whether or not the server asked for it."""
    server, _ = deployed
    names = list(server.whole)
    server.context.node_config["eligible"] = "sh -c 'exit 3'"
    expected = "RulesError: eligible: the command ended with exit status 3, so that this node may not work now"
    assert failure(server, names, kind=kind).startswith(expected)


def test_a_node_that_may_not_work_now_still_changes_to_another_model(deployed):
    server, _ = deployed
    server.context.node_config.update({"eligible": "false", "private": ""})
    assert server.asks(list(server.whole), "evaluate", method="sfl", promote=1).has_content()


def test_the_developers_switch_sends_the_traceback(deployed):
    server, _ = deployed
    server.context.node_config["send-errors"] = True
    reply = failure(server, ["huh"])
    assert "huh: not a parameter of the model" in reply
    assert "Traceback" in reply


def test_what_a_killed_node_left_unfinished_in_its_state_is_removed(folder, tmp_path, monkeypatch):
    server = text_server(folder, "local", **{"state-dir": str(tmp_path)})
    state = tmp_path / "label" / "local" / "client-000"
    state.mkdir(parents=True)
    left = temporary_name(state / "round-000001.safetensors")
    left.touch()
    for gone in (False, True):
        monkeypatch.setattr(atomic, "still_runs", lambda pid, started, gone=gone: not gone)
        assert not server.asks([], method="local").has_error()
        assert left.exists() != gone
