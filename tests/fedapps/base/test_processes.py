"""The processes of Flower: signals that end the program, and the environment of processes."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fedapps.base import processes
from fedapps.base.processes import Interrupts, flower_environment, free_port, is_alive, start_time, still_runs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_at_once_or_when_no_longer_deferred(number: signal.Signals):
    done = []

    def uninterrupted(interrupts):
        with interrupts.deferred():
            with interrupts.deferred():
                signal.raise_signal(number)
            done.append("after it came")
        done.append("never")

    before = signal.signal(number, signal.SIG_DFL)
    try:
        with Interrupts() as interrupts:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            with pytest.raises(KeyboardInterrupt):
                uninterrupted(interrupts)
            with interrupts.deferred():
                done.append("once only")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert done == ["after it came", "once only"]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_connections_on_this_machine_use_no_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.delenv("NO_PROXY", raising=False)
    environment = flower_environment(tmp_path)
    assert environment["no_proxy"] == "example.org,127.0.0.1,localhost,::1"
    assert environment["NO_PROXY"] == "127.0.0.1,localhost,::1"


def test_ray_gets_a_folder_with_a_short_path(tmp_path, monkeypatch):
    """The path of a socket has at most 107 bytes."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + 38 * "x")
    assert "RAY_TMPDIR" not in flower_environment(tmp_path)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + 39 * "x")
    assert len(flower_environment(tmp_path)["RAY_TMPDIR"]) <= 39
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"Ray needs a folder whose path has at most 39 characters.*RAY_TMPDIR"):
        flower_environment(tmp_path)
    monkeypatch.setenv("RAY_TMPDIR", "/anywhere")
    assert flower_environment(tmp_path)["RAY_TMPDIR"] == "/anywhere"


@pytest.mark.subprocesses
def test_a_process_is_known_by_its_number_and_its_start(monkeypatch):
    me = os.getpid()
    assert still_runs(me, start_time(me))
    assert not still_runs(me, f"{start_time(me)}0"), "another process has got the number"
    with subprocess.Popen(["true"]) as ended:
        started = start_time(ended.pid)
        while is_alive(ended.pid):
            pass
        assert not still_runs(ended.pid, started), "it was not reaped yet"
    assert not still_runs(ended.pid, started)
    monkeypatch.setattr("fedapps.base.processes.process_facts", lambda pid: [])  # a system that hides it
    assert still_runs(me, "1")
    assert still_runs(1 << 80, "1")
    assert not still_runs(ended.pid, started)


def test_a_free_port_is_free_and_no_outgoing_connection_takes_it(monkeypatch):
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    least_outgoing = int(given.read_text().split()[0]) if given.exists() else 32_768
    assert max(processes._PORTS) < least_outgoing
    taken, free = free_port(), free_port()
    monkeypatch.setattr(processes, "_PORTS", [taken, free])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", taken))
        assert {free_port() for _ in range(20)} == {free}
