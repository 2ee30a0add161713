"""Commands of Flower in this process: other programs in place of those that they start, and a quick end."""

import atexit
import ctypes
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn

from fedapps.base.console import accept_all_text

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
    for entry in entry_points(group="console_scripts", name=command):
        function: Callable[[], object] = entry.load()
        return function
    raise RuntimeError(f"{command} is not installed: pip install 'fedapps[apps]'")


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
