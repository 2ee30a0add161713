"""How many examples a node is believed to have."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from logging import WARNING

from flwr.common.logger import log

from .profiles import Profile
from .round_records import RoundStep
from .validation import LARGEST_COUNT


@dataclass(frozen=True)
class ExampleLimits:
    """What nodes may claim to have, in their profiles and in their replies: it decides how often they are drawn, and
    what they weigh in means. A node that tells no number in its profile is bound by ``most`` alone.

    Parameters
    ----------
    most : int
        The most examples that any node can have, ≥ 0; 0 is no bound (other than 2^53). A profile that claims more
        counts as one that says nothing; a reply that does is refused.
    growing : bool
        Whether nodes may come to have more examples to train on than their profiles said, as where they collect them.
        If not, a train reply that claims more is refused.
    drawn : int
        So many, ≥ 0, may be claimed by a train reply whatever the profile said: the examples that a node draws with
        replacement (:class:`~strategies.virtual_clients.VirtualClients`).
    """

    most: int = 0
    growing: bool = True
    drawn: int = 0

    def __post_init__(self) -> None:
        for name, value in (("most", self.most), ("drawn", self.drawn)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} = {value!r}: must be an integer of at least 0")

    def reason_against(self, num_examples: float, profile: Profile, phase: RoundStep) -> str | None:
        """Why a reply of ``phase`` that claims ``num_examples`` is not believed; ``None`` if it is."""
        most = self.most or LARGEST_COUNT
        if num_examples > most:
            return f"claims {num_examples:g} examples: at most {most} are believed"
        said = profile.num_examples
        if phase == "train" and not self.growing and said is not None and num_examples > max(said, self.drawn):
            return f"claims {num_examples:g} examples, but its profile said {said}"
        return None

    def believed(self, profiles: Iterable[Profile]) -> list[Profile]:
        """The profiles, without the number of examples where it is above ``most``, with a warning."""
        most = self.most or LARGEST_COUNT
        believed = []
        for profile in profiles:
            if profile.num_examples is not None and profile.num_examples > most:
                log(WARNING, "node %s says it has %s examples: more than %s", profile.key, profile.num_examples, most)
                profile = replace(profile, num_examples=None)
            believed.append(profile)
        return believed
