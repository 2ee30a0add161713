"""The end of a process that does not take apart what it has imported.

At its end, Python clears every module. After torch has been imported, this takes more than a second of processor time:
for each message, in the worker of a node.
"""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn


def run_and_exit(main: Callable[[], object]) -> NoReturn:
    """Call ``main``, and end the process with its exit status.

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
