"""Limits of the numbers of examples that nodes report."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from logging import WARNING

from flwr.common.logger import log

from .parameter_checks import require_integer
from .profiles import Profile
from .round_records import RoundStep
from .validation import LARGEST_COUNT


@dataclass(frozen=True)
class ExampleLimits:
    """Limits of the numbers of examples in profiles and replies.

    These numbers determine how often nodes are drawn and their weights in means. Only ``maximum`` limits a node whose
    profile states no number.

    Parameters
    ----------
    maximum : int
        ≥ 0. Reject numbers above this; 0 allows numbers up to 2^53. A number that is too large is removed from a
        profile, and a reply with one is refused.
    may_grow : bool
        Whether nodes can train on more examples than their profiles state, for example because they collect more. If
        false, train replies with a larger number are refused.
    drawn : int
        ≥ 0. Always accept train replies with up to this number, which nodes draw with replacement
        (:class:`~fedapps.strategies.virtual_clients.VirtualClients`).

    Raises
    ------
    ValueError
        A limit is not an integer of at least 0.
    """

    maximum: int = 0
    may_grow: bool = True
    drawn: int = 0

    def __post_init__(self) -> None:
        require_integer("maximum", self.maximum, least=0)
        require_integer("drawn", self.drawn, least=0)

    def refusal_reason(self, num_examples: float, profile: Profile, phase: RoundStep) -> str | None:
        """Why a reply of ``phase`` with ``num_examples`` must be refused, ``None`` if it is accepted."""
        maximum = self.maximum or LARGEST_COUNT
        if num_examples > maximum:
            return f"num-examples is {num_examples:g}: at most {maximum} are accepted"
        stated = profile.num_examples
        if phase == "train" and not self.may_grow and stated is not None and num_examples > max(stated, self.drawn):
            return f"num-examples is {num_examples:g}, but the profile states {stated}"
        return None

    def apply_to(self, profiles: Iterable[Profile]) -> list[Profile]:
        """The profiles; numbers of examples above ``maximum`` are replaced by ``None``, with a warning."""
        maximum = self.maximum or LARGEST_COUNT
        limited = []
        for profile in profiles:
            stated = profile.num_examples
            if stated is not None and stated > maximum:
                log(WARNING, "node %s: num-examples is %s, above %s; ignored", profile.key, stated, maximum)
                profile = replace(profile, num_examples=None)
            limited.append(profile)
        return limited
