"""What is used of Flower beyond its public interface is there and does what is needed, in each tested version."""

import ast
import hashlib
import inspect
import os
import re
import time
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace as Bare

import numpy as np
import pytest
from fedapps.sim import flower_internals
from fedapps.sim.clock_grid import ClockGrid
from fedapps.sim.flower_internals import direct_arrays, fallback, flower_identity, missing_names, set_message_id
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import wire
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from flwr.common import constant
from flwr.common.config import get_project_dir
from flwr.common.constant import SubStatus
from flwr.serverapp import ServerApp
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import SubprocessExecutor
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.runtime import run_clientapp

from fedapps.deployment.flower_command import POLL_INTERVAL

IDENTITY = ("_task_id", "_run_id", "_node_id")
ARRAYS = {
    "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12)[::3],
    "0-d": np.array(-0.0),
    "empty": np.zeros((0, 3), np.float16),
    "booleans": np.array([True, False]),
    "big-endian": np.arange(3, dtype=">i4"),
    "dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "text": np.array(["a", "bc"]),
    "fields": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
}
BAD = {
    "nothing": Array("float32", (1,), "numpy.ndarray", b""),
    "noise": Array("float32", (1,), "numpy.ndarray", b"noise"),
    "other kind": Array("float32", (1,), "somebody.else", b"1234"),
    "too short": Array("float32", (2,), "numpy.ndarray", Array(np.zeros(2, np.float32)).data[:-1]),
}


# -- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", flower_internals._NAMES)
def test_no_name_is_missing_in_a_tested_version(part):
    assert missing_names(part) == []
    assert fallback(part) == ""


@pytest.mark.parametrize(
    ("part", "owner", "name", "missing"),
    [
        ("engine", Run, "create_empty", "flwr.supercore.run:Run.create_empty"),
        ("engine", TaskIdentity, "_run_id", "flwr.supercore.task_identity:TaskIdentity._run_id"),
        ("submission", constant, "FAB_EXCLUDE_PATTERNS", "flwr.common.constant:FAB_EXCLUDE_PATTERNS"),
        ("supernode", run_clientapp, "install_from_fab", "flwr.supernode.runtime.run_clientapp:install_from_fab"),
        (
            "supernode",
            InMemoryNodeState,
            "_store_error_replies",
            "flwr.supernode.nodestate.in_memory_nodestate:InMemoryNodeState._store_error_replies",
        ),
    ],
)
def test_a_name_that_a_version_lacks_is_named_in_one_line(part, owner, name, missing, monkeypatch):
    monkeypatch.delattr(owner, name)
    assert missing_names(part) == [missing]
    line = fallback(part)
    assert line.startswith(f"flwr {version('flwr')} lacks {missing}: ")
    assert "longer" in line or "again" in line, "what is slower"
    assert "\n" not in line


def test_a_parameter_that_a_version_lacks_is_named(monkeypatch):
    monkeypatch.setattr(inflatable_utils, "pull_objects", lambda: None)
    name = "flwr.supercore.inflatable.inflatable_utils:pull_objects(initial_backoff)"
    assert missing_names("server") == [name]
    assert missing_names("supernode") == [name]


def test_attributes_of_instances_that_a_version_lacks_are_named(monkeypatch):
    state = "flwr.supernode.nodestate.in_memory_nodestate"
    for kind in ("flwr.app.Message", "flwr.app.RecordDict", "flwr.common.Metadata", f"{state}.MessageEntry"):
        monkeypatch.setattr(kind, Bare)
    assert missing_names("engine") == [
        "flwr.app:Message(_metadata)",
        "flwr.app:Message(_content)",
        "flwr.app:RecordDict(_data)",
        "flwr.common:Metadata(_message_id)",
    ]
    assert missing_names("supernode") == [f"{state}:MessageEntry(message)", f"{state}:MessageEntry(is_retrieved)"]


def test_the_probe_knows_every_module_of_flower_that_is_used():
    source = ast.parse(Path(flower_internals.__file__).read_text(encoding="utf-8"))
    constants = [str(node.value) for node in ast.walk(source) if isinstance(node, ast.Constant)]
    used = [value for value in constants if re.match(r"flwr\.", value)]
    probed = [name for names in flower_internals._NAMES.values() for name in names]
    # Without colors in the log nothing is slower; with gRPC no request is repeated.
    unprobed = {name for name in used if not any(known.startswith(name) for known in probed)}
    assert unprobed == {flower_internals._CONSOLE, flower_internals._FLEET}


