"""What all tests of strategies share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _identity(flower_identity: None) -> None:
    """Messages can be made outside a Flower process."""
