"""Object features: what stands in for pictures where the licence of Matterport's pictures is not at hand.

Each of the 36 views of a viewpoint is described by annotations: the objects in it, those that viewpoints in sight have,
how far other viewpoints are, and which rooms they seem to be in. REVERIE annotates only objects within 3 m of a
viewpoint; those further off are approximated by the objects of the viewpoints in sight, where they would appear from
here. Semantic features generalise to unseen houses at least as well as those of a convolutional network (Zhang et al.,
Diagnosing the Environment Bias in Vision-and-Language Navigation, IJCAI 2020), but results with them are not those of a
robot that sees pixels. Features are kept on disk, under a key of everything they are made of.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator

from .connectivity import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, Graph, directions, graph_files, turned
from .features import (
    BOXES_FILE,
    CLASSES,
    CLASSES_FILE,
    POSITIONS_FILE,
    ROOMS,
    ROOMS_FILE,
    UNKNOWN_RANGE,
    ObjectViews,
    RoomClassifier,
    read_boxes,
    read_classes,
    read_positions,
    read_rooms,
    train_classifier,
)
from .instructions import cached, find_file, key_of

RANGE = 6.0  # metres to viewpoints whose objects are looked at from here
DECAY = 3.0  # metres over which the weight of what is seen falls to 1/e
WINDOW = np.radians((30.0, 25.0))  # from a view's centre in heading and in elevation, within which it shows a place
GEOMETRY = 4
BLOCKS: Mapping[str, int] = {"own": len(CLASSES), "propagated": len(CLASSES), "geometry": GEOMETRY, "room": len(ROOMS)}
WIDTH = sum(BLOCKS.values())
VERSION = 1  # raised when the same files come to give other features


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
    of_viewpoints = []
    for row in range(len(graph.viewpoints)):
        seen = np.flatnonzero(near[row, viewpoint])
        seen = seen[np.argsort(between[row, viewpoint[seen]], kind="stable")]
        seen = seen[np.unique(thing[seen], return_index=True)[1]]
        offsets = places[seen] - graph.positions[row]
        of_viewpoints.append(
            Surroundings(label[seen], np.linalg.norm(offsets, axis=1), in_views(offsets), viewpoint[seen] == row)
        )
    return of_viewpoints


def object_features(folder: Path, graphs: Mapping[str, Graph], label_width: int = 0) -> dict[str, np.ndarray]:
    """Features of every viewpoint of some houses.

    Parameters
    ----------
    folder : Path
        Holds ``bbox.json``, ``label_mpcat40.csv``, ``rooms.csv`` and perhaps ``objects3d.csv``.
    graphs : mapping of scans to Graph
        The houses; the room classifier learns from those among them that have labels.
    label_width : int
        Numbers of a fixed random projection of the labels' names, which are finer than their classes; 0 for none.

    Returns
    -------
    dict of float32 ndarrays [N, 36, D]
        By scan, D = 98 + ``label_width``: own objects (41), propagated objects (41), geometry (4), rooms (12), labels.

    Raises
    ------
    DataError
        A file is missing or malformed.
    """
    boxes = read_boxes(folder, graphs)
    if boxes is None:
        raise DataError(
            f"{folder}: no {BOXES_FILE}, of which vln.features = 'objects' are made; add it, or name a "
            "vln.feature-file and set vln.features to what it has"
        )
    classes, positions, rooms = read_classes(folder), read_positions(folder), read_rooms(folder)
    if not rooms:
        raise DataError(
            f"{folder}: no {ROOMS_FILE} with rooms of training houses, from which vln.features = 'objects' learn to "
            "tell rooms; add it, or name a vln.feature-file that was made where it is"
        )
    around = {scan: surroundings(graph, boxes[scan], positions) for scan, graph in graphs.items()}
    amounts = {scan: [_amounts(each, boxes[scan].labels) for each in around[scan]] for scan in graphs}
    labelled = [
        (amounts[scan][row], rooms[name])
        for scan, graph in graphs.items()
        for row, name in enumerate(f"{scan}_{viewpoint}" for viewpoint in graph.viewpoints)
        if name in rooms
    ]
    classifier = train_classifier([amount for amount, _ in labelled], [room for _, room in labelled])
    vectors = _label_vectors({label for each in boxes.values() for label in each.labels}, label_width)
    return {
        scan: np.concatenate(
            [
                _own(boxes[scan], classes, len(graph.viewpoints)),
                _propagated(around[scan], boxes[scan].labels, classes),
                _space(graph, classifier, amounts[scan]),
                _labels(boxes[scan], around[scan], vectors, label_width),
            ],
            axis=2,
        ).astype(np.float32)
        for scan, graph in graphs.items()
    }


def _amounts(around: Surroundings, labels: tuple[str, ...]) -> dict[str, float]:
    totals = np.bincount(around.label, weights=around.weight, minlength=len(labels))
    return {labels[number]: float(np.log1p(totals[number])) for number in np.flatnonzero(totals)}


def _classes_of(labels: Iterable[str], classes: Mapping[str, int]) -> np.ndarray:
    unlabeled = CLASSES.index("unlabeled")
    return np.array([classes.get(label, unlabeled) for label in labels], dtype=np.int64)


def _own(boxes: ObjectViews, classes: Mapping[str, int], size: int) -> np.ndarray:
    """How much of each view the objects of a class fill, ``[N, 36, 41]``."""
    block = np.zeros((size, VIEWS, len(CLASSES)))
    np.add.at(block, (boxes.viewpoint, boxes.view, _classes_of(boxes.labels, classes)[boxes.label]), boxes.area)
    return np.log1p(block)


def _propagated(around: list[Surroundings], labels: tuple[str, ...], classes: Mapping[str, int]) -> np.ndarray:
    """The objects of viewpoints in sight that are not this one's own, ``[N, 36, 41]``."""
    one_hot = np.eye(len(CLASSES))[_classes_of(labels, classes)]
    return np.stack([np.log1p((_shown(each, ~each.own)).T @ one_hot[each.label]) for each in around])