@pytest.mark.usefixtures("flower_identity")
def test_the_engine_does_not_start_without_a_name(monkeypatch):
    monkeypatch.delattr(Run, "create_empty")
    line = "create_empty, which work in this process needs: install .* or simulate with `flwr run`"
    with pytest.raises(ValueError, match=line):
        run_inprocess(ServerApp(), ClientApp(), num_nodes=1)
    with pytest.raises(ValueError, match="create_empty, which simulated time needs"):
        ClockGrid(None, None, None)
    monkeypatch.delattr("flwr.simulation.run_simulation")
    with pytest.raises(ValueError, match="create_empty, which a simulation needs"):
        fallback("engine")


# -- messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ArithmeticError])
def test_the_identity_of_the_process_is_set_and_given_back(error, monkeypatch):
    for number, name in enumerate(IDENTITY):
        monkeypatch.setattr(TaskIdentity, name, 100 + number)

    def inside():
        with flower_identity(run_id=7, node_id=8):
            assert [getattr(TaskIdentity, name) for name in IDENTITY] == [1, 7, 8]
            metadata = sent_message().metadata
            assert (metadata.run_id, metadata.src_node_id) == (7, 8)
            if error:
                raise error

    if error:
        with pytest.raises(error):
            inside()
    else:
        inside()
    assert [getattr(TaskIdentity, name) for name in IDENTITY] == [100, 101, 102]


def sent_message(content=None):
    message = Message(content or RecordDict(), dst_node_id=2, message_type="train")
    set_message_id(message, "m")
    return message


@pytest.mark.usefixtures("flower_identity")
def test_a_message_has_the_id_that_it_was_given_and_its_reply_names_it():
    message = sent_message()
    assert message.metadata.message_id == "m"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "m"


@pytest.mark.usefixtures("flower_identity")
def test_a_received_copy_is_equal_and_shares_nothing_that_can_change():
    arrays = ArrayRecord({"w": Array(np.array([1.0, 2.0]))})
    message = sent_message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"list": [1.0]})}))
    received = flower_internals.received_copy(message)
    assert received.metadata == message.metadata
    assert received.content == message.content
    assert received.content["arrays"]["w"].data is arrays["w"].data
    received.content["arrays"]["w"].data = b""
    received.content["metrics"]["list"].append(2.0)
    received.content["more"] = MetricRecord({})
    set_message_id(received, "other")
    assert len(arrays["w"].data) > 0
    assert message.content["metrics"]["list"] == [1.0]
    assert list(message.content) == ["arrays", "metrics"]
    assert message.metadata.message_id == "m"


@pytest.mark.usefixtures("flower_identity")
def test_the_reply_of_an_app_that_raised_has_the_reason():
    reply = flower_internals.error_reply(sent_message(), "the reason")
    assert isinstance(reply.error, Error)
    assert reply.error.reason == "the reason"
    assert reply.metadata.reply_to_message_id == "m"


def test_the_numbers_of_errors_are_flowers():
    assert (wire.APP_RAISED, wire.MESSAGE_UNAVAILABLE, wire.REPLY_UNAVAILABLE, wire.NODE_UNAVAILABLE) == (
        constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
        constant.ErrorCode.MESSAGE_UNAVAILABLE,
        constant.ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        constant.ErrorCode.NODE_UNAVAILABLE,
    )


def test_an_empty_run_has_its_id():
    assert flower_internals.empty_run(7).run_id == 7


# -- arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARRAYS)
def test_bytes_and_arrays_are_flowers(name):
    usual = Array(ARRAYS[name])
    with direct_arrays():
        direct, decoded = Array(ARRAYS[name]), usual.numpy()
    assert type(direct) is Array
    assert direct == usual
    assert direct.object_id == usual.object_id
    expected = usual.numpy()
    assert (decoded.dtype, decoded.shape, decoded.flags.f_contiguous) == (
        expected.dtype,
        expected.shape,
        expected.flags.f_contiguous,
    )
    assert decoded.tobytes() == expected.tobytes()
    assert decoded.flags.writeable


