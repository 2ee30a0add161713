"""What a method of federated learning leaves to each node. This module imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivateParameters:
    """The parameters that never leave their node.

    Parameters
    ----------
    patterns : tuple of str
        Glob patterns of the names; all other parameters are shared. ``("*",)`` keeps everything private.
    own_start : bool
        Whether each node starts from its own values for them; otherwise all nodes start alike.
    """

    patterns: tuple[str, ...] = ()
    own_start: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is shared."""
        return "*" in self.patterns
