"""Flower's SuperNode, with workers that start from imported libraries.

For every message, Flower starts a new process ``flwr-clientapp``, which imports Flower and torch before it does
anything. That takes seconds of processor time, on a small computer more than training. With this command, Flower is
imported once: the SuperExec of the node is a fork of the SuperNode, and so is the process that imports torch once
messages come. Each worker is a fork of the latter, handles one message and ends. The SuperNode wakes the SuperExec for
each message.
"""

import json
import os
import re
import select
import signal
import socket
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from click import ClickException
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from cryptography.x509 import load_pem_x509_certificates

from fedapps.base.options import did_you_mean, option_fields
from fedapps.base.text_files import flattened, read_toml, shown
from fedapps.clients.rules import (
    ACCEPT_MODEL,
    KEEP_MODEL,
    MAX_MEMORY,
    MAX_RANK,
    MAX_SECONDS,
    MAX_STEPS,
    PRIVATE,
    SEND_ERRORS,
    NodeLimits,
    NodeRules,
    check_commands,
)
from fedapps.sim.flower_internals import (
    answer_lost_messages,
    ask_again_after,
    ask_again_after_errors,
    call_on_work,
    fallback,
    last_app,
    parse_config_args,
    poll_every,
    reuse_installed_apps,
    wait_for_work,
)
from fedapps.strategies import SecureRules

from .credentials import check_expiry
from .flower_command import (
    LIBRARIES,
    POLL_INTERVAL,
    Fork,
    load_command,
    name_process,
    quick_imports,
    run_and_exit,
    run_flower,
    serve,
)

_KEY, _TRUSTED = "--auth-supernode-private-key", "--root-certificates"
_CONFIG, _HOST, _PORT = "--node-config", "--host", "--port"
_OPTIONS = (_KEY, _TRUSTED, _CONFIG, _HOST, _PORT)
_LOOPBACK, _FLOWERS_PORT = "127.0.0.1", "9094"
#: Every key of the node config that an app of this package reads.
NODE_KEYS = {
    *("data-dir", "state-dir", "partition-id", "num-partitions", PRIVATE, KEEP_MODEL, ACCEPT_MODEL, SEND_ERRORS),
    *(MAX_STEPS, MAX_SECONDS, MAX_MEMORY, MAX_RANK),
    *option_fields(NodeRules),
    *SecureRules.keys(),
}
#: From this similarity on, an unknown key is taken for a misspelt one of these: above that of ``max-speed`` and
#: ``max-seconds``, below that of ``epsilon`` and ``max-epsilon``.
_MISSPELT = 0.75
_DATA = re.compile(r"(?:^|\s)data-dir=(\"[^\"]*\"|'[^']*'|\S+)")


def check_options(options: Sequence[str]) -> None:
    """Check the options of a SuperNode that name files, the data and the port of this machine.

    Parameters
    ----------
    options : sequence of str
        Options of ``flower-supernode``; its other options are not looked at.

    Raises
    ------
    ValueError
        A file cannot be read or holds something else, all certificates have expired, the data folder is missing, a
        limit or a rule in the node config cannot be used, a key of it is misspelt, or the port is taken.
    """
    values = _values(options)
    if path := values.get(_KEY):
        made = "create it on this machine with `fedapps keys node FOLDER NAME`, and register its .pub on the server"
        _check_file(_KEY, path, lambda content: load_ssh_private_key(content, None), "private key of a node", made)
    if path := values.get(_TRUSTED):
        made = "copy ca.crt from the server's folder of certificates"
        certificates = _check_file(_TRUSTED, path, load_pem_x509_certificates, "certificate", made)
        check_expiry(certificates, f"{_TRUSTED} {path}")
    if config := values.get(_CONFIG):
        _check_data(config)
        _check_rules(config)
    _check_port(values.get(_HOST, _LOOPBACK), values.get(_PORT, _FLOWERS_PORT))


def _values(options: Sequence[str]) -> Mapping[str, str]:
    """The values of the options that are checked."""
    values = {}
    for option, after in zip(options, [*options[1:], ""], strict=True):
        name, equals, value = option.partition("=")
        if name in _OPTIONS:
            values[name] = value if equals else after
    return values


