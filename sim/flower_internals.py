"""What this project uses of Flower beyond its public interface: private names, its own modules, replaced methods.

Another version of Flower may change them. No other module depends on them, :func:`missing_names` says which of them a
version lacks, and ``tests/conformance/test_flower_internals.py`` checks each with every tested version.
"""

import atexit
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from logging import WARNING
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedapps.strategies import arrays, wire
from flwr.app import Array, Error, Message, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from fedapps.base.atomic import remove_folder, remove_leftovers, sync_all, temporary_name, write_whole

Thing = TypeVar("Thing")
#: What needs names that another Flower may lack: the engines ``inline`` and ``ray``, Flower's own simulation engine in
#: their place, the server of a run, ``flwr run`` from a copy of the app's files, and the command ``fedapps supernode``.
Part = Literal["engine", "simulation", "server", "submission", "supernode"]
_IDENTITY = "flwr.supercore.task_identity:TaskIdentity"
_EMPTY_RUN = "flwr.supercore.run:Run.create_empty"
_ENCODE, _DECODE = "flwr.common.serde:recorddict_to_proto", "flwr.common.serde:recorddict_from_proto"
_PARSE = "flwr.proto.recorddict_pb2:RecordDict.FromString"
_CONSTANT = "flwr.common.constant"
_PARSE_CONFIG = "flwr.common.config:parse_config_args"
_CONSOLE = "flwr.common.logger:update_console_handler"
_STATE = "flwr.supernode.nodestate.in_memory_nodestate"
_INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
_STORE = "flwr.supercore.object_store:ObjectStore"
_SUPERNODE, _SUPEREXEC = "flwr.supernode.start_client_internal", "flwr.supercore.superexec.run_superexec"
_WORKER = "flwr.supernode.runtime.run_clientapp"
_FLEET = "flwr.supernode.fleet_http_connection:make_simple_http_retry_invoker"
_UTILS = "flwr.supercore.utils"
_PULLS = tuple(
    f"{_INFLATABLE}:{name}(initial_backoff)" for name in ("pull_objects", "pull_and_inflate_object_from_tree")
)
#: All names in the form ``module:name``. In parentheses, a parameter that a function must have, or an attribute of
#: instances that the code of a class must mention.
_NAMES: dict[Part, tuple[str, ...]] = {
    "engine": (
        *(f"{_IDENTITY}.{name}" for name in ("_task_id", "_run_id", "_node_id")),
        *(_EMPTY_RUN, _ENCODE, _DECODE, _PARSE),
        *("flwr.app:Array.numpy", "flwr.app:Array.from_numpy_ndarray"),
        *("flwr.app:Message(_metadata)", "flwr.app:Message(_content)", "flwr.app:RecordDict(_data)"),
        "flwr.common:Metadata(_message_id)",
    ),
    "simulation": ("flwr.simulation:run_simulation",),  # is published, but deprecated
    "server": _PULLS,
    "submission": (f"{_CONSTANT}:FAB_INCLUDE_PATTERNS", f"{_CONSTANT}:FAB_EXCLUDE_PATTERNS"),
    "supernode": (
        *(f"{_SUPERNODE}:time.sleep", f"{_SUPEREXEC}:time.sleep", *_PULLS, _PARSE_CONFIG),
        *(f"{_WORKER}:install_from_fab", f"{_UTILS}:get_flwr_home", f"{_STATE}:CLIENT_APP_CRASHED_ERROR"),
        *(f"{_CONSTANT}:{name}" for name in ("APP_DIR", "FAB_HASH_TRUNCATION")),
        *(f"{_CONSTANT}:Status.{name}" for name in ("PENDING", "STARTING", "RUNNING")),
        *(f"{_STORE}.{name}" for name in ("get", "get_object_tree", "delete")),
        *(f"{_STATE}:MessageEntry({name})" for name in ("message", "is_retrieved")),
        *(
            f"{_STATE}:InMemoryNodeState({name})"
            for name in ("msg_store", "lock_msg_store", "time_store", "object_store")
        ),
        *(
            f"{_STATE}:InMemoryNodeState.{name}"
            for name in (
                *("store_message", "get_messages", "get_tasks", "delete_messages"),
                *("record_message_processing_start", "_store_error_replies"),
            )
        ),
    ),
}
#: What works in place of a part, and what is slower then.
_INSTEAD: dict[Part, str] = {
    "engine": "Flower's own simulation engine runs the nodes, and takes longer to start and for each message",
    "server": "Flower waits 1 s before it asks again for a part of a message that has not arrived yet",
    "submission": "flwr run gets the app's own folder, and takes longer to look at every file in it",
    "supernode": "Flower's own flower-supernode runs, whose workers import torch again for every message",
}


