"""A SuperLink and its SuperNodes on the loopback interface: start them, connect them, submit runs."""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.base.processes import Interrupts, flower_environment, free_port

from .credentials import KeyPair, make_certificates, make_key_pair
from .flower_command import LIBRARIES
from .processes import FleetError, FleetProcess, FlwrCommands, Processes
from .submission import CONNECTION, connect, submission, wait_until_healthy
from .supernode import SuperNode

NodeConfig = Mapping[str, int | str]
_LOOPBACK = "127.0.0.1"
_STARTED = re.compile(r"Successfully started run (\d+)")
#: From this version of Flower on, SuperNodes speak HTTP on the port that ``flwr`` uses, before gRPC on another port.
_FIRST_WITH_HTTP = (1, 40)
_CONNECT_SECONDS, _CONNECT_SECONDS_EACH = 60.0, 10.0


@contextmanager
def deployment(
    folder: Path, *, tls: bool = False, auth: bool = False, libraries: Sequence[str] = LIBRARIES, plain: bool = False
) -> Iterator["Deployment"]:
    """Context for a SuperLink and its SuperNodes; on exit all processes are ended.

    Enter it in the main thread: SIGINT, SIGTERM and SIGHUP raise ``KeyboardInterrupt`` in it.

    Parameters
    ----------
    folder : Path
        Folder for logs, keys, private states and the database.
    tls : bool
        Make certificates, and encrypt all connections to the SuperLink.
    auth : bool
        Authenticate SuperNodes by their keys; requires ``tls``.
    libraries : sequence of str
        Modules that the workers of nodes need; see :class:`SuperNode`.
    plain : bool
        Run Flower's own SuperNodes, and its SuperLink with the default database, in memory, for comparisons.
    """
    with Interrupts() as interrupts, Processes(folder / "tmp", interrupts) as processes:
        deployed = Deployment(folder, processes, tls=tls, auth=auth, libraries=libraries, plain=plain)
        processes.on_exit(deployed.close)
        yield deployed


