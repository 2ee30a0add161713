"""A SuperLink and its SuperNodes on the loopback: started, introduced to each other, given a run."""

import json
import re
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from sim.flower_run import CONNECTION, connect, submission, wait_until_healthy
from sim.processes import flower_environment, free_port, tool, usable_cores

from .certificates import make_certificates
from .interrupts import Interrupts
from .node_keys import KeyPair, make_key_pair
from .processes import FleetError, Processes, Started
from .protocol import node_options, node_port

NodeConfig = Mapping[str, int | str]
_LOOPBACK = "127.0.0.1"
_STARTED = re.compile(r"Successfully started run (\d+)")
_QUESTIONS = 10
_CONNECT_SECONDS, _CONNECT_SECONDS_EACH = 60.0, 10.0


@contextmanager
def deployment(folder: Path, *, tls: bool = False, auth: bool = False) -> Iterator["Deployment"]:
    """A SuperLink and SuperNodes to be started within this context, which ends them and tidies ``folder``.

    With ``tls`` all connections to the SuperLink are encrypted, with certificates made here; with ``auth``, which
    needs ``tls``, it knows its SuperNodes by their keys and refuses others. Enter it in the main thread: SIGINT,
    SIGTERM and SIGHUP raise ``KeyboardInterrupt`` in it.
    """
    with Interrupts() as interrupts, Processes(folder / "tmp", interrupts) as processes:
        deployed = Deployment(folder, processes, tls=tls, auth=auth)
        processes.afterwards(deployed.tidy)
        yield deployed