def _check_file(option: str, path: str, read: Callable[[bytes], Any], kind: str, made: str) -> Any:
    """What ``read`` makes of the file."""
    try:
        return read(Path(path).expanduser().read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"{option} {path}: no such file; {made}") from error
    except OSError as error:
        raise ValueError(
            f"{option} {path}: {error.strerror}; give it to the user that runs the node (chown)"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{option} {path}: is not the {kind}; {made}") from error


def _check_data(config: str) -> None:
    """The folder of the node's data, if the node config names one."""
    if not (match := _DATA.search(config)):
        return
    try:
        folder = tomllib.loads(f"folder = {match[1]}")["folder"]
    except tomllib.TOMLDecodeError:
        folder = None
    if not isinstance(folder, str):
        raise ValueError(
            f'{_CONFIG}: data-dir={shown(match[1])}: must be in double quotes, such as data-dir="/data/car-7"'
        )
    if not os.path.isdir(folder):  # a name that is too long is an error to pathlib
        raise ValueError(f"{_CONFIG}: data-dir={shown(folder)}: no such folder, or this user may not look into it")


def _check_rules(config: str) -> None:
    """The limits and the rules of the node's operator, which otherwise stop the node at its first message."""
    try:
        if (keys := parse_config_args([config])) is None:
            return  # the node checks them at its first message
        _check_keys(keys)
        NodeLimits.of(keys)
        NodeRules.of(keys)
        SecureRules.of(keys).check_files()
        check_commands(keys)
    except (ClickException, ValueError) as error:
        raise ValueError(f"{_CONFIG}: {error}") from error


def _check_keys(keys: Iterable[str]) -> None:
    """Raise ``ValueError`` if a key looks like a misspelt one, which would leave a rule out without an error.

    Any other unknown key is one of another app that the node serves, too.
    """
    meant = {key: did_you_mean(key.lower(), NODE_KEYS, cutoff=_MISSPELT) for key in keys if key not in NODE_KEYS}
    if misspelt := [f"{key}: unknown{question}" for key, question in meant.items() if question]:
        raise ValueError(
            f"{' '.join(misspelt)} Correct the name; a key of another app needs a name that is less like one of these"
        )


def _check_port(host: str, port: str) -> None:
    """The port of the node's worker processes, if it is a number; Flower refuses others."""
    if not port.isdecimal():
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"{_PORT} {port}: cannot be used at {host} ({error}); each node on a machine needs a port of its own, "
                "such as 9095"
            ) from error


#: What Flower takes for a key: it leaves out others without an error, such as ``#`` and an empty one.
_CONFIG_KEY = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_SUPERNODE, _SUPEREXEC, _WORKER = "flower-supernode", "flower-superexec", "flwr-clientapp"
#: Memory of the process that has imported them and the app, with the CUDA build of torch.
_PRELOADED_BYTES = 400_000_000


@dataclass(frozen=True)
class SuperNode:
    """How to run a SuperNode.

    Parameters
    ----------
    libraries : sequence of str
        Modules that workers need; those that are not installed are skipped. They and the app stay in memory between
        messages; without any, every worker imports what it needs.
    poll_interval : float
        Seconds between two polls for messages while these come, above 0 and at most Flower's 3.
    plain : bool
        Run Flower's own command, which has neither.

    Raises
    ------
    ValueError
        ``poll_interval`` is out of range.
    """

    libraries: Sequence[str] = LIBRARIES
    poll_interval: float = POLL_INTERVAL
    plain: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.poll_interval <= POLL_INTERVAL:
            raise ValueError(
                f"poll interval = {self.poll_interval:g} s: must be above 0 and at most Flower's {POLL_INTERVAL:g} s"
            )

    @classmethod
    def on_this_machine(cls, count: int, libraries: Sequence[str] = LIBRARIES, *, plain: bool = False) -> "SuperNode":
        """The settings of each of ``count`` nodes of one machine, whose workers need ``libraries``.

        A few nodes poll more often than Flower's, which suit remote machines; the polling of many would take CPU time
        from those that train. Libraries are imported once per node, and not for every message, if those of all nodes
        fill at most half of the memory.
        """
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        preloaded = libraries if count * _PRELOADED_BYTES <= memory / 2 else ()
        return cls(preloaded, min(1.0, max(0.2, 0.05 * count)), plain)

    def command(self, options: Sequence[str]) -> list[str]:
        """The command line of a SuperNode with these options of ``flower-supernode``.

        A node config in a file is read here and passed as text, because Flower reads no TOML with a byte-order mark.

        Raises
        ------
        ValueError
            The file of the node config cannot be read, or has a value of another kind than Flower's.
        """
        changed = list(options)
        for index, option in enumerate(options):
            name, equals, value = option.partition("=")
            after = index > 0 and options[index - 1] == _CONFIG
            if option.endswith(".toml") and (after or (equals and name == _CONFIG)):
                text = _as_text(Path(option if after else value).expanduser())
                changed[index] = text if after else f"{name}={text}"
        if self.plain:
            return [_SUPERNODE, *changed]
        return [sys.executable, "-P", "-m", __name__, f"{self.poll_interval:g}", ",".join(self.libraries), *changed]