class Deployment:
    """One SuperLink with its SuperNodes; create it with :func:`deployment`."""

    def __init__(
        self, folder: Path, processes: Processes, *, tls: bool, auth: bool, libraries: Sequence[str], plain: bool
    ) -> None:
        self.folder = folder
        self.auth = auth
        self.plain = plain
        self.control_port = free_port()
        self.fleet_port = node_port(self.control_port)
        self.nodes: list[FleetProcess] = []
        self._settings = partial(SuperNode.on_this_machine, libraries=libraries, plain=plain)
        self._supernode = self._settings(1)
        self._processes = processes
        self._certificates = make_certificates(folder / "certificates") if tls else None
        self._home = folder / "flower"
        self._home.mkdir(parents=True, exist_ok=True)
        self._environment = flower_environment(self._home) | {
            "PYTHONUNBUFFERED": "1",  # the log is read while it is written
        }
        self._environment.pop("FORCE_COLOR", None)  # colour codes would break the JSON output of flwr
        self._flwr = FlwrCommands(self._environment)
        self.superlink: FleetProcess | None = None
        self._reported: list[FleetProcess] = []

    @property
    def database(self) -> Path:
        """The SQLite file in which the SuperLink stores its nodes, runs and messages."""
        return self.folder / "superlink.db"

    @property
    def ca(self) -> Path | None:
        """Certificate of the authority that signed the SuperLink's certificate; None without ``tls``."""
        return self._certificates.ca if self._certificates else None

    def start_superlink(self) -> None:
        """Start the SuperLink, or restart it after it has ended, and wait until it responds.

        The first start begins with an empty database; a restart continues with the existing one.

        Raises
        ------
        FleetError
            If the SuperLink does not respond.
        """
        if self.superlink is None:
            for suffix in ("", "-journal", "-wal", "-shm"):  # SQLite's files
                self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
        secured = self._certificates.superlink_options() if self._certificates else ["--insecure"]
        command = [
            "flower-superlink", "--host", _LOOPBACK, "--port", str(self.control_port),
            *node_options(f"{_LOOPBACK}:{self.fleet_port}"),
            *secured, *(["--enable-supernode-auth"] if self.auth else []),
            *([] if self.plain else ["--database", str(self.database)]),
        ]  # fmt: skip
        superlink = self._processes.start("the SuperLink", command, self._environment, self.folder / "superlink.log")
        if not wait_until_healthy(superlink.process, self.control_port, self.ca):
            raise FleetError(
                superlink.exit_report()
                if superlink.has_ended
                else f"{superlink.name} does not respond; {superlink.log_tail()}"
            )
        self.superlink = superlink
        connect(self._home, f"{_LOOPBACK}:{self.control_port}", self.ca)

    def start_supernodes(self, configs: Sequence[NodeConfig]) -> None:
        """Start one SuperNode per config, and wait until all are connected. With ``auth``, register their keys first.

        Raises
        ------
        FleetError
            If a SuperNode ends, or not all connect in time.
        """
        folders = [self.node_folder(index) for index in range(len(configs))]
        keys = [make_key_pair(folder) for folder in folders] if self.auth else []
        self.register([pair.public for pair in keys])
        self._supernode = self._settings(len(configs))
        for index, config in enumerate(configs):
            self.start_supernode(f"node-{index}", config, keys[index] if keys else None)
        self.wait_until_connected()

    def register(self, keys: Sequence[Path]) -> None:
        """Register public keys with the SuperLink.

        Raises
        ------
        FleetError
            If the SuperLink rejects a key.
        """
        for key in keys:
            done = self._flwr.run("supernode", "register", str(key), CONNECTION)
            if done.returncode:
                raise FleetError(f"the SuperLink does not register {key}:\n{done.stdout}{done.stderr}")

    def start_supernode(self, name: str, config: NodeConfig, key: KeyPair | None, *options: str) -> FleetProcess:
        """Start one SuperNode. If an earlier one of the same name has ended, the new one continues from its state.

        Parameters
        ----------
        name : str
            Name of the node and of its folder, which holds its Flower home, private state and log.
        config : mapping
            Node config.
        key : KeyPair or None
            Key with which the node authenticates.
        *options : str
            More options of ``flower-supernode``.
        """
        folder = self.folder / name
        home, node_config = folder / "flower", folder / "node.toml"
        home.mkdir(parents=True, exist_ok=True)
        node_config.write_text(tomli_w.dumps({"state-dir": str(folder / "state"), **config}), encoding="utf-8")
        secured = ["--root-certificates", str(self.ca)] if self.ca else ["--insecure"]
        command = self._supernode.command([
            "--superlink", f"{_LOOPBACK}:{self.fleet_port}", "--host", _LOOPBACK,
            "--port", str(free_port()), "--node-config", str(node_config), *secured,
            *(["--auth-supernode-private-key", str(key.private)] if key else []), *options,
        ])  # fmt: skip
        # Flower does not unpack the app atomically, so nodes must not share a Flower home.
        environment = self._environment | {"FLWR_HOME": str(home)}
        started = self._processes.start(name, command, environment, folder / "supernode.log", low_priority=True)
        self.nodes = [node for node in self.nodes if node.name != name] + [started]
        return started

    def node_folder(self, index: int) -> Path:
        """The folder of a SuperNode: its state, its log and its key."""
        return self.folder / f"node-{index}"

    def run(
        self, app: Path, run_config: Mapping[str, bool | int | float | str], show: Callable[[str], None] = print
    ) -> None:
        """Submit a Flower app, and wait until the run has ended.

        If a SuperNode ends, a line says so and the run continues. If the log stream breaks before the run has ended,
        the log is shown again from its beginning.

        Parameters
        ----------
        app : Path
            Folder of the Flower app.
        run_config : mapping
            Keys of the run config.
        show : callable
            Receives each line of the log.

        Raises
        ------
        FleetError
            If the SuperLink ends or rejects the run.
        """
        run = ""
        following = self._follow("flwr run", submission(app, self._home, run_config))
        while True:
            for line in self._lines(following):
                run = started_run(line) or run
                show(line)
            if not run:
                raise FleetError(f"{following.exit_status()}; its output is above and in {following.log}")
            if self._has_finished(run):
                return
            show("fleet: the log stream broke, but the run continues; the log follows again from its beginning")
            following = self._follow("flwr log", ["flwr", "log", run, CONNECTION, "--stream"])

    def _follow(self, name: str, command: Sequence[str]) -> FleetProcess:
        return self._processes.start(name, command, self._environment, self.folder / "run.log")

    def _lines(self, following: FleetProcess) -> Iterator[str]:
        """The output of a process, line by line, until it ends; and a line for each SuperNode that ends meanwhile."""
        with following.log.open(errors="replace", encoding="utf-8") as log:
            log.seek(following.begin)
            line = ""
            while True:
                last = following.has_ended
                while part := log.readline():
                    line += part
                    if line.endswith("\n"):
                        yield line.rstrip("\n")
                        line = ""
                if last:
                    return
                for node in self._ended():
                    if node not in self._reported:
                        self._reported.append(node)
                        yield f"fleet: {node.exit_status()}; the run continues without it; its log: {node.log}"
                self._check_superlink()
                time.sleep(0.2)

    def close(self) -> None:
        """After the SuperLink has ended, merge SQLite's write-ahead log into the database file."""
        self._flwr.close()
        if self.database.exists():
            with closing(sqlite3.connect(self.database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def wait_until_connected(self) -> None:
        """Wait until all SuperNodes are connected.

        Raises
        ------
        FleetError
            If a SuperNode ends, or not all connect in time.
        """
        deadline = time.monotonic() + _CONNECT_SECONDS + _CONNECT_SECONDS_EACH * len(self.nodes)
        while (online := self.count_online()) < len(self.nodes):
            for node in self._ended():
                raise FleetError(node.exit_report())
            if time.monotonic() > deadline:
                raise FleetError(
                    f"only {online} of {len(self.nodes)} SuperNodes have connected to the SuperLink; "
                    f"{self.nodes[0].log_tail()}"
                )
            time.sleep(0.5)

    def count_online(self) -> int:
        """Number of connected SuperNodes.

        Raises
        ------
        FleetError
            If ``flwr`` cannot list them.
        """
        return sum(node["status"] == "online" for node in self._query("supernode", "ls", key="nodes"))

    def _has_finished(self, run: str) -> bool:
        return all(entry["status"].startswith("finished") for entry in self._query("ls", "--run-id", run, key="runs"))

    def _query(self, *arguments: str, key: str) -> list[dict[str, Any]]:
        return self._flwr.query(*arguments, key=key, check=self._check_superlink)

    def _ended(self) -> list[FleetProcess]:
        return [node for node in self.nodes if node.has_ended]

    def _check_superlink(self) -> None:
        if self.superlink and self.superlink.has_ended:
            raise FleetError(self.superlink.exit_report())


def started_run(line: str) -> str:
    """The id of the run that a line of ``flwr run`` says has started; empty for any other line."""
    started = _STARTED.search(line)
    return started[1] if started else ""


def nodes_speak_http() -> bool:
    """Whether SuperNodes use HTTP in the installed version of Flower."""
    major, minor, *_ = version("flwr").split(".")
    return (int(major), int(minor)) >= _FIRST_WITH_HTTP


def node_port(port: int) -> int:
    """The loopback port for SuperNodes of a SuperLink that serves ``flwr`` at ``port``."""
    return port if nodes_speak_http() else free_port()


def node_options(address: str) -> list[str]:
    """The options with which ``flower-superlink`` serves SuperNodes at ``address`` (host:port)."""
    return [] if nodes_speak_http() else ["--fleet-api-type", "grpc-rere", "--fleet-api-address", address]
