"""Checks of a SuperNode's options before it starts, which with Flower end in a traceback or in a node without data."""

import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from click import ClickException
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from cryptography.x509 import load_pem_x509_certificates

from fedapps.base.text_files import shown
from fedapps.clients.rules import NodeLimits, NodeRules
from fedapps.sim.flower_internals import parse_config_args

_KEY, _TRUSTED = "--auth-supernode-private-key", "--root-certificates"
_CONFIG, _HOST, _PORT = "--node-config", "--host", "--port"
_OPTIONS = (_KEY, _TRUSTED, _CONFIG, _HOST, _PORT)
_LOOPBACK, _FLOWERS_PORT = "127.0.0.1", "9094"
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
        A file cannot be read or holds something else, the data folder is missing, a limit or a rule in the node
        config cannot be used, or the port is taken.
    """
    values = _values(options)
    if path := values.get(_KEY):
        made = "create it on this machine with `fedapps keys node FOLDER NAME`, and register its .pub on the server"
        _check_file(_KEY, path, lambda content: load_ssh_private_key(content, None), "private key of a node", made)
    if path := values.get(_TRUSTED):
        made = "copy ca.crt from the server's folder of certificates"
        _check_file(_TRUSTED, path, load_pem_x509_certificates, "certificate", made)
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


def _check_file(option: str, path: str, read: Callable[[bytes], Any], kind: str, made: str) -> None:
    try:
        read(Path(path).expanduser().read_bytes())
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
        keys = parse_config_args([config])
        NodeLimits.of(keys)
        NodeRules.of(keys)
    except (ClickException, ValueError) as error:
        raise ValueError(f"{_CONFIG}: {error}") from error


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