def _as_text(path: Path) -> str:
    """The node config in a TOML file as ``key=value`` pairs in Flower's notation."""
    pairs = []
    table = read_toml(path)
    try:
        flat = flattened(table)
    except ValueError as error:
        raise ValueError(f"{_CONFIG} {path}: {error}") from error
    for key, value in flat.items():
        if not isinstance(value, (bool, int, float, str)) or value in (inf, -inf) or value != value:
            allowed = "must be a finite number, a string, true or false"
            raise ValueError(f"{_CONFIG} {path}: {key} = {shown(value)}: {allowed}")
        if not _CONFIG_KEY.fullmatch(key):
            allowed = "must be of letters from A to Z, digits, hyphens and underscores, with dots between its parts"
            raise ValueError(f"{_CONFIG} {path}: the key {key!r}: {allowed}")
        if beside := sorted(other for other in flat if other.startswith(f"{key}.")):
            raise ValueError(f"{_CONFIG} {path}: {key} is a value and has keys of its own: {', '.join(beside)}")
        pairs.append(f"{key}={_quoted(value) if isinstance(value, str) else json.dumps(value)}")
    return " ".join(pairs)


def _quoted(text: str) -> str:
    """A text as a TOML string without an escaped quote, at which Flower would end it."""
    parts = (json.dumps(part, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f") for part in text.split('"'))
    return '"' + "\\u0022".join(parts) + '"'


def main() -> None:
    """Run the SuperNode until it is stopped."""
    interval, libraries, *options = sys.argv[1:]
    with quick_imports():  # before the forks, which then share its memory
        command, *_ = map(load_command, (_SUPERNODE, _SUPEREXEC, _WORKER))
        with suppress(ImportError):
            import_module("httpcore")  # Flower imports it with the first request of a process
    if line := fallback("supernode"):
        print(line, file=sys.stderr, flush=True)
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        sys.argv = [_SUPERNODE, *options]
        command()
        return
    ask_again_after()
    ask_again_after_errors()
    reading, writing = os.pipe()
    superexec = Fork(_SUPEREXEC, partial(_run_superexec, [name for name in libraries.split(",") if name], reading))
    os.set_blocking(writing, False)
    poll_every(float(interval))
    call_on_work(partial(_wake, writing))
    answer_lost_messages()
    run_flower(_SUPERNODE, options, replace=_SUPEREXEC, start=superexec.start)


def _wake(pipe: int) -> None:
    with suppress(OSError):  # it is full, or nobody reads it
        os.write(pipe, b".")


def _wait(pipe: int, seconds: float) -> None:
    """Wait until the pipe has a byte, at most ``seconds``."""
    if select.select([pipe], [], [], seconds)[0]:
        os.read(pipe, 4096)


def _run_superexec(libraries: Sequence[str], pipe: int) -> None:
    """Run the SuperExec of a node, with the arguments in the first line of the standard input, until its node ends."""
    name_process(_SUPEREXEC)
    # Flower's SuperExec raises it when its node has ended. A job in the background would ignore it and stay.
    signal.signal(signal.SIGINT, lambda *_: sys.exit())
    if call := sys.stdin.readline():
        workers = Fork(_WORKER, partial(_serve_workers, libraries))
        wait_for_work(partial(_wait, pipe))
        run_flower(_SUPEREXEC, json.loads(call), replace=_WORKER, start=workers.start)


def _serve_workers(libraries: Sequence[str]) -> None:
    reuse_installed_apps()
    serve(_WORKER, libraries, last_app)


if __name__ == "__main__":
    run_and_exit(main)
