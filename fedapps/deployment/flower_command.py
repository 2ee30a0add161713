"""Commands of Flower in this process, and in forks that have imported libraries and wait for calls.

    python -P -m fedapps.deployment.flower_command flwr-clientapp torch

A fork server imports a command once, and runs it in forks. Each line of its standard input is a JSON list with the
arguments of one call. It ends with its standard input. The libraries, and after the first call the modules of its app,
are imported in a fork of the server that serves the calls as long as the app stays the same. This fork starts with the
first call and ends after a time without calls, so that an idle node has no libraries in memory. Without libraries,
nothing is imported beforehand, and nothing stays in memory.

A fork starts like a new process, and NumPy's global generator has a new seed. It ends with its exit functions, so calls
have nothing in common but what is imported.

A call whose process is killed by a signal is repeated once. A worker of Flower that is killed, as when memory is
exhausted, thus starts its task, or fails at once if the first process has started it; the SuperNode learns of the
failure from it, and does not wait for 60 s for a heartbeat.
"""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, NoReturn

from fedapps.base.errors import accept_all_text

#: Seconds between two polls of Flower's SuperNode for messages.
POLL_INTERVAL = 3.0
_SET_NAME = 15  # PR_SET_NAME of prctl(2)


def run_flower(
    command: str, arguments: Sequence[str], replace: str, start: Callable[[list[str]], Sequence[str] | None]
) -> None:
    """Run a command of Flower in this process; processes that it starts with another command are started by ``start``.

    Parameters
    ----------
    command : str
        Name of the command, such as ``"flower-supernode"``.
    arguments : sequence of str
        Its arguments.
    replace : str
        Name of the command to replace.
    start : callable
        Receives the arguments of each process that the command would start with ``replace``; returns the command line
        to start instead, or ``None`` if it has started something itself.

    Raises
    ------
    RuntimeError
        If the command is not installed.
    """
    function = load_command(command)  # before the replacement, because modules may use subprocess.Popen as a type
    popen = subprocess.Popen

    def replaced(line: Any, *others: Any, **options: Any) -> Any:
        if isinstance(line, list) and line[:1] == [replace]:
            instead = start(line[1:])
            return None if instead is None else popen(instead, *others, **options)
        return popen(line, *others, **options)

    subprocess.Popen = replaced  # type: ignore[assignment,misc]
    sys.argv = [command, *arguments]
    name_process(command)
    function()


def load_command(command: str) -> Callable[[], object]:
    """Return the function that a console command calls.

    Raises
    ------
    RuntimeError
        If the command is not installed.
    """
    for entry in _commands().select(name=command):
        function: Callable[[], object] = entry.load()
        return function
    raise RuntimeError(f"{command} is not installed: pip install 'fedapps[apps]'")


@cache
def _commands() -> EntryPoints:
    """All console commands; the metadata of every installed package is read for them."""
    return entry_points(group="console_scripts")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage within this context, and never look again at the objects that exist at its end.

    Imports make a million objects and no garbage. Each collection meanwhile looks at all of them, which takes a fifth
    of the time to import torch and Flower. A fork shares memory with its parent only as long as neither writes to it,
    and a collection writes to every object that it looks at.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``pgrep`` show for this process; Linux keeps 15 characters."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def run_and_exit(main: Callable[[], object]) -> NoReturn:
    """Call ``main``, and end the process with its exit status, without taking apart what it has imported.

    At its end, Python clears every module. After torch has been imported, this takes more than a second of processor
    time: for each message, in the worker of a node.

    As at the usual end, an exception is shown, the other threads are waited for unless they are daemons, the exit
    functions run, and the standard outputs are written. Objects that still exist are not destroyed: a file that is open
    in a global variable keeps what it has not written.

    Parameters
    ----------
    main : callable
        Its exit status is the argument of the ``SystemExit`` that it raises; 0 if it returns, and 1 after another
        exception.
    """
    status = 0
    accept_all_text()
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


#: What workers of this project import before they train.
LIBRARIES: tuple[str, ...] = ("torch", "scipy.spatial", "PIL.Image", "safetensors.numpy")


