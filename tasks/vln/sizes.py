"""Widths of the networks of the agent and the speaker."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Widths of the networks; the defaults are the paper's."""

    vocabulary: int = 992
    features: int = 2048
    words: int = 256
    hidden: int = 512
    action: int = 64
