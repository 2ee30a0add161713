"""Nodes that a guarded SuperLink does not know, or that do not encrypt."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from fedapps.deployment.credentials import make_key_pair
from fedapps.deployment.superlink import Deployment, deployment


@contextmanager
def turned_away(folder: Path, *plain_text: str) -> Iterator[Deployment]:
    """A SuperLink with TLS and node keys that has refused three nodes.

    One has an unknown key, one has no key, and one does not encrypt. The log of the last one has one of the texts
    ``plain_text``.
    """
    with deployment(folder / "guarded", tls=True, auth=True) as guarded, deployment(folder / "plain") as plain:
        guarded.start_superlink()
        plain.fleet_port = guarded.fleet_port
        once = ("--max-retries", "1")  # and not for ever, as it is without
        refused = {
            guarded.start_supernode("stranger", {}, make_key_pair(folder / "unknown"), *once): ("Failed to activate",),
            guarded.start_supernode("keyless", {}, None, *once): ("must be registered",),
            plain.start_supernode("open", {}, None, *once): plain_text,
        }
        for started, reason in refused.items():
            assert started.process.wait() != 0
            told = started.log.read_text()
            assert any(text in told for text in reason), started.exit_report()
        with pytest.raises((URLError, OSError)):
            urlopen(f"http://127.0.0.1:{guarded.control_port}/health", timeout=5).close()
        assert guarded.count_online() == 0
        yield guarded