def missing_names(part: Part) -> list[str]:
    """The private names that a part of this project needs and the installed version of Flower lacks.

    Parameters
    ----------
    part : "engine", "simulation", "server", "submission" or "supernode"

    Returns
    -------
    list of str
        Names in the form ``module:name``; empty if the part can work.
    """
    return [name for name in _NAMES[part] if not _exists(name)]


def fallback(part: Part) -> str:
    """One line that says what the installed version of Flower lacks for a part and what works in its place, or "".

    Raises ``ValueError`` as :func:`check_names` if nothing does.
    """
    missing = missing_names(part)
    if not missing:
        return ""
    if part == "engine" and missing_names("simulation"):
        check_names("a simulation")
    return f"{_lacks(missing)}: {_INSTEAD[part]}"


def check_names(user: str) -> None:
    """Check that the installed version of Flower has the private names that the engines need.

    Parameters
    ----------
    user : str
        What needs them, for the message.

    Raises
    ------
    ValueError
        Names are missing; the message has one line.
    """
    if missing := missing_names("engine"):
        raise ValueError(
            f"{_lacks(missing)}, which {user} needs: install another version of flwr (constraints.txt names the tested "
            "one), or simulate with `flwr run`"
        )


def _lacks(missing: list[str]) -> str:
    return f"flwr {version('flwr')} lacks {', '.join(missing)}"


def _exists(name: str) -> bool:
    path, _, inner = name.removesuffix(")").partition("(")
    try:
        thing = _named(path)
    except (ImportError, AttributeError):
        return False
    if not inner:
        return True
    if not isinstance(thing, type):
        return inner in (thing.__kwdefaults__ or {})
    members = [member for kind in thing.__mro__ for member in vars(kind).values()]
    codes = [getattr(getattr(member, "fget", member), "__code__", None) for member in members]
    return any(inner in (*code.co_names, *code.co_consts) for code in codes if code)


def _named(name: str) -> Any:
    """What a name in the form ``module:name`` stands for."""
    module, _, path = name.partition(":")
    thing: Any = import_module(module)
    for attribute in path.split("."):
        thing = getattr(thing, attribute)
    return thing


@contextmanager
def flower_identity(run_id: int = 1, node_id: int = 1) -> Iterator[None]:
    """Set the process identity with which Flower stamps every message, for code outside a Flower process.

    Raises ``ValueError`` as :func:`check_names`.
    """
    check_names("work in this process")
    identity = _named(_IDENTITY)
    before = {name: getattr(identity, name) for name in ("_task_id", "_run_id", "_node_id")}
    identity._task_id, identity._run_id, identity._node_id = 1, run_id, node_id
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(identity, name, value)


def empty_run(run_id: int) -> Any:
    """A run of Flower of which only the id is known."""
    return _named(_EMPTY_RUN)(run_id)


def simulates_nodes(grid: object) -> bool:
    """Whether a grid is that of Flower's simulation engine, which is in another module in each version of Flower."""
    return type(grid).__name__ == "InMemoryGrid"


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink does when it is pushed."""
    message.metadata.__dict__["_message_id"] = message_id


def app_patterns() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The patterns of the files that Flower takes into an app, and of those that it leaves out."""
    include, exclude = map(_named, _NAMES["submission"])
    return include, exclude


def color_log(colored: bool) -> None:
    """Let Flower's log have colors or none, where its version can."""
    if _exists(_CONSOLE):
        _named(_CONSOLE)(colored=colored)


def parse_config_args(config: list[str]) -> dict[str, Any] | None:
    """The values of ``key=value`` pairs, as Flower's commands read them; ``None`` where a version hides its reader.

    The first call imports ``requests``.
    """
    values: dict[str, Any] | None = _named(_PARSE_CONFIG)(config) if _exists(_PARSE_CONFIG) else None
    return values


def error_reply(message: Message, reason: str) -> Message:
    """The reply that Flower sends for a ClientApp that raised an exception."""
    return Message(Error(wire.APP_RAISED, reason), reply_to=message)


def unavailable_reply(message: Message, reason: str) -> Message:
    """The reply of a SuperLink to a message whose node has gone offline."""
    return Message(Error(wire.NODE_UNAVAILABLE, reason), reply_to=message)


