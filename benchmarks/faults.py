"""What goes wrong with a fleet, done to it on purpose: processes killed, held up, brought back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedapps.deployment.node_keys import KeyPair
from fedapps.deployment.processes import FleetError, FleetProcess
from fedapps.deployment.superlink import Deployment, NodeConfig
from sim.processes import descendants


class FaultyFleet:
    """A deployment, the run that it works on in a thread of its own, and the faults that come over both.

    Parameters
    ----------
    deployed : Deployment
        With nothing started yet.
    app : Path
        The folder of the Flower app.
    run_config : mapping
        Of the run.
    node_configs : sequence of mappings
        One for each SuperNode.
    """

    def __init__(
        self, deployed: Deployment, app: Path, run_config: Mapping[str, Any], node_configs: Sequence[NodeConfig]
    ) -> None:
        self.deployed = deployed
        self.app = app
        self.run_config = run_config
        self.node_configs = node_configs
        self.said: list[str] = []
        self._run: threading.Thread | None = None

    def start(self, count: int | None = None) -> None:
        """Start the SuperLink and the first ``count`` SuperNodes, all by default."""
        self.deployed.start_superlink()
        self.deployed.start_supernodes(self.node_configs[:count])

    # -- the run ---------------------------------------------------------------------------------------------------

    def submit(self, **changes: Any) -> None:
        """Submit the run, or submit it again, with changes to its config."""
        self._run = threading.Thread(target=self._follow, args=({**self.run_config, **changes},))
        self._run.start()

    def _follow(self, run_config: Mapping[str, Any]) -> None:
        with suppress(FleetError):  # a SuperLink that is killed ends the run
            self.deployed.run(self.app, run_config, self.said.append)

    def has_ended(self) -> bool:
        """Whether the run that was submitted last has ended, well or not."""
        return self._run is None or not self._run.is_alive()

    def wait(self, happened: Callable[[], object], seconds: float = 900.0) -> None:
        """Wait for something. Raises ``RuntimeError`` with the run's log when the run ends before, or in time."""
        deadline = time.monotonic() + seconds
        while not happened():
            if self.has_ended() or time.monotonic() > deadline:
                if happened():
                    return
                raise RuntimeError("\n".join(["this was waited for in vain; the run said:", *self.said]))
            time.sleep(0.05)

    def wait_until_ended(self, seconds: float = 900.0) -> None:
        """Wait for the end of the run. Raises ``RuntimeError`` when it does not come in time."""
        assert self._run
        self._run.join(seconds)
        if self._run.is_alive():
            raise RuntimeError("\n".join([f"the run has not ended within {seconds:.0f} s; it said:", *self.said]))

    # -- faults ----------------------------------------------------------------------------------------------------

    def node(self, index: int) -> FleetProcess:
        """A SuperNode that was started."""
        return next(node for node in self.deployed.nodes if node.name == f"node-{index}")

    def state(self, index: int) -> Path:
        """The folder of a node's private state."""
        return self.deployed.node_folder(index) / "state"

    def working(self, index: int) -> list[int]:
        """The processes of a node that work on a message."""
        return [pid for pid in descendants(self.node(index).process.pid) if _runs(pid, "flwr-clientapp")]

    def wait_for_message(self, index: int) -> None:
        """Wait until a node works on a message that it does not work on now."""
        before = set(self.working(index))
        self.wait(lambda: set(self.working(index)) - before)

    def kill_node(self, index: int) -> None:
        """Kill a SuperNode and all that it started, without a word to the SuperLink."""
        _kill(self.node(index))

    @contextmanager
    def held_up(self, index: int) -> Iterator[None]:
        """Within this context a node works on its messages for ever, while it tells the SuperLink that it is there."""
        over = threading.Event()
        stopped: list[int] = []

        def stop() -> None:
            while not over.wait(0.1):
                for pid in self.working(index):  # also those that the SuperNode starts in place of a silent one
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
            for pid in stopped[:-1]:  # the SuperNode takes nothing from them any more
                _signal(pid, signal.SIGKILL)
            for pid in stopped[-1:]:
                _signal(pid, signal.SIGCONT)

    def kill_worker(self, index: int) -> None:
        """Kill the process in which a node works on a message, as a machine does that is out of memory."""
        for pid in self.working(index):
            _signal(pid, signal.SIGKILL)

    def stop_node(self, index: int) -> None:
        """Ask a SuperNode to end, as on shutdown; it says goodbye to the SuperLink."""
        process = self.node(index).process
        process.terminate()
        process.wait()

    def start_node(self, index: int) -> None:
        """Start a SuperNode, or start it again with its key and its state."""
        folder = self.deployed.node_folder(index)
        pair = KeyPair(folder / "supernode.key", folder / "supernode.pub") if self.deployed.auth else None
        self.deployed.start_supernode(f"node-{index}", self.node_configs[index], pair)

    def kill_server(self) -> None:
        """Kill the SuperLink and the run's ServerApp, as when the machine loses power."""
        assert self.deployed.superlink
        _kill(self.deployed.superlink)
        self.wait_until_ended()

    def server(self) -> list[int]:
        """The processes of the run's ServerApp."""
        assert self.deployed.superlink
        return [pid for pid in descendants(self.deployed.superlink.process.pid) if _runs(pid, "flwr-serverapp")]


def _runs(pid: int, command: str) -> bool:
    """Whether a process runs a command of Flower."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(Path(os.fsdecode(word)).name == command for word in words)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it may end just now
        os.kill(pid, number)


def _kill(started: FleetProcess) -> None:
    for pid in [started.process.pid, *descendants(started.process.pid)]:
        _signal(pid, signal.SIGKILL)
    started.process.wait()
