"""A disk on which no large file can be written."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

ROOM = 10_000  # bytes


@contextmanager
def full_disk() -> Iterator[None]:
    """Within this context the system writes no more than ``ROOM`` bytes into a file of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
