"""What can be chosen about the social task."""

import re
from collections import Counter
from dataclasses import dataclass

from tasks.options import option
from tasks.profiles import DataError

#: Where a node of the compact graph is.
GEOMETRIES = ("cartesian", "polar")
#: Hidden layers where no number is given.
LAYERS = {"compact": 8, "relational": 3}


@dataclass(frozen=True)
class Options:
    """Options of the task "social"; the defaults are those of Guerdan and Gunes, 2022, Appendix A."""

    participants: str = option(
        "a,b,c,d;e,f,g,h;i,j,l,k",
        "whose ratings each node learns: nodes are separated by ';', the participants a node meets one after "
        "another by ','; each is a file <participant>.json",
    )
    source: str = option(
        "recorded",
        "recorded: ratings of people, in the folder data-dir; simulated: without a data-dir, ratings of simulated "
        "people with the names of the participants",
        choices=("recorded", "simulated"),
    )
    together: bool = option(False, "all of a node's participants at once, in one stage, not one after another")
    graph: str = option(
        "compact",
        "compact: robot, humans, objects, interactions, for the network of the paper; relational: also the room "
        "and its walls, edges of 11 types, for an R-GCN",
        choices=tuple(LAYERS),
    )
    geometry: str = option(
        "cartesian",
        "where a node of the compact graph is, besides its orientation: cartesian x and y, polar distance and angle",
        choices=GEOMETRIES,
    )
    augment: bool = option(True, "add the mirror image of every training scene, which doubles the training split")
    train_fraction: float = option(
        1.0,
        "share of each participant's training scenes that is used; smaller ones are part of larger ones",
        above=0,
        maximum=1,
    )
    split_seed: int = option(0, "seed of the split into training, validation and test scenes", minimum=0)
    hidden: int = option(32, "units of each hidden layer", minimum=1)
    layers: int = option(
        0, "hidden layers of the network; 0: the paper's 8 on compact graphs, 3 on relational ones", minimum=0
    )
    world_scenes: int = option(150, "scenes per simulated participant", minimum=20)

    def depth(self) -> int:
        """Hidden layers of the network, with the graph's default filled in."""
        return self.layers or LAYERS[self.graph]

    def nodes(self) -> tuple[tuple[str, ...], ...]:
        """The participants of every node, in the order in which it meets them.

        Raises :class:`DataError` for a name that is no file name, for one named twice, and, unless ``together``,
        for nodes with unequally many participants.
        """
        groups = tuple(tuple(name.strip() for name in group.split(",")) for group in self.participants.split(";"))
        names = [name for group in groups for name in group]
        if wrong := [name for name in names if not re.fullmatch(r"[\w-]+", name)]:
            raise DataError(
                f"participants = {self.participants!r}: {wrong[0]!r} is no participant; write names of letters, "
                "digits, '_' and '-', with ',' between those of a node and ';' between nodes"
            )
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise DataError(f"participants = {self.participants!r}: {', '.join(twice)} named twice; name each once")
        if not self.together and len({len(group) for group in groups}) > 1:
            lengths = "; ".join(f"{','.join(group)} has {len(group)}" for group in groups)
            raise DataError(
                f"participants = {self.participants!r}: every node must meet equally many participants, but "
                f"{lengths}; even them out, or set together = true to learn all of a node's at once"
            )
        return groups
