"""Commands of Flower in this process: how they start, and how the process ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from installed_commands import environment_with

from fedapps.deployment.flower_command import load_command

pytestmark = pytest.mark.subprocesses

PROGRAM = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from fedapps.deployment.flower_command import run_and_exit

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


def test_another_program_takes_the_place_of_a_command(tmp_path: Path) -> None:
    starter = """
import subprocess, sys

def main():
    for word in sys.argv[1:]:
        subprocess.Popen(["probe", word]).wait()
"""
    environment = environment_with(tmp_path / "installed", "starting", starter, ["starter = starting:main"])
    code = """
import sys
from fedapps.deployment.flower_command import run_flower

seen = []
def start(arguments):
    seen.append(arguments)
    return [sys.executable, "-c", "print('instead')"]
run_flower("starter", ["one", "two"], replace="probe", start=start)
print(seen, sys.argv)
"""
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert output.splitlines() == ["instead", "instead", "[['one'], ['two']] ['starter', 'one', 'two']"]


def test_a_command_that_is_not_installed_is_named() -> None:
    with pytest.raises(RuntimeError, match="flower-nothing is not installed"):
        load_command("flower-nothing")