class Deployment:
    """One SuperLink with its SuperNodes; see :func:`deployment`, which makes it."""

    def __init__(self, folder: Path, processes: Processes, *, tls: bool, auth: bool) -> None:
        self.folder = folder
        self.auth = auth
        self.http = free_port()
        self.fleet = node_port(self.http)
        self.nodes: list[Started] = []
        self._processes = processes
        self._certificates = make_certificates(folder / "certificates") if tls else None
        self._home = folder / "flower"
        self._home.mkdir(parents=True, exist_ok=True)
        self._environment = flower_environment(self._home) | {
            "PYTHONUNBUFFERED": "1",  # a log is read while it is written
        }
        self._environment.pop("FORCE_COLOR", None)  # flwr's JSON is to be read by a program
        self.superlink: Started | None = None
        self._missed: list[Started] = []

    @property
    def database(self) -> Path:
        """Where the SuperLink keeps its nodes, runs and messages."""
        return self.folder / "superlink.db"

    @property
    def ca(self) -> Path | None:
        """The certificate of the authority that signed the SuperLink's, with ``tls``."""
        return self._certificates.ca if self._certificates else None

    def start_superlink(self) -> None:
        """Start it, or once it has ended start it again, and wait until it answers.

        The first time its database is empty; later it knows its nodes, runs and messages from before. Raises
        :class:`FleetError` when it does not answer.
        """
        if self.superlink is None:
            for leftover in self.folder.glob(f"{self.database.name}*"):  # with SQLite's own files beside it
                leftover.unlink()
        secured = self._certificates.superlink_options() if self._certificates else ["--insecure"]
        command = [
            "flower-superlink", "--host", _LOOPBACK, "--port", str(self.http),
            *node_options(f"{_LOOPBACK}:{self.fleet}"),
            "--database", str(self.database), *secured, *(["--enable-supernode-auth"] if self.auth else []),
        ]  # fmt: skip
        superlink = self._processes.start("the SuperLink", command, self._environment, self.folder / "superlink.log")
        if not wait_until_healthy(superlink.process, self.http, self.ca):
            raise FleetError(_what_became_of(superlink, "does not answer"))
        self.superlink = superlink
        connect(self._home, f"{_LOOPBACK}:{self.http}", self.ca)

    def start_supernodes(self, configs: Sequence[NodeConfig]) -> None:
        """Start a SuperNode per config, registered by its key with ``auth``, and wait until all are connected.

        Raises :class:`FleetError` when one of them ends, or they do not connect.
        """
        folders = [self.node_folder(index) for index in range(len(configs))]
        keys = [make_key_pair(folder) for folder in folders] if self.auth else []
        self.register([pair.public for pair in keys])
        # Seconds. Flower's one is for links to other machines; but many that look often take the cores from those that
        # work.
        self._environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = f"{min(1.0, max(0.2, 0.05 * len(configs))):g}"
        for index, config in enumerate(configs):
            self.start_supernode(f"node-{index}", config, keys[index] if keys else None)
        self.wait_until_connected()

    def register(self, keys: Sequence[Path]) -> None:
        """Make public keys known to the SuperLink. Raises :class:`FleetError` when it does not take one."""
        at_a_time = usable_cores()
        for begin in range(0, len(keys), at_a_time):
            batch = [
                self._processes.start(
                    f"the registration of {key.parent.name}",
                    ["flwr", "supernode", "register", str(key), CONNECTION],
                    self._environment,
                    key.with_name("register.log"),
                )
                for key in keys[begin : begin + at_a_time]
            ]
            for started in batch:
                if started.process.wait() != 0:
                    raise FleetError(started.obituary())

    def start_supernode(self, name: str, config: NodeConfig, key: KeyPair | None, *options: str) -> Started:
        """Start one SuperNode in the folder ``name``, with a Flower home and a private state of its own.

        One of that name must have ended; the new one goes on from its state. ``options`` are more options of
        ``flower-supernode``.
        """
        folder = self.folder / name
        home, node_config = folder / "flower", folder / "node.toml"
        home.mkdir(parents=True, exist_ok=True)
        node_config.write_text(tomli_w.dumps({"state-dir": str(folder / "state"), **config}))
        secured = ["--root-certificates", str(self.ca)] if self.ca else ["--insecure"]
        command = [
            "flower-supernode", "--superlink", f"{_LOOPBACK}:{self.fleet}", "--host", _LOOPBACK,
            "--port", str(free_port()), "--node-config", str(node_config), *secured,
            *(["--auth-supernode-private-key", str(key.private)] if key else []), *options,
        ]  # fmt: skip
        environment = self._environment | {"FLWR_HOME": str(home)}  # Flower unpacks the app here, not atomically
        started = self._processes.start(name, command, environment, folder / "supernode.log", yielding=True)
        self.nodes = [node for node in self.nodes if node.name != name] + [started]
        return started

    def node_folder(self, index: int) -> Path:
        """What a SuperNode leaves on disk: its state, its log, its key."""
        return self.folder / f"node-{index}"

    def run(
        self, app: Path, run_config: Mapping[str, bool | int | float | str], show: Callable[[str], None] = print
    ) -> None:
        """Submit the Flower app in ``app`` and hand its log to ``show``, line by line, until the run has ended.

        A SuperNode that ends on the way is told of and the others go on. Where the log breaks off before the run has
        ended it is shown again from its beginning. Raises :class:`FleetError` when the SuperLink ends, or does not take
        the run.
        """
        run = ""
        following = self._follow("flwr run", submission(app, self._home, run_config))
        while True:
            for line in self._lines(following):
                if started := _STARTED.search(line):
                    run = started[1]
                show(line)
            if not run:
                raise FleetError(f"{following.fate()}; what it said is above, and in {following.log}")
            if self._has_finished(run):
                return
            show("fleet: the log broke off while the run goes on; here it is again")
            following = self._follow("flwr log", ["flwr", "log", run, CONNECTION, "--stream"])

    def _follow(self, name: str, command: Sequence[str]) -> Started:
        return self._processes.start(name, command, self._environment, self.folder / "run.log")

    def _lines(self, following: Started) -> Iterator[str]:
        """What a process says until it ends, and what becomes of the fleet meanwhile."""
        with following.log.open(errors="replace") as log:
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
                    if node not in self._missed:
                        self._missed.append(node)
                        yield f"fleet: {node.fate()}, the run goes on without it; its log is {node.log}"
                self._check_superlink()
                time.sleep(0.2)

    def tidy(self) -> None:
        """Once the SuperLink has ended: have SQLite put into the database what it left beside it."""
        if self.database.exists():
            with closing(sqlite3.connect(self.database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def wait_until_connected(self) -> None:
        """Wait for all SuperNodes. Raises :class:`FleetError` when one of them ends, or it takes too long."""
        deadline = time.monotonic() + _CONNECT_SECONDS + _CONNECT_SECONDS_EACH * len(self.nodes)
        while (online := self.count_online()) < len(self.nodes):
            for node in self._ended():
                raise FleetError(node.obituary())
            if time.monotonic() > deadline:
                raise FleetError(
                    f"only {online} of {len(self.nodes)} SuperNodes have connected to the SuperLink; "
                    f"{self.nodes[0].last_words()}"
                )
            time.sleep(0.5)

    def count_online(self) -> int:
        """How many SuperNodes are connected, as ``flwr`` tells it. Raises :class:`FleetError` when it cannot."""
        return sum(node["status"] == "online" for node in self._ask("supernode", "ls", about="nodes"))

    def _has_finished(self, run: str) -> bool:
        return all(told["status"].startswith("finished") for told in self._ask("ls", "--run-id", run, about="runs"))

    def _ask(self, *question: str, about: str) -> list[dict[str, Any]]:
        """What ``flwr`` tells about nodes or runs; asked again for a while where it cannot tell."""
        command = [tool("flwr"), *question, "--format", "json"]
        command.insert(-2, CONNECTION)
        for _ in range(_QUESTIONS):
            self._check_superlink()
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, start_new_session=True
            )  # fmt: skip
            with suppress(ValueError, KeyError):
                return list(json.loads(done.stdout)[about])
            time.sleep(1.0)
        raise FleetError(f"{shlex.join(question)}: flwr cannot tell: {done.stdout}{done.stderr}")

    def _ended(self) -> list[Started]:
        return [node for node in self.nodes if node.has_ended]

    def _check_superlink(self) -> None:
        if self.superlink and self.superlink.has_ended:
            raise FleetError(self.superlink.obituary())


def _what_became_of(started: Started, otherwise: str) -> str:
    return started.obituary() if started.has_ended else f"{started.name} {otherwise}; {started.last_words()}"
