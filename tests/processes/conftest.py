"""One federation for all tests of a session that need no other."""

from collections.abc import Iterator

import pytest

from fedapps.deployment.superlink import Deployment, deployment

NODES = 2


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A SuperLink with TLS and node keys, and SuperNodes that have the parts of whatever world a run needs."""
    with deployment(tmp_path_factory.mktemp("federation"), tls=True, auth=True) as fleet:
        fleet.start_superlink()
        own = {"num-partitions": NODES, "keep-model": True}
        fleet.start_supernodes([{"partition-id": index, **own} for index in range(NODES)])
        yield fleet
