"""Fleets without Flower: data of the nodes, processes and invalid arguments."""

import os
import signal
from pathlib import Path

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.lqr.world import write_world

from fedapps.base.processes import Interrupts, is_alive
from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.deployment.fleet import FleetData, limit_in_flight
from fedapps.deployment.processes import Processes


def config(**more):
    return parse({"task": "lqr", "methods": "sfl", "num-nodes": 2, "collect-after": 0} | more)


def test_nodes_without_folders_get_partitions(tmp_path: Path):
    data = FleetData.read(config(), None, "")
    assert data.configs() == [{"partition-id": 0, "num-partitions": 2}, {"partition-id": 1, "num-partitions": 2}]
    data.check(config(**{"cache-dir": str(tmp_path)}))
    assert [path.name[:8] for path in tmp_path.iterdir() if path.is_dir()] == ["lqr-2-0-"], "the world is generated"
    assert len(FleetData.read(config(), 3, "").configs()) == 3


def test_nodes_can_have_separate_folders(tmp_path: Path):
    for index, path in enumerate(write_world(tmp_path, 2, seed=1)):
        (tmp_path / f"robot-{index}").mkdir()
        path.rename(tmp_path / f"robot-{index}" / path.name)
    (tmp_path / ".hidden").mkdir()
    first, second = (str(tmp_path / name) for name in ("robot-0", "robot-1"))
    for given in (str(tmp_path), f"{first}, {second}"):
        data = FleetData.read(config(), None, given)
        assert data.configs() == [{"data-dir": first}, {"data-dir": second}]
        data.check(config())
    (tmp_path / "robot-1" / "robot-01.csv").unlink()
    with pytest.raises(DataError, match="robot-1: expected files"):
        data.check(config())


def test_invalid_arguments_are_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    empty = tmp_path / "empty"
    empty.mkdir()
    given = ["fleet", "lqr", "--output-dir", str(tmp_path / "runs"), "--set", "methods=sfl", "--set", "name=run"]
    for arguments, message in {
        ("--nodes", "2"): "--nodes 2: the run waits for num-nodes = 3; add --set num-nodes=2",
        ("--nodes", "0"): "--nodes 0: must be at least 1",
        ("--node-data", str(empty)): f"--node-data {empty}: expected one folder per node in it, found none",
        ("--node-data", f"{empty},{tmp_path / 'none'}"): f"--node-data {tmp_path / 'none'}: no such folder",
        ("--node-data", f"{empty},{empty}", "--nodes", "3"): "--nodes 3: --node-data names 2 folders",
        ("--node-data", ",".join([str(empty)] * 3), "--set", f"data-dir={empty}"): "--node-data, but data-dir",
        ("--node-data", ",".join([str(empty)] * 3)): f"{empty}: expected files robot-*.csv",
        ("--set", f"data-dir={empty}"): f"{empty}: expected files robot-*.csv",
        ("--set", "methods=cloud,sfl"): "methods: cloud trains on the pooled data of all nodes",
        ("--set", "rounds=0"): "rounds = 0: must be a whole number at least 1",
        ("--set", "resume=true"): "resume = true, but there is no run in",
    }.items():
        assert main([*given, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["fleet", "chess"]) == 2
    assert "no recipe chess" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_existing_fleet_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run-fleet").mkdir()
    assert main(["fleet", "lqr", "--output-dir", str(tmp_path), "--set", "methods=sfl", "--set", "name=run"]) == 2
    assert f"{tmp_path / 'run-fleet'} exists: choose another name" in capsys.readouterr().err


@pytest.mark.subprocesses
def test_the_exit_report_of_a_process_quotes_the_end_of_its_log(tmp_path: Path):
    with Interrupts() as interrupts, Processes(tmp_path / "tmp", interrupts) as processes:
        code = "import os, tempfile; print(os.getcwd(), tempfile.gettempdir()); raise SystemExit('no data')"
        started = processes.start("node-0", ["python", "-c", code], os.environ, tmp_path / "node-0" / "node.log")
        started.process.wait()
        assert started.has_ended
        head, *lines = started.exit_report().splitlines()
        assert head == f"node-0 has ended (exit status 1); the end of its log, {started.log}:"
        assert sorted(lines) == [f"  {tmp_path / 'node-0'} {tmp_path / 'tmp'}", "  no data"]
        long = processes.start("long", ["python", "-c", "import time; time.sleep(600)"], os.environ, tmp_path / "l")
        assert not long.has_ended
    assert long.process.returncode == -signal.SIGTERM
    assert "killed by signal 15" in long.exit_report()
    assert not (tmp_path / "tmp").exists()


@pytest.mark.subprocesses
def test_children_of_a_process_that_has_ended_are_ended_too(tmp_path: Path):
    child = "import time; time.sleep(600)"
    code = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)"
    with Interrupts() as interrupts, Processes(tmp_path / "tmp", interrupts) as processes:
        started = processes.start("node-0", ["python", "-c", code], os.environ, tmp_path / "log")
        started.process.wait()
        left = int(started.log.read_text())
        assert is_alive(left)
    assert not is_alive(left)


def test_the_number_of_nodes_in_flight_is_limited_by_the_cores(capsys: pytest.CaptureFixture[str]) -> None:
    config = parse({})
    assert limit_in_flight(config, nodes=6, cores=2) == config
    assert capsys.readouterr().out == ""
    assert limit_in_flight(config, nodes=7, cores=2).run.in_flight == 6
    assert "6 of 7 nodes work at the same time" in capsys.readouterr().out
    own = parse({"in-flight": 9})
    assert limit_in_flight(own, nodes=20, cores=2) == own