def received_copy(message: Message) -> Message:
    """A copy of a message, as over a network. The bytes of arrays are shared, because nobody can change them."""
    received, content = _shallow(message), message.content.copy()
    records = content.__dict__["_data"]  # the dictionary inside; its own methods check types again
    for name, record in message.content.items():
        records[name] = copied = record.copy()
        values = copied.__dict__["_data"]
        for key, value in record.items():
            if isinstance(value, Array):
                values[key] = _shallow(value)
            elif isinstance(value, list):  # all other values are immutable
                values[key] = value.copy()
    received.__dict__ |= {"_metadata": _shallow(message.metadata), "_content": content}
    return received


def _shallow(thing: Thing) -> Thing:
    """A shallow copy, in less time than ``copy.copy`` takes."""
    copied = object.__new__(type(thing))
    copied.__dict__ |= thing.__dict__
    return copied


@contextmanager
def direct_arrays() -> Iterator[None]:
    """Until the context ends, encode Flower's arrays with one copy of the values, and decode them with one.

    ``flwr.app.Array`` encodes with ``np.save`` and decodes with ``np.load``, which copy two or three times and parse a
    header each time. Apps that follow Flower's template call them in every message. Here both take the way of
    :mod:`fedapps.strategies.arrays`. Bytes, arrays and errors are the same.
    """
    decode, encode = Array.numpy, Array.__dict__["from_numpy_ndarray"]

    def numpy(array: Array) -> NDArray[Any]:
        try:
            view = arrays.decode(array)
        except ValueError:
            return decode(array)  # raises Flower's error
        return view.copy(order="K")  # the app may write into it

    def from_numpy_ndarray(cls: type[Array], ndarray: NDArray[Any]) -> Array:
        if arrays.is_plain(ndarray):
            return arrays.encode(ndarray)
        array: Array = encode.__func__(cls, ndarray)
        return array

    Array.numpy = numpy  # type: ignore[method-assign, assignment]
    Array.from_numpy_ndarray = classmethod(from_numpy_ndarray)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Array.numpy = decode  # type: ignore[method-assign]
        Array.from_numpy_ndarray = encode  # type: ignore[method-assign]


def poll_every(seconds: float) -> None:
    """Let the SuperNode of this process pause at most so long between two polls, for a message or for a reply.

    It polls more often soon after it has begun to wait: each pause is a quarter of the wait so far, and at least a
    tenth of ``seconds``. An idle node polls less often: each pause is at least a fiftieth of the wait, as far as
    Flower's pause is not shorter.
    """
    usual, begin = 0.0, 0.0

    def pause(seconds_of_flower: float) -> None:
        nonlocal usual, begin
        now = time.monotonic()
        if seconds_of_flower != usual:  # 3 s between messages, and 0.5 s before a reply
            usual, begin = seconds_of_flower, now
        waited = now - begin
        time.sleep(min(seconds_of_flower, max(seconds / 10, min(seconds, waited / 4), waited / 50)))

    _pause_with(pause, _SUPERNODE)


def wait_for_work(wait: Callable[[float], object]) -> None:
    """Let the SuperExec of this process call ``wait`` between two polls for work, with Flower's pause in s."""
    _pause_with(wait, _SUPEREXEC)


def call_on_work(call: Callable[[], object]) -> None:
    """Let the SuperNode of this process call a function when it has a message for a worker."""
    kind = import_module(_STATE).InMemoryNodeState
    store = kind.store_message

    def store_and_call(state: Any, message: Message) -> str | None:
        stored: str | None = store(state, message)
        if not message.metadata.reply_to_message_id:
            call()
        return stored

    kind.store_message = store_and_call


def _pause_with(pause: Callable[[float], object], module: str) -> None:
    import_module(module).time = _Time(pause)  # type: ignore[attr-defined]


