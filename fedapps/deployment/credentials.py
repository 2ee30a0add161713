"""``python -m fedapps keys``: make certificates and node keys for other machines, and say where each file belongs."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from .certificates import LOOPBACK, make_certificates
from .node_keys import make_key_pair

_HOST = re.compile(r"[A-Za-z0-9*][A-Za-z0-9.-]*")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def issue_certificates(folder: Path, hosts: Sequence[str], days: int) -> str:
    """Write the certificates of a SuperLink into ``folder``.

    They are also valid for the loopback addresses, which ``flwr`` and the SuperLink's child processes use on the
    same machine.

    Parameters
    ----------
    folder : Path
        Where to write the files; created if missing.
    hosts : sequence of str
        Host names and IP addresses of the SuperLink.
    days : int
        Validity in days, at least 1.

    Returns
    -------
    str
        Text that lists the files and where each belongs.

    Raises
    ------
    ValueError
        If a host is neither a name nor an IP address, ``days`` is below 1, or ``folder`` already has certificates.
    """
    for host in hosts:
        _check_host(host)
    named = [*dict.fromkeys([*hosts, *LOOPBACK])]
    _refuse_to_replace(
        folder / "superlink.key", "nodes trust the existing ca.crt, so write the new certificates to a new folder"
    )
    files = make_certificates(folder, named, days)
    until = datetime.now(UTC) + timedelta(days=days)
    return "\n".join(
        [
            f"certificates for {', '.join(named)}, valid until {until:%Y-%m-%d}:",
            f"  {files.ca}: public; copy it to every node and to every machine that calls flwr",
            f"  {files.certificate}: public; keep it on the SuperLink's machine",
            f"  {files.key}: SECRET; keep it on the SuperLink's machine. Anybody who has it can impersonate the server",
        ]
    )


def issue_node_key(folder: Path, name: str) -> str:
    """Write the key pair of the node ``name`` into ``folder``.

    Returns
    -------
    str
        Text that lists the files and where each belongs.

    Raises
    ------
    ValueError
        If ``name`` has other characters than letters, digits, '-', '_' and '.', or ``folder`` already has its key.
    """
    if not _NODE.fullmatch(name):
        raise ValueError(f"NAME = {name!r}: must consist of letters, digits, '-', '_' and '.', such as car-7")
    _refuse_to_replace(
        folder / f"{name}.key", f"the node may be registered with it; give the new key another name, such as {name}-2"
    )
    pair = make_key_pair(folder, name)
    return "\n".join(
        [
            f"key pair of the node {name}:",
            f"  {pair.private}: SECRET; keep it on the node. Anybody who has it can impersonate the node",
            f"  {pair.public}: public; copy it to a machine that calls flwr, and register the node there:",
            f"    flwr supernode register {pair.public} CONNECTION",
        ]
    )


def _check_host(host: str) -> None:
    """Raise ``ValueError`` if ``host`` is neither a name nor an IP address, e.g. a URL or an address with a port."""
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"--host {host!r}: must be a name or an IP address without scheme and port, such as fl.example.org"
            ) from None


def _refuse_to_replace(path: Path, advice: str) -> None:
    if path.exists():
        raise ValueError(f"{path} exists: {advice}")