def _shown(around: Surroundings, which: np.ndarray) -> np.ndarray:
    """The weight of each object in each view, ``[M, 36]``, of those that ``which`` says."""
    shown: np.ndarray = around.in_view * (around.weight * which)[:, None]
    return shown


def _space(graph: Graph, classifier: RoomClassifier, amounts: list[dict[str, float]]) -> np.ndarray:
    """Geometry and rooms of the viewpoints that each view shows, ``[N, 36, 4 + 12]``.

    Geometry: the number of viewpoints, and of those one can walk to, both as log(1 + n); the nearest and the mean
    distance d as exp(-d / 3 m), 0 where there is none.
    """
    posterior = classifier.posterior(amounts)
    blocks = []
    for row in range(len(graph.viewpoints)):
        seen = np.flatnonzero(graph.visible[row])
        offsets = graph.positions[seen] - graph.positions[row]
        distance = np.linalg.norm(offsets, axis=1)
        shown = in_views(offsets).astype(float)
        count = shown.sum(axis=0)
        any_shown = count > 0
        nearest = np.where(shown > 0, distance[:, None], np.inf).min(axis=0, initial=np.inf)
        mean = (shown * distance[:, None]).sum(axis=0) / np.maximum(count, 1)
        geometry = np.stack(
            [
                np.log1p(count),
                np.log1p((shown * graph.navigable[row, seen][:, None]).sum(axis=0)),
                np.exp(-nearest / DECAY),
                np.exp(-mean / DECAY) * any_shown,
            ],
            axis=1,
        )
        weight = shown * (np.exp(-distance / DECAY) * (distance <= RANGE))[:, None]
        blocks.append(np.concatenate([geometry, np.log1p(weight.T @ posterior[seen])], axis=1))
    return np.stack(blocks)


def _label_vectors(labels: set[str], width: int) -> dict[str, np.ndarray]:
    """A vector for each label that depends on nothing but its name, so that all nodes have the same."""
    return {label: generator(0, "vln.label", label).standard_normal(width) / np.sqrt(max(width, 1)) for label in labels}


def _labels(
    boxes: ObjectViews, around: list[Surroundings], vectors: Mapping[str, np.ndarray], width: int
) -> np.ndarray:
    """The projected labels of all objects that each view shows, ``[N, 36, width]``."""
    if not width:
        return np.zeros((len(around), VIEWS, 0))
    table = np.array([vectors[label] for label in boxes.labels]).reshape(-1, width)
    every = [_shown(each, np.ones(len(each.label), dtype=bool)) for each in around]
    return np.stack([shown.T @ table[each.label] for shown, each in zip(every, around, strict=True)])


def cached_object_features(
    folder: Path, graphs: Mapping[str, Graph], scans: Sequence[str], label_width: int, cache: Path
) -> np.ndarray:
    """Object features of some houses, one after another, ``[V, 36, D]`` in float32.

    All houses of ``folder`` are made at once, as they share the room classifier, and kept in ``cache``.

    Raises
    ------
    DataError
        As :func:`~fedapps.tasks.vln.object_features.object_features`.
    """

    def compute(unfinished: Path) -> None:
        for scan, features in object_features(folder, graphs, label_width).items():
            np.save(unfinished / f"{scan}.npy", features)

    cache_folder = cached(cache, f"features-{key_of(_inputs(folder, label_width))}", compute)
    return np.concatenate([np.load(cache_folder / f"{scan}.npy") for scan in scans])


def _inputs(folder: Path, label_width: int) -> Iterator[tuple[str, bytes]]:
    yield "features", f"{VERSION} {label_width}".encode()
    named = [find_file(folder, name) for name in (BOXES_FILE, CLASSES_FILE, POSITIONS_FILE, ROOMS_FILE)]
    for path in (path for path in [*named, *graph_files(folder)] if path is not None and path.is_file()):
        yield path.name, path.read_bytes()