class _Time:
    """The module ``time`` with another ``sleep``."""

    def __init__(self, sleep: Callable[[float], object]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def ask_again_after(seconds: float = 0.05) -> None:
    """Let this process ask for a part of a message that is not there yet again after this time, and ever less often.

    Flower's first pause is 1 s. A SuperNode often receives a message while the server sends its arrays, and a worker
    starts while its SuperNode receives them.
    """
    if line := fallback("server"):
        log(WARNING, "%s", line)
        return
    for name in _PULLS:
        _named(name.partition("(")[0]).__kwdefaults__["initial_backoff"] = seconds


#: Seconds before each further try of a request that failed in the SuperLink.
_PAUSES = (1, 2, 4, 8)


def ask_again_after_errors() -> None:
    """Let the SuperNode of this process repeat a request that its SuperLink answers with the HTTP status 500.

    Flower repeats only requests that have not reached a SuperLink, and deletes a reply that it cannot send. A SuperLink
    whose database is locked by the requests of other nodes answers once with 500. gRPC has no such status.
    """
    if not _exists(_FLEET):
        return
    new = _named(_FLEET)

    def patient() -> Any:
        invoker = new()
        once = invoker.invoke

        def invoke(target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            for pause in _PAUSES:
                try:
                    return once(target, *arguments, **named)
                except Exception as error:
                    if getattr(getattr(error, "response", None), "status_code", None) != 500:
                        raise
                    log(WARNING, "the SuperLink answers with its status 500: asked again in %s s", pause)
                    time.sleep(pause)
            return once(target, *arguments, **named)

        invoker.invoke = invoke
        return invoker

    module, _, name = _FLEET.partition(":")
    setattr(import_module(module), name, patient)


def reuse_installed_apps() -> None:
    """Let workers in forks of this process load an app from where an earlier worker has installed it.

    Flower unpacks the app for every message, and checks the hash of each file, before it finds it installed. A worker
    that is killed while it installs, or a power failure soon after, leaves half an app, which all later workers would
    load; here, it leaves a folder that no worker reads. At its end, a worker writes which modules of the app it has
    imported, for :func:`last_app`.
    """
    module: Any = import_module(_WORKER)
    install, home = module.install_from_fab, import_module(_UTILS).get_flwr_home
    constant = import_module(_CONSTANT)

    def installed(fab_file: bytes, **options: Any) -> Path:
        folder = unpacked(fab_file, **options)
        _forget_other_apps(folder)
        atexit.register(_write_imported, folder, set(sys.modules))
        return folder

    def unpacked(fab_file: bytes, **options: Any) -> Path:
        digest = hashlib.sha256(fab_file).hexdigest()[: constant.FAB_HASH_TRUNCATION]
        apps: Path = home() / constant.APP_DIR
        if known := next(apps.glob(f"[!.]*.{digest}"), None):
            return known
        folder = temporary_name(apps / "app")  # in apps, where leftovers are removed
        try:
            whole: Path = install(fab_file, install_dir=folder, **options)
            sync_all(whole)
            with suppress(OSError):  # another worker was faster
                whole.rename(apps / whole.name)
            return apps / whole.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    module.install_from_fab = installed


_IMPORTED = ".imported"  # .FOLDER.imported beside the folder of an app
_KEPT_APPS = 4


def _write_imported(folder: Path, before: Set[str]) -> None:
    """Write the modules of the app in ``folder`` that its processes have imported, in their order.

    Those in ``before``, which this process had when it began, are written already or not of the app.
    """
    record = folder.with_name(f".{folder.name}{_IMPORTED}")
    names: list[str] = []
    with suppress(FileNotFoundError, ValueError):  # ValueError: a power failure has left it empty
        names = json.loads(record.read_bytes())
    new = [name for name in sys.modules if name not in before and _file(sys.modules[name]).startswith(f"{folder}/")]
    write_whole(record, json.dumps(list(dict.fromkeys(names + new))).encode())
    _remove_old_apps(folder.parent)


def _remove_old_apps(apps: Path) -> None:
    """Remove the code of all but the last apps that this node used; a run that has it still brings it again."""
    remove_leftovers(apps)
    with suppress(FileNotFoundError):  # another worker was faster
        for record in sorted(apps.glob(f".*{_IMPORTED}"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT_APPS]:
            remove_folder(record.with_name(record.name[1 : -len(_IMPORTED)]))
            record.unlink()


def last_app() -> tuple[Path, Callable[[], None]] | None:
    """The folder of the app that was used last on this node, and a function that imports its modules so far."""
    records = (import_module(_UTILS).get_flwr_home() / _named(f"{_CONSTANT}:APP_DIR")).glob(f".*{_IMPORTED}")
    if not (record := max(records, key=lambda path: path.stat().st_mtime_ns, default=None)):
        return None
    folder = record.with_name(record.name[1 : -len(_IMPORTED)])
    return folder, partial(_import_app, folder, record)


def _import_app(folder: Path, record: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    for name in json.loads(record.read_bytes()):
        import_module(name)


def _forget_other_apps(folder: Path) -> None:
    """Let this process import the app in ``folder``, though it has imported one in a folder beside it."""
    if not any(Path(path).parent == folder.parent and path != str(folder) for path in sys.path):
        return
    others = {
        name.partition(".")[0]
        for name, module in sys.modules.items()
        if _file(module).startswith(f"{folder.parent}/") and not _file(module).startswith(f"{folder}/")
    }
    for name in [name for name in sys.modules if name.partition(".")[0] in others]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path == str(folder) or Path(path).parent != folder.parent]


def _file(module: Any) -> str:
    return str(getattr(module, "__dict__", {}).get("__file__") or "")  # without what modules compute for such a name


def encode_records(records: RecordDict) -> bytes:
    """Records as bytes; equal records have equal bytes."""
    return bytes(_named(_ENCODE)(records).SerializeToString(deterministic=True))


def decode_records(encoded: bytes) -> RecordDict:
    """The records that :func:`encode_records` encoded."""
    records: RecordDict = _named(_DECODE)(_named(_PARSE)(encoded))
    return records


def answer_lost_messages() -> None:
    """Let the SuperNode of this process answer every message, also one whose worker leaves no reply.

    Flower's SuperNode takes the next message after it has sent the reply to the last one. It waits for that reply
    without limit, and replies itself, with an error, only if a worker that has fetched its message sends no heartbeat
    for 60 s. In all other cases, the node would never take part again: the worker falls silent after it has started
    its task and before it fetches the message; it ends without a reply; it falls silent while it uploads the reply.
    With this function, the SuperNode replies with the same error as soon as the run has no task that waits or works,
    and it sends a reply after it has all of it.
    """
    module = import_module(_STATE)
    kind = module.InMemoryNodeState
    name = "get_messages_legacy" if hasattr(kind, "get_messages_legacy") else "get_messages"
    get_messages = getattr(kind, name)

    def get_messages_and_errors(state: Any, *, is_reply: bool | None = None, **filters: Any) -> list[Message]:
        if is_reply:
            _reply_to_lost(state, module.CLIENT_APP_CRASHED_ERROR)
        messages: list[Message] = list(get_messages(state, is_reply=is_reply, **filters))
        partial = [message for message in messages if is_reply and not _is_complete(message, state)]
        for message in partial:
            state.msg_store[message.metadata.message_id].is_retrieved = False
        return [message for message in messages if message not in partial]

    setattr(kind, name, get_messages_and_errors)


def _reply_to_lost(state: Any, error: Error) -> None:
    """Store an error as the reply to each message of a SuperNode's state for which no other reply can come."""
    status = _named(f"{_CONSTANT}:Status")
    unfinished = state.get_tasks(statuses=[status.PENDING, status.STARTING, status.RUNNING])
    open_runs = {task.run_id for task in unfinished}
    with state.lock_msg_store:
        entries = [entry for entry in state.msg_store.values() if entry.message.metadata.run_id not in open_runs]
        for entry in entries:
            message_id = entry.message.metadata.message_id
            if not _replied(entry):
                state.object_store.delete(message_id)  # no worker will fetch them
            elif not entry.is_retrieved and not _is_complete(entry.message, state):
                state.delete_messages(message_ids=[message_id])
                state.object_store.delete(message_id)
        replied = {_replied(entry) for entry in state.msg_store.values()}
        lost = [entry for entry in entries if not _replied(entry) and entry.message.metadata.message_id not in replied]
        for entry in lost:
            entry.is_retrieved = True  # Flower replies to no other
            message_id = entry.message.metadata.message_id
            log(WARNING, "No reply to message %s: its worker has ended or fallen silent", message_id)
            if message_id not in state.time_store:
                state.record_message_processing_start(message_id)
        state._store_error_replies({entry.message.metadata.run_id for entry in lost}, error)


def _replied(entry: Any) -> str:
    """The id of the message to which an entry of a SuperNode's state replies; empty if it is no reply."""
    return str(entry.message.metadata.reply_to_message_id)


def _is_complete(message: Message, state: Any) -> bool:
    """Whether the SuperNode has all objects of a message."""
    waiting = [state.object_store.get_object_tree(message.metadata.message_id)]
    while waiting:
        tree = waiting.pop()
        if state.object_store.get(tree.object_id) == b"":
            return False
        waiting += tree.children
    return True
