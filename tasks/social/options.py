"""Options of the social task."""

import re
from collections import Counter
from dataclasses import dataclass

from fedapps.base.errors import DataError
from fedapps.base.options import option

#: The coordinates of the nodes of the compact graph.
GEOMETRIES = ("cartesian", "polar")
#: The default number of hidden layers for each representation.
LAYERS = {"compact": 8, "relational": 3}


@dataclass(frozen=True)
class Options:
    """Options of the task "social". The defaults are those of Guerdan and Gunes, 2022, Appendix A."""

    participants: str = option(
        "a,b,c,d;e,f,g,h;i,j,l,k",
        "The participants whose ratings each node learns: ';' separates nodes, ',' separates the participants "
        "that a node meets in sequence; the ratings of each are in <participant>.json",
        data=True,
    )
    source: str = option(
        "recorded",
        "recorded: ratings by people, read from data-dir; simulated: ratings by simulated people, generated if "
        "data-dir is not set",
        choices=("recorded", "simulated"),
        data=True,
    )
    together: bool = option(
        False, "Train on all participants of a node at once, in one stage, instead of one after another", data=True
    )
    graph: str = option(
        "compact",
        "compact: robot, humans, objects and interactions, for the paper's network; relational: also the room and "
        "its walls, with 11 types of edges, for an R-GCN",
        choices=tuple(LAYERS),
    )
    geometry: str = option(
        "cartesian",
        "Coordinates of a node in the compact graph, besides its orientation: cartesian (x and y) or polar "
        "(distance and angle)",
        choices=GEOMETRIES,
    )
    augment: bool = option(True, "Add the mirror image of every training scene, which doubles the training split")
    train_fraction: float = option(
        1.0,
        "Share of each participant's training scenes to use; smaller shares are subsets of larger ones",
        above=0,
        maximum=1,
        data=True,
    )
    split_seed: int = option(0, "Seed of the split into training, validation and test scenes", minimum=0)
    hidden: int = option(32, "Units of each hidden layer", minimum=1)
    layers: int = option(
        0, "Hidden layers of the network; 0 = the default, 8 for compact graphs and 3 for relational graphs", minimum=0
    )
    world_scenes: int = option(150, "Scenes per simulated participant", minimum=20, data=True)

    def depth(self) -> int:
        """Return the number of hidden layers, with the default of the graph filled in."""
        return self.layers or LAYERS[self.graph]

    def nodes(self) -> tuple[tuple[str, ...], ...]:
        """Return the participants of every node, in the order in which the node meets them.

        Raises
        ------
        DataError
            A name is not a valid file name or occurs twice, or nodes have different numbers of participants although
            ``together`` is false.
        """
        groups = tuple(tuple(name.strip() for name in group.split(",")) for group in self.participants.split(";"))
        names = [name for group in groups for name in group]
        if wrong := [name for name in names if not re.fullmatch(r"[\w-]+", name)]:
            raise DataError(
                f"social.participants = {self.participants!r}: {wrong[0]!r} is not a valid name; use letters, digits, "
                "'_' and '-', separate the participants of a node by ',' and nodes by ';'"
            )
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise DataError(
                f"social.participants = {self.participants!r}: {', '.join(twice)} occurs twice; name each once"
            )
        if not self.together and len({len(group) for group in groups}) > 1:
            lengths = "; ".join(f"{','.join(group)} has {len(group)}" for group in groups)
            raise DataError(
                f"social.participants = {self.participants!r}: all nodes must have the same number of participants, "
                f"but {lengths}; change the lists, or set social.together = true to train on "
                "all participants of a node at once"
            )
        return groups
