"""The experiment matrix: results in order, progress while it runs, the first failure raised."""

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fedapps.sim.matrix import Lines, Watch, _gpu_of_each, run_chains, run_matrix

from fedapps.base.errors import RunFailedError


def square(method, seed, config):
    """Once the file that is ``awaited``, if any, is there."""
    while not Path(config.get("awaited", os.devnull)).exists():
        time.sleep(0.01)
    return seed * seed, os.getpid()


def fail_on_one(seed, folder):
    if seed == 1:
        raise ValueError("seed 1 cannot be used")
    time.sleep(0.3)
    (Path(folder) / str(seed)).touch()


def exit_at_once(seed):
    os._exit(3)


def hold_a_lock(folder):
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (Path(folder) / "held").touch()
        time.sleep(600)


@pytest.mark.subprocesses
def test_workers_end_with_a_killed_parent(tmp_path):
    matrix = f"from test_matrix import *; run_matrix([{{'folder': {str(tmp_path)!r}}}], hold_a_lock)"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen([sys.executable, "-c", matrix], env=os.environ | {"PYTHONPATH": paths})
    while not (tmp_path / "held").exists():
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # granted when the worker is gone


@pytest.mark.subprocesses
def test_results_come_in_the_order_of_the_cells_and_progress_as_it_happens(tmp_path):
    told = tmp_path / "told"
    cells = [{"method": "sfl", "seed": 2, "config": {"awaited": str(told)}}, {"method": "sfl", "seed": 5, "config": {}}]
    shown = []

    def show(line):
        shown.append(line)
        told.touch()

    results = run_matrix(cells, square, jobs=2, watch=Lines(2, show))
    assert [value for value, _ in results] == [4, 25]
    assert os.getpid() not in {pid for _, pid in results}
    assert len(shown) == 2
    assert re.fullmatch(r"\[1/2\] method sfl, seed 5: \d+ s spent, about \d+ s to go", shown[0])
    assert re.fullmatch(r"\[2/2\] method sfl, seed 2: \d+ s spent, about 0 s to go", shown[1])


@pytest.mark.subprocesses
def test_the_time_to_go_grows_with_what_is_left(monkeypatch):
    clock = iter([0.0, 10.0, 16.0, 30.0])
    monkeypatch.setattr("fedapps.sim.matrix.time", SimpleNamespace(monotonic=lambda: next(clock)))
    shown = []
    cells = [{"method": "sfl", "seed": s, "config": {}} for s in range(3)]
    run_matrix(cells, square, jobs=1, watch=Lines(3, shown.append))
    assert [line.split(": ")[1] for line in shown] == [
        "10 s spent, about 20 s to go",
        "16 s spent, about 8 s to go",
        "30 s spent, about 0 s to go",
    ]


@pytest.mark.subprocesses
def test_the_first_failure_ends_the_matrix(tmp_path):
    shown = []
    cells = [{"seed": seed, "folder": str(tmp_path)} for seed in range(1, 20)]
    with pytest.raises(ValueError, match="seed 1 cannot be used"):
        run_matrix(cells, fail_on_one, jobs=1, watch=Lines(19, shown.append))
    assert shown == []
    assert len(list(tmp_path.iterdir())) < 10


@pytest.mark.subprocesses
def test_a_process_that_dies_is_an_error():
    with pytest.raises(RunFailedError, match=r"was killed, often for lack of memory: resume with fewer .* --jobs 1"):
        run_matrix([{"seed": 1}], exit_at_once, jobs=1)


def test_no_cells_no_results():
    assert run_matrix([], square) == []


@pytest.mark.subprocesses
def test_a_chain_decides_on_its_next_cell_by_the_last_result():
    def chain(number, results):
        while number < 100:
            number, _ = yield {"method": "a", "seed": number, "config": {}}
            results.append(number)

    first, second, shown = [], [], []
    chains = [chain(2, first), chain(200, second), chain(5, second)]
    run_chains(chains, square, jobs=2, watch=Lines(6, shown.append))
    assert (first, second) == ([4, 16, 256], [25, 625])
    assert [line.partition("]")[0] for line in shown] == [f"[{number}/6" for number in range(1, 6)]


def talk(seed):
    print("from Python")
    print("to stderr", file=sys.stderr)
    os.system("echo from a child")
    if seed == 1:
        raise ValueError("seed 1 cannot be used")
    return seed


@pytest.mark.subprocesses
def test_everything_that_a_cell_prints_goes_to_its_log(tmp_path, capfd):
    log_of = lambda cell: tmp_path / "logs" / f"{cell['seed']}.log"  # noqa: E731
    assert run_matrix([{"seed": 0}], talk, log_of=log_of) == [0]
    with pytest.raises(ValueError, match="seed 1 cannot be used"):
        run_matrix([{"seed": 0}, {"seed": 1}], talk, jobs=1, log_of=log_of)
    lines = ["from Python", "from a child", "to stderr"]
    assert sorted((tmp_path / "logs" / "0.log").read_text().splitlines()) == sorted(lines * 2)
    assert sorted((tmp_path / "logs" / "1.log").read_text().splitlines()) == lines
    assert capfd.readouterr() == ("", "")


class Told(Watch):
    def __init__(self):
        self.calls = []

    def begin(self, cell):
        self.calls.append(("begin", cell["seed"]))

    def end(self, cell):
        self.calls.append(("end", cell["seed"]))

    def tick(self):
        self.calls.append("tick")


@pytest.mark.subprocesses
def test_a_watch_is_told_of_the_cells_that_run_and_of_no_others(tmp_path):
    told = Told()
    run_matrix([{"method": "a", "seed": seed, "config": {}} for seed in range(2)], square, jobs=1, watch=told)
    assert [call for call in told.calls if call != "tick"] == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
    assert "tick" in told.calls


@pytest.mark.parametrize(
    ("count", "visible", "names"),
    [(0, "", ["", "", ""]), (1, "", ["", "", ""]), (2, "", ["0", "1", "0"]), (2, "4,6", ["4", "6", "4"])],
)
def test_processes_take_turns_with_several_gpus(monkeypatch, count, visible, names):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _gpu_of_each(3) == names
