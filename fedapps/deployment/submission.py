"""The command ``flwr run``: what it submits, and its connection to a SuperLink."""

import os
import shutil
import ssl
import subprocess
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import tomli_w
from cryptography.x509 import load_pem_x509_certificates
from pathspec import GitIgnoreSpec

from fedapps.base.processes import tool
from fedapps.sim.flower_internals import app_patterns, fallback

from .credentials import check_expiry

#: The name of the connection to the SuperLink in Flower's config.
CONNECTION = "fedapps"
_START_TIMEOUT = 60.0


def submission(
    app: Path,
    home: Path,
    run_config: Mapping[str, bool | int | float | str],
    connection: str = CONNECTION,
    *,
    stream: bool = True,
) -> list[str]:
    """Return the ``flwr run`` command that submits ``app`` to a SuperLink, by default to that of :func:`connect`.

    With ``stream``, the command shows the log of the run. An empty ``connection`` is the default of Flower's config.

    It submits a copy of ``app`` in ``home``, because ``flwr`` looks at every file below the folder, which takes seconds
    if there is a Python environment in it.
    """
    overrides = home / "run-config.toml"
    overrides.write_text(tomli_w.dumps(dict(run_config)), encoding="utf-8")
    copy = home / "app"
    if line := fallback("submission"):
        print(line, flush=True)
        copy = app
    else:
        shutil.rmtree(copy, ignore_errors=True)
        copy_app(app, copy)
    named = [connection] if connection else []
    streamed = ["--stream"] if stream else []
    return [tool("flwr"), "run", str(copy), *named, *streamed, "--run-config", str(overrides)]


def copy_app(app: Path, copy: Path) -> None:
    """Copy the files that can belong to a Flower app: without folders that Flower or ``.gitignore`` excludes."""
    include, exclude = app_patterns()
    suffixes = {Path(pattern).suffix for pattern in include} - {""}
    ignored = app / ".gitignore"
    lines = ignored.read_text(encoding="utf-8").splitlines() if ignored.exists() else []
    excluded = GitIgnoreSpec.from_lines([*exclude, "!/pyproject.toml", *lines])
    for folder, folders, files in os.walk(app):
        path = Path(folder).relative_to(app)
        folders[:] = [name for name in folders if not excluded.match_file(f"{path / name}/")]
        for name in files:
            wanted = Path(name).suffix in suffixes or name == "LICENSE"
            if wanted and not excluded.match_file(path / name) and not (Path(folder) / name).is_symlink():
                (copy / path).mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(folder) / name, copy / path / name)


def connect(home: Path, address: str, ca: Path | None = None) -> None:
    """Configure ``flwr``, with ``home`` as its ``FLWR_HOME``, for the SuperLink at ``address`` (host:port).

    ``ca`` is the certificate of the authority that signed the SuperLink's certificate. Without it the connection is not
    encrypted.
    """
    trust = {"root-certificates": str(ca)} if ca else {"insecure": True}
    connection = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **trust}}}
    (home / "config.toml").write_text(tomli_w.dumps(connection), encoding="utf-8")


def check_certificates(connection: str) -> None:
    """Check that the certificates that ``flwr`` trusts for a connection in its config have not expired.

    An empty ``connection`` is the default of the config. What is missing or cannot be read is for ``flwr`` to report.

    Raises
    ------
    ValueError
        As :func:`check_expiry`.
    """
    file = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "config.toml"
    try:
        connections = tomllib.loads(file.read_text(encoding="utf-8"))["superlink"]
        path = str(connections[connection or connections["default"]]["root-certificates"])
        certificates = load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):
        return
    check_expiry(certificates, f"root-certificates = {path!r} in {file}")


def wait_until_healthy(superlink: subprocess.Popen[bytes], port: int, ca: Path | None = None) -> bool:
    """Wait until a SuperLink on the loopback responds. Return false if it exits or the timeout expires."""
    url = f"http{'s' if ca else ''}://127.0.0.1:{port}/health"
    trust = ssl.create_default_context(cafile=ca) if ca else None
    direct = build_opener(ProxyHandler({}), HTTPSHandler(context=trust))
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and superlink.poll() is None:
        try:
            with direct.open(url, timeout=1):
                return True
        except (URLError, OSError):
            time.sleep(0.1)
    return False
