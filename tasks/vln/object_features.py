"""Object features: what stands in for pictures where the licence of Matterport's pictures is not at hand.

Each of the 36 views of a viewpoint is described by annotations: the objects in it, those that viewpoints in sight have,
how far other viewpoints are, and which rooms they seem to be in. Semantic features generalise to unseen houses at least
as well as those of a convolutional network (Zhang et al., Diagnosing the Environment Bias in Vision-and-Language
Navigation, IJCAI 2020), but results with them are not those of a robot that sees pixels.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from fedapps.sim.seeding import generator
from fedapps.tasks.profiles import DataError

from .connectivity import Graph
from .geometry import VIEWS
from .objects import BOXES_FILE, CLASSES, ObjectViews, read_boxes, read_classes, read_positions
from .rooms import ROOMS, ROOMS_FILE, RoomClassifier, read_rooms, train_classifier
from .surroundings import DECAY, RANGE, Surroundings, in_views, surroundings

GEOMETRY = 4
BLOCKS: Mapping[str, int] = {"own": len(CLASSES), "propagated": len(CLASSES), "geometry": GEOMETRY, "room": len(ROOMS)}
WIDTH = sum(BLOCKS.values())


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
    for here in range(len(graph.viewpoints)):
        seen = np.flatnonzero(graph.visible[here])
        offsets = graph.positions[seen] - graph.positions[here]
        distance = np.linalg.norm(offsets, axis=1)
        shown = in_views(offsets).astype(float)
        count = shown.sum(axis=0)
        any_shown = count > 0
        nearest = np.where(shown > 0, distance[:, None], np.inf).min(axis=0, initial=np.inf)
        mean = (shown * distance[:, None]).sum(axis=0) / np.maximum(count, 1)
        geometry = np.stack(
            [
                np.log1p(count),
                np.log1p((shown * graph.navigable[here, seen][:, None]).sum(axis=0)),
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