class Fork:
    """A fork that reads calls from its standard input, as :func:`serve` does.

    It has what this process has imported and need not import it again. Create it before there are other threads.

    Parameters
    ----------
    command : str
        The command that it runs.
    serve : callable
        Called in the fork. Each line of its standard input is a JSON list with the arguments of one call; it must
        return when its standard input ends, which is at the latest when this process ends.
    """

    def __init__(self, command: str, serve: Callable[[], object]) -> None:
        self._command = command
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(reading, 0)
            os.close(reading)
            os.close(writing)
            sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # the old one may have read ahead
            run_and_exit(serve)
        os.close(reading)
        self._calls = writing

    def start(self, arguments: Sequence[str]) -> Sequence[str] | None:
        """Let it run the command; if it has ended, return the command line that does so without it."""
        try:
            os.write(self._calls, json.dumps(arguments).encode() + b"\n")
        except OSError:
            return [self._command, *arguments]
        return None

    def close(self) -> None:
        """Let it end after the calls that it has."""
        os.close(self._calls)


#: The app that is imported for the next calls, if one is known, and a function that imports what is known of it.
LastApp = Callable[[], tuple[Path, Callable[[], object]] | None]


#: Seconds without a call after which libraries and app leave memory. To import them again takes about two.
_RELEASE_AFTER = 300.0


def serve(command: str, libraries: Sequence[str], last_app: LastApp = lambda: None) -> None:
    """Serve until the standard input ends. Returns in the server and in every fork.

    Parameters
    ----------
    command : str
        Name of the command.
    libraries : sequence of str
        Modules to import; those that are not installed are skipped. Without any, each call imports what it needs.
    last_app : callable
        Asked before each call.
    """
    name_process("fork-server")
    function = load_command(command)
    signal.signal(signal.SIGCHLD, _reap)
    app: Path | None = None
    with_app: Fork | None = None
    calls = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - select does not see what a buffer has read ahead
    while True:
        if with_app and not select.select([calls], [], [], _RELEASE_AFTER)[0]:
            with_app.close()
            with_app = None
        if not (line := calls.readline()):
            return
        last = last_app()
        folder = last[0] if last else None
        if with_app and app and folder != app:
            with_app.close()
            with_app = None
        app = folder
        if libraries and not with_app:
            with_app = Fork(command, partial(_serve_with_app, command, function, libraries, last_app))
        if with_app and with_app.start(json.loads(line)) is None:
            continue
        if with_app:  # it was killed
            with_app.close()
            with_app = None
        if os.fork() == 0:
            _forget_this_package()
            _call(command, function, json.loads(line))
            return


def _serve_with_app(command: str, function: Callable[[], object], libraries: Sequence[str], last_app: LastApp) -> None:
    """Serve calls of one app; the libraries, and before each call what is known of the app, are imported first."""
    _forget_this_package()
    with quick_imports():
        for name in libraries:
            with suppress(ImportError):
                import_module(name)
    for line in sys.stdin:
        try:
            if last := last_app():
                with quick_imports():
                    last[1]()
        except Exception:  # the worker imports the module again, and tells its server why it failed
            traceback.print_exc()
        if os.fork() == 0:
            _call(command, function, json.loads(line))
            return
    with suppress(ChildProcessError):  # a worker that is left stays below its node
        while True:
            os.wait()


def _reap(*_: object) -> None:
    """Let the system forget forks that have ended; their processor time counts for this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _forget_this_package() -> None:
    """Let imports find this package anew: the app that was sent with the run may be another version of it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__.partition(".")[0]]:
        del sys.modules[name]


def _call(command: str, function: Callable[[], object], arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    if first := os.fork():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all: it is for the first
        _, status = os.waitpid(first, 0)
        if not os.WIFSIGNALED(status):
            os._exit(os.waitstatus_to_exitcode(status))
        signal.signal(signal.SIGINT, signal.default_int_handler)
    name_process(command)
    sys.argv = [command, *arguments]
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # what was there before the fork is not for its end, such as all operators of torch
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    function()


if __name__ == "__main__":
    run_and_exit(lambda: serve(sys.argv[1], sys.argv[2:]))