@pytest.mark.parametrize("name", BAD)
def test_errors_are_flowers(name):
    with pytest.raises(Exception) as usual:  # noqa: PT011 - whatever Flower raises
        BAD[name].numpy()
    with direct_arrays(), pytest.raises(type(usual.value)) as direct:
        BAD[name].numpy()
    assert str(direct.value) == str(usual.value)


def test_objects_are_refused():
    with direct_arrays(), pytest.raises(ValueError, match="allow_pickle=False"):
        Array(np.array([object()]))


def test_the_methods_are_given_back():
    before = dict(Array.__dict__)
    with pytest.raises(ArithmeticError), direct_arrays():
        raise ArithmeticError
    assert dict(Array.__dict__) == before


def test_a_node_that_writes_into_what_it_received_changes_nothing_elsewhere():
    """Each node overwrites the arrays that it received, and after its reply those that it sent."""
    app, server, seen, own = ClientApp(), ServerApp(), [], []

    @app.train()
    def train(message, context):
        for array in own:
            array[:] = -1  # the arrays that the node before has sent
        received = message.content["arrays"]["w"].numpy()
        seen.append(received.tolist())
        received[:] = 99
        message.content["arrays"]["w"].data = b""
        message.content["metrics"]["list"].append(3.0)
        own.append(np.full(2, len(seen), np.float32))
        content = {"arrays": ArrayRecord({"w": Array(own[-1])}), "metrics": MetricRecord({"n": 1})}
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def main(grid, context):
        content = RecordDict(
            {"arrays": ArrayRecord({"w": Array(np.array([1.0, 2.0]))}), "metrics": MetricRecord({"list": [1.0, 2.0]})}
        )
        nodes = grid.get_node_ids()
        replies = list(grid.send_and_receive([Message(content, dst_node_id=n, message_type="train") for n in nodes]))
        assert [reply.content["arrays"]["w"].numpy().tolist() for reply in replies] == [[1, 1], [2, 2], [3, 3]]
        assert content["arrays"]["w"].numpy().tolist() == [1.0, 2.0]
        assert content["metrics"]["list"] == [1.0, 2.0]

    run_inprocess(server, app, num_nodes=3)
    assert seen == [[1.0, 2.0]] * 3


# -- commands ---------------------------------------------------------------------------------------------------


def test_an_app_is_built_of_its_sources():
    include, exclude = flower_internals.app_patterns()
    assert {"**/*.py", "**/*.toml"} <= set(include)
    assert any("venv" in pattern for pattern in exclude)


