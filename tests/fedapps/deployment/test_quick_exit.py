"""A process that ends without taking apart what it has imported does all else that a process does at its end."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.subprocesses

PROGRAM = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from fedapps.deployment.quick_exit import run_and_exit

class Kept:
    def __del__(self):
        print("taken apart")

kept = Kept()
atexit.register(print, "exit function")

def main():
    def late():
        time.sleep(0.2)
        print("thread")
    threading.Thread(target=late).start()
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    ThreadPoolExecutor(1).submit(int)
    print("main")
    {end}

run_and_exit(main)
print("not reached")
"""


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("return 5", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a reason')", 1, "a reason\n"),
        ("raise ValueError('a fault')", 1, "ValueError: a fault\n"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt\n"),
    ],
)
def test_threads_and_exit_functions_end_output_is_written_and_nothing_is_taken_apart(
    end: str, status: int, error: str
) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["main", "thread", "exit function"], done.stderr
    assert done.returncode == status
    assert done.stderr.endswith(error)
    assert ("Traceback" in done.stderr) == (error not in ("", "a reason\n"))
