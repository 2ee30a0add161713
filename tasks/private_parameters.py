"""The parameters that a method keeps on each node. This module imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivateParameters:
    """The parameters that never leave their node.

    Parameters
    ----------
    patterns : tuple of str
        Glob patterns of the names. All other parameters are shared. ``("*",)`` keeps everything private.
    own_start : bool
        Whether each node initialises its private parameters differently. Otherwise all nodes start from the same
        values.
    """

    patterns: tuple[str, ...] = ()
    own_start: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is shared."""
        return "*" in self.patterns
