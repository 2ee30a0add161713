"""Fault injection for a fleet: kill, hang, slow down and restart its processes."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedapps.base.processes import descendants, runs
from fedapps.deployment.credentials import KeyPair
from fedapps.deployment.processes import FleetError, FleetProcess
from fedapps.deployment.superlink import Deployment, NodeConfig


class FaultyFleet:
    """A deployment with a run, and methods that inject faults into both. The run is followed in a separate thread.

    Parameters
    ----------
    deployed : Deployment
        A deployment that has not been started.
    app : Path
        Folder of the Flower app.
    run_config : mapping
        Run config.
    node_configs : sequence of mappings
        One node config per SuperNode.
    """

    def __init__(
        self, deployed: Deployment, app: Path, run_config: Mapping[str, Any], node_configs: Sequence[NodeConfig]
    ) -> None:
        self.deployed = deployed
        self.app = app
        self.run_config = run_config
        self.node_configs = node_configs
        self.log_lines: list[str] = []
        self._run: threading.Thread | None = None

    def start(self, count: int | None = None) -> None:
        """Start the SuperLink and the first ``count`` SuperNodes, all by default."""
        self.deployed.start_superlink()
        self.deployed.start_supernodes(self.node_configs[:count])

    # -- the run ---------------------------------------------------------------------------------------------------

    def submit(self, **changes: Any) -> None:
        """Submit the run, for the first time or again; ``changes`` override keys of its config."""
        self._run = threading.Thread(target=self._follow, args=({**self.run_config, **changes},))
        self._run.start()

    def _follow(self, run_config: Mapping[str, Any]) -> None:
        with suppress(FleetError):  # the run ends if the SuperLink is killed
            self.deployed.run(self.app, run_config, self.log_lines.append)

    def has_ended(self) -> bool:
        """Whether the last submitted run has ended, successfully or not."""
        return self._run is None or not self._run.is_alive()

    def wait(self, happened: Callable[[], object], seconds: float = 900.0) -> None:
        """Wait until ``happened`` returns a true value.

        Raises
        ------
        RuntimeError
            If the run ends first, or after ``seconds``; the message holds the log of the run.
        """
        deadline = time.monotonic() + seconds
        while not happened():
            if self.has_ended() or time.monotonic() > deadline:
                if happened():
                    return
                raise RuntimeError("\n".join(["the awaited event did not happen; log of the run:", *self.log_lines]))
            time.sleep(0.05)

    def wait_until_ended(self, seconds: float = 900.0) -> None:
        """Wait until the run has ended.

        Raises
        ------
        RuntimeError
            If it has not ended after ``seconds``; the message holds the log of the run.
        """
        assert self._run
        self._run.join(seconds)
        if self._run.is_alive():
            raise RuntimeError("\n".join([f"the run has not ended within {seconds:.0f} s; its log:", *self.log_lines]))

    # -- faults ----------------------------------------------------------------------------------------------------

    def node(self, index: int) -> FleetProcess:
        """The process of a SuperNode."""
        return next(node for node in self.deployed.nodes if node.name == f"node-{index}")

    def state(self, index: int) -> Path:
        """The folder of a node's private state."""
        return self.deployed.node_folder(index) / "state"

    def working(self, index: int) -> list[int]:
        """The process ids of a node's workers, which process messages."""
        return [pid for pid in descendants(self.node(index).process.pid) if runs(pid, "flwr-clientapp")]

    def wait_for_message(self, index: int) -> None:
        """Wait until a node starts to work on a new message."""
        before = set(self.working(index))
        self.wait(lambda: set(self.working(index)) - before)

    def kill_node(self, index: int) -> None:
        """Kill a SuperNode and its children; they cannot notify the SuperLink."""
        kill(self.node(index))

    @contextmanager
    def hanging(self, index: int) -> Iterator[None]:
        """Context in which the workers of a node hang, while its SuperNode still sends heartbeats to the SuperLink."""
        over = threading.Event()
        stopped: list[int] = []

        def stop() -> None:
            while not over.wait(0.1):
                for pid in self.working(index):  # including those that the SuperNode starts to replace a silent worker
                    if pid not in stopped:
                        stopped.append(pid)
                        _signal(pid, signal.SIGSTOP)

        holding = threading.Thread(target=stop)
        holding.start()
        try:
            yield
        finally:
            over.set()
            holding.join()
            for pid in stopped[:-1]:  # the SuperNode ignores replaced workers
                _signal(pid, signal.SIGKILL)
            for pid in stopped[-1:]:
                _signal(pid, signal.SIGCONT)

    @contextmanager
    def slowed(self, index: int, factor: float) -> Iterator[None]:
        """Context in which the workers of a node take ``factor`` times as long: they rest for a part of each second."""
        over = threading.Event()

        def pace() -> None:
            while not over.is_set():
                for number, seconds in ((signal.SIGSTOP, 1 - 1 / factor), (signal.SIGCONT, 1 / factor)):
                    for pid in self.working(index):
                        _signal(pid, number)
                    over.wait(seconds)

        pacing = threading.Thread(target=pace)
        pacing.start()
        try:
            yield
        finally:
            over.set()
            pacing.join()
            for pid in self.working(index):
                _signal(pid, signal.SIGCONT)

    def kill_worker(self, index: int) -> None:
        """Kill the worker of a node, as the kernel does when memory is exhausted."""
        for pid in self.working(index):
            _signal(pid, signal.SIGKILL)

    def start_node(self, index: int) -> None:
        """Start a SuperNode, or restart it with its key and its state."""
        folder = self.deployed.node_folder(index)
        pair = KeyPair(folder / "supernode.key", folder / "supernode.pub") if self.deployed.auth else None
        self.deployed.start_supernode(f"node-{index}", self.node_configs[index], pair)

    def kill_server(self) -> None:
        """Kill the SuperLink and the ServerApp, as in a power failure."""
        assert self.deployed.superlink
        kill(self.deployed.superlink)
        self.wait_until_ended()

    def server(self) -> list[int]:
        """The process ids of the ServerApp."""
        assert self.deployed.superlink
        return [pid for pid in descendants(self.deployed.superlink.process.pid) if runs(pid, "flwr-serverapp")]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # the process may have ended
        os.kill(pid, number)


def kill(started: FleetProcess) -> None:
    """Kill a process and its children."""
    for pid in [started.process.pid, *descendants(started.process.pid)]:
        _signal(pid, signal.SIGKILL)
    started.process.wait()
