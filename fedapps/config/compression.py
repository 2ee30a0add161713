"""The key ``compression``: which compression it names, and what cannot be combined with one."""

from collections.abc import Iterator, Mapping

from fedapps.methods.base import Conflict, Method
from fedapps.strategies import Compression
from fedapps.strategies.compression import compression_by_name

from .run_config import RunConfig


def compression_of(run: RunConfig) -> Compression | None:
    """The strategy's part, ``None`` without compression."""
    return None if run.compression == "none" else compression_by_name(run.compression, run.compression_share)


def compression_conflicts(methods: Mapping[str, Method], runs: Mapping[str, RunConfig]) -> Iterator[Conflict]:
    """What :func:`fedapps.config.conflicts.conflicts` yields for ``compression``."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for label, method in methods.items():
        if runs[label].compression != "none" and (reason := method.compression_conflict()):
            by_reason.setdefault((runs[label].compression, reason), []).append(label)
    for (name, reason), labels in by_reason.items():
        yield (
            {"compression", "methods"},
            f"compression = {name!r}: leave out of methods {', '.join(labels)}, or set compression = 'none': {reason}",
        )