def test_the_supernode_pauses_through_its_module_time(monkeypatch):
    assert start_client_internal.time is time
    assert f"time.sleep({POLL_INTERVAL:g})" in inspect.getsource(start_client_internal.start_client_internal)
    clock, pauses = [100.0], []

    def sleep(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(start_client_internal, "time", time)  # is given back after the test
    flower_internals.poll_every(2.5)
    for usual in (*[POLL_INTERVAL] * 90, 0.5, 0.01):
        start_client_internal.time.sleep(usual)
    assert pauses[:5] == [0.25] * 5, "a tenth, until a quarter of the wait is more"
    assert pauses[5:90] == sorted(pauses[5:90])
    assert pauses[29] == 2.5
    assert pauses[89:] == [POLL_INTERVAL, 0.25, 0.01], "an idle node, the next wait, and what is shorter anyway"
    assert start_client_internal.time.monotonic is time.monotonic


def test_the_superexec_pauses_through_its_module_time(monkeypatch):
    assert "time.sleep(" in inspect.getsource(run_superexec.run_superexec)
    monkeypatch.setattr(run_superexec, "time", time)
    pauses = []
    flower_internals.wait_for_work(pauses.append)
    run_superexec.time.sleep(1.0)
    assert pauses == [1.0]


def test_parts_that_are_not_there_yet_are_asked_for_again_soon(monkeypatch):
    functions = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    for function in functions:
        monkeypatch.setattr(function, "__kwdefaults__", dict(function.__kwdefaults__))
    flower_internals.ask_again_after(0.001)
    tries = []

    def pull(object_id):
        tries.append(object_id)
        if len(tries) < 4:
            raise inflatable_utils.ObjectUnavailableError(object_id)
        return b"content"

    assert inflatable_utils.pull_objects(["a"], pull) == {"a": b"content"}
    assert [function.__kwdefaults__["initial_backoff"] for function in functions] == [0.001] * 2


@pytest.mark.parametrize(("answers", "asked"), [([500, 500, 200], 3), ([500] * 9, 5), ([404, 200], 1)])
def test_a_request_that_the_superlink_answers_with_an_error_is_repeated(answers, asked, monkeypatch):
    if not flower_internals._exists(flower_internals._FLEET):
        pytest.skip("this Flower's nodes speak gRPC alone")
    import httpx

    module = flower_internals.import_module(flower_internals._FLEET.partition(":")[0])
    monkeypatch.setattr(module, "make_simple_http_retry_invoker", module.make_simple_http_retry_invoker)
    pauses, request = [], httpx.Request("POST", "http://superlink/v1/fleet/push-messages")
    monkeypatch.setattr(flower_internals, "time", Bare(sleep=pauses.append))
    given = iter(answers)

    def push():
        response = httpx.Response(next(given), request=request)
        response.raise_for_status()
        return response

    flower_internals.ask_again_after_errors()
    invoker = module.make_simple_http_retry_invoker()
    if answers[asked - 1] == 200:
        assert invoker.invoke(push).status_code == 200
    else:
        with pytest.raises(httpx.HTTPStatusError, match=str(answers[asked - 1])):
            invoker.invoke(push)
    assert pauses == [1, 2, 4, 8][: asked - 1]
    assert list(given) == answers[asked:]


def test_an_app_that_is_installed_is_not_unpacked_again(monkeypatch, tmp_path):
    unpacked, on_disk = [], set()
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr("fedapps.base.atomic.synced", lambda path: on_disk.add(path.name))

    def unpack(fab_file, install_dir, skip_prompt):
        unpacked.append(fab_file)
        folder = install_dir / "apps" / f"who.app.1.0.0.{hashlib.sha256(fab_file).hexdigest()[:8]}"
        folder.mkdir(parents=True)
        (folder / "first.py").touch()
        if unpacked == [b"app"]:
            raise KeyboardInterrupt  # between two files
        (folder / "last.py").touch()
        on_disk.clear()
        return folder

    monkeypatch.setattr(run_clientapp, "install_from_fab", unpack)
    flower_internals.reuse_installed_apps()
    install = partial(run_clientapp.install_from_fab, skip_prompt=True)
    with pytest.raises(KeyboardInterrupt):
        install(b"app")
    folder = get_project_dir("who/app", "1.0.0", hashlib.sha256(b"app").hexdigest())
    assert not folder.exists(), "no half of an app"
    assert install(b"app") == install(b"app") == folder
    assert (folder / "last.py").exists()
    assert on_disk == {"first.py", "last.py", folder.name}, "a power failure leaves none of it, or all"
    assert install(b"another app") != folder
    assert unpacked == [b"app", b"app", b"another app"]
    assert sorted(path.name[:7] for path in (tmp_path / "apps").iterdir()) == ["who.app"] * 2


def test_the_code_of_the_last_apps_is_kept(tmp_path):
    for number in range(6):
        (tmp_path / f"who.app.{number}.hash").mkdir()
        flower_internals._write_imported(tmp_path / f"who.app.{number}.hash", set())
        os.utime(tmp_path / f".who.app.{number}.hash.imported", (number, number))
    flower_internals._write_imported(tmp_path / "who.app.2.hash", set())
    apps = [f"who.app.{number}.hash" for number in (2, 3, 4, 5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*apps, *(f".{app}.imported" for app in apps)])


@pytest.fixture
def node_state(monkeypatch):
    """The state of a SuperNode, and a message that it has received and whose task a worker has started."""
    name = "get_messages_legacy" if hasattr(InMemoryNodeState, "get_messages_legacy") else "get_messages"
    monkeypatch.setattr(InMemoryNodeState, name, getattr(InMemoryNodeState, name))  # is given back after the test
    monkeypatch.setattr(InMemoryNodeState, "store_message", InMemoryNodeState.store_message)
    flower_internals.answer_lost_messages()
    flower_internals.call_on_work(lambda: work.append(len(state.msg_store)))
    work = []
    state = InMemoryNodeState(ObjectStoreFactory(":memory:").store())
    state.set_node_id(2)
    with flower_identity():
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(3, np.float32))})})
        message = Message(content, dst_node_id=2, message_type="train")
        task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="0" * 64)
        start_client_internal._insert_message(message, state, state.object_store)
    assert state.claim_task(task)
    assert state.activate_task(task)
    assert work == [1], "a message for a worker"
    yield partial(getattr(state, name), run_ids=[1]), state, message, task
    assert work == [1], "its reply is none"


