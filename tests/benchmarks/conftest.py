import logging

import pytest


@pytest.fixture(autouse=True)
def _level_of_flowers_log():
    """Benchmarks quieten Flower for the rest of their process, which here runs other tests."""
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)
