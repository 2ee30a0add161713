"""What is around a viewpoint, projected from the annotations of the viewpoints it sees.

REVERIE annotates only objects within 3 m of a viewpoint. An approximation of what is seen further off takes the objects
of the viewpoints in sight, and where they would appear from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .connectivity import Graph
from .geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, directions, turned
from .objects import UNKNOWN_RANGE, ObjectViews

RANGE = 6.0  # metres to viewpoints whose objects are looked at from here
DECAY = 3.0  # metres over which the weight of what is seen falls to 1/e
WINDOW = np.radians((30.0, 25.0))  # from a view's centre in heading and in elevation, within which it shows a place


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The objects around one viewpoint, M in all, each of them once.

    ``label [M]`` are their numbers in the house's labels, ``distance [M]`` metres, ``in_view [M, 36]`` whether a view
    shows them, ``own [M]`` whether they are annotated at this viewpoint.
    """

    label: np.ndarray
    distance: np.ndarray
    in_view: np.ndarray
    own: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """How much each object counts, from 1 for what is here down to 0 for what is far."""
        weight: np.ndarray = np.exp(-self.distance / DECAY)
        return weight


def in_views(offsets: np.ndarray) -> np.ndarray:
    """Which views show places at some offsets ``[M, 3]`` in metres from the camera, bool ``[M, 36]``."""
    heading, elevation = directions(offsets)
    apart = np.abs(turned(heading[:, None] - VIEW_HEADINGS)), np.abs(elevation[:, None] - VIEW_ELEVATIONS)
    shown: np.ndarray = (apart[0] <= WINDOW[0]) & (apart[1] <= WINDOW[1])
    return shown


def surroundings(
    graph: Graph, views: ObjectViews, positions: Mapping[tuple[str, str], np.ndarray]
) -> list[Surroundings]:
    """What is around each viewpoint of a house.

    An object is where it was triangulated; otherwise in its direction from the viewpoint that has it, or from the
    nearest one of several, at :data:`UNKNOWN_RANGE`.
    """
    rows, rays = views.bearings()
    viewpoint, thing, label = views.viewpoint[rows], views.object[rows], views.label[rows]
    places = graph.positions[viewpoint] + UNKNOWN_RANGE * rays
    for number, name in enumerate(views.objects):
        known = positions.get((graph.scan, name))
        if known is not None:
            places[thing == number] = known
    between = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=-1)
    near = graph.visible & (between <= RANGE)
    np.fill_diagonal(near, True)
    found = []
    for here in range(len(graph.viewpoints)):
        seen = np.flatnonzero(near[here, viewpoint])
        seen = seen[np.argsort(between[here, viewpoint[seen]], kind="stable")]
        seen = seen[np.unique(thing[seen], return_index=True)[1]]
        offsets = places[seen] - graph.positions[here]
        found.append(
            Surroundings(label[seen], np.linalg.norm(offsets, axis=1), in_views(offsets), viewpoint[seen] == here)
        )
    return found