def fall_silent(state, task):
    state.task_token_store[task].active_until -= timedelta(hours=1)


def fail(state, task):
    assert state.finish_task(task, SubStatus.FAILED, "killed")


@pytest.mark.parametrize("end", [fall_silent, fail])
@pytest.mark.parametrize("fetched", [False, True])
def test_a_supernode_replies_to_a_message_whose_worker_leaves_no_reply(node_state, end, fetched):
    get_messages, state, message, task = node_state
    assert not get_messages(is_reply=True), "the worker still works"
    if fetched:
        (of_worker,) = get_messages(is_reply=False, limit=1)
        assert of_worker == message
        state.record_message_processing_start(message.metadata.message_id)
    end(state, task)
    (reply,) = get_messages(is_reply=True)
    assert reply.error.reason == "ClientApp stopped responding."
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert state.get_message_processing_duration(message.metadata.message_id) >= 0
    assert message.metadata.message_id not in state.object_store
    assert not get_messages(is_reply=True)
    assert not get_messages(is_reply=False), "no other worker fetches it"


@pytest.mark.parametrize("end", [fall_silent, fail])
@pytest.mark.parametrize("uploaded", [False, True])
def test_a_supernode_sends_complete_replies_alone(node_state, end, uploaded):
    get_messages, state, message, task = node_state
    get_messages(is_reply=False, limit=1)
    state.record_message_processing_start(message.metadata.message_id)
    with flower_identity(node_id=2):
        reply = Message(RecordDict({"metrics": MetricRecord({"n": 1})}), reply_to=message)
    set_message_id(reply, reply.object_id)
    session = state.start_session(1)
    _, missing = state.store_message_and_object_tree(reply, get_object_tree(reply), session)
    objects = get_all_nested_objects(reply)
    assert set(missing) == set(objects)
    assert not get_messages(is_reply=True)
    for object_id in missing if uploaded else missing[:1]:
        assert state.store_object(1, session, object_id, objects[object_id].deflate())
    if not uploaded:
        assert not get_messages(is_reply=True)
    end(state, task)
    (sent,) = get_messages(is_reply=True)
    assert sent.has_error() != uploaded
    assert (sent.metadata.message_id == reply.metadata.message_id) == uploaded
    assert sent.metadata.reply_to_message_id == message.metadata.message_id


def test_the_supernode_and_its_superexec_start_commands_by_name():
    assert '["flower-superexec"]' in inspect.getsource(start_client_internal.start_client_internal)
    assert TASK_TYPE_TO_COMMAND[TaskType.CLIENT_APP] == "flwr-clientapp"
    assert "subprocess.Popen(" in inspect.getsource(SubprocessExecutor.launch)


# -- all other modules ------------------------------------------------------------------------------------------

PROJECT = Path(__file__).parents[2]
PUBLIC = re.compile(r"flwr\.(app|client|clientapp(\..+)?|common|serverapp(\..+)?|simulation)")


@pytest.mark.parametrize("folder", ["strategies", "clients", "tasks", "sim", "fedapps"])
def test_all_other_modules_import_what_is_public(folder):
    imported = {
        (path.name, module, name.name)
        for path in (PROJECT / folder).rglob("*.py")
        if path.name != "flower_internals.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
        if re.match(r"flwr\b", module := node.module or "" if isinstance(node, ast.ImportFrom) else name.name)
    }
    assert not {(path, *names) for path, *names in imported if not PUBLIC.fullmatch(names[0]) or names[1][0] == "_"}
