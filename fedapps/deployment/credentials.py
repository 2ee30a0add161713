"""``python -m fedapps keys``: certificates and node keys for other machines, and what goes where."""

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
    """Write a SuperLink's certificates into ``folder``; the text says what goes where.

    They are good for ``hosts`` and for the loopback, by which the SuperLink's own processes and ``flwr`` on its machine
    reach it. Raises ``ValueError`` for something that is no host, and where ``folder`` has certificates already.
    """
    for host in hosts:
        _check_host(host)
    named = [*dict.fromkeys([*hosts, *LOOPBACK])]
    _refuse_to_replace(
        folder / "superlink.key", "nodes trust the ca.crt that they have, so make the new ones in a new folder"
    )
    files = make_certificates(folder, named, days)
    until = datetime.now(UTC) + timedelta(days=days)
    return "\n".join(
        [
            f"certificates for {', '.join(named)}, good until {until:%Y-%m-%d}:",
            f"  {files.ca}: to every node, and to whoever calls flwr. It is no secret",
            f"  {files.certificate}: stays with the SuperLink",
            f"  {files.key}: stays with the SuperLink, SECRET: whoever has it can pose as the server",
        ]
    )


def issue_node_key(folder: Path, name: str) -> str:
    """Write the key pair of the node ``name`` into ``folder``; the text says what goes where.

    Raises ``ValueError`` for a name that is no file's, and where the node has a key there already.
    """
    if not _NODE.fullmatch(name):
        raise ValueError(f"NAME = {name!r}: must be letters, digits, '-', '_' and '.', such as car-7")
    _refuse_to_replace(
        folder / f"{name}.key", f"the SuperLink knows the node by it; for a new key take another name, such as {name}-2"
    )
    pair = make_key_pair(folder, name)
    return "\n".join(
        [
            f"key of the node {name}:",
            f"  {pair.private}: stays with the node, SECRET: whoever has it can pose as the node",
            f"  {pair.public}: to where flwr is called. It is no secret. The SuperLink knows the node once you ran",
            f"    flwr supernode register {pair.public} CONNECTION",
        ]
    )


def _check_host(host: str) -> None:
    """Raise ``ValueError`` for what is neither a name nor an IP address, such as a URL or an address with a port."""
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"--host {host!r}: must be a name or an IP address, without scheme and port, such as fl.example.org"
            ) from None


def _refuse_to_replace(path: Path, advice: str) -> None:
    if path.exists():
        raise ValueError(f"{path} exists: {advice}")
