"""What is seen at each viewpoint, out of the files that the field passes around: features of views, objects, rooms.

Viewpoints are named ``<scan>_<viewpoint>``. Of the features of the 36 views, an HDF5 file has a data set ``[36, D]``
under each name, a NumPy archive (``.npz``) an array, and a TSV file a line with the columns scan, viewpoint, image
width, image height, field of view and the base64 code of 36 x D float32 numbers, as the ResNet-152 features of
Room-to-Room.

Objects are REVERIE's boxes (Qi et al., CVPR 2020). ``bbox.json`` maps scan, viewpoint and object to ``[label, views,
boxes]``, a box ``[x, y, width, height]`` in pixels of a picture of 640 x 480 for each of the views.
``label_mpcat40.csv`` gives the class of each label, ``objects3d.csv`` where objects are that were triangulated from
several viewpoints. Any of them may be compressed.

The room of a viewpoint is judged by the objects around it. A multinomial logistic regression learns from the labels in
``rooms.csv`` whose column ``split`` is ``train``. The room that a viewpoint really has is never a feature: unseen
houses have no labels.
"""

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from fedapps.base.errors import DataError, listed, need
from fedapps.base.tables import read_table
from fedapps.base.text_files import UNREADABLE, arrays_in, open_text, read_json

from .connectivity import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, Graph, unit_vectors
from .instructions import find_file

#: Numbers per view of the features that have a name.
WIDTHS: Mapping[str, int] = {"resnet152": 2048, "clip-vit-b32": 512}
_LISTED = 10  # viewpoints that a message names


def read_features(path: Path, names: Sequence[str], width: int) -> np.ndarray:
    """Read the features of some viewpoints.

    Parameters
    ----------
    path : Path
        The file, of a kind told by its ending: ``.hdf5`` or ``.h5``, ``.npz``, ``.tsv`` (perhaps ``.gz`` or ``.xz``).
    names : sequence of str
        V viewpoints, as ``<scan>_<viewpoint>``.
    width : int
        Numbers per view, D.

    Returns
    -------
    float32 ndarray [V, 36, D]

    Raises
    ------
    DataError
        The file is missing or malformed, it lacks viewpoints, or its features have another width.
    """
    if not path.is_file():
        raise DataError(f"vln.feature-file = {str(path)!r}: no such file; name a file .hdf5, .npz or .tsv")
    rows = {name: row for row, name in enumerate(names)}
    features = np.zeros((len(names), VIEWS, width), dtype=np.float32)
    missing = set(names)
    for name, array in _arrays(path, rows):
        if array.shape != (VIEWS, width):
            raise DataError(
                f"{path}: the features of {name} have the shape {list(array.shape)}; expected [{VIEWS}, {width}]: set "
                "vln.features or vln.feature-width to what the file has"
            )
        if not np.isfinite(array).all():
            raise DataError(f"{path}: the features of {name} have a value that is not finite")
        if name not in missing:
            raise DataError(f"{path}: the features of {name} occur twice; keep one of the two")
        features[rows[name]] = array
        missing.discard(name)
    if missing:
        raise DataError(
            f"{path}: no features for {len(missing)} of {len(names)} viewpoints: {listed(sorted(missing), _LISTED)}"
        )
    return features


def _arrays(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".xz")]
    kind = suffixes[-1] if suffixes else ""
    try:
        if kind in (".hdf5", ".h5"):
            h5py = need("h5py", "vln", f"vln.feature-file = {str(path)!r}")
            with h5py.File(path) as file:
                yield from ((name, np.asarray(file[name], dtype=np.float32)) for name in wanted if name in file)
        elif kind == ".npz":
            yield from ((name, array.astype(np.float32)) for name, array in arrays_in(path, wanted))
        elif kind == ".tsv":
            yield from _lines(path, wanted)
        else:
            raise DataError(f"vln.feature-file = {str(path)!r}: expected a name that ends in .hdf5, .h5, .npz or .tsv")
    except (*UNREADABLE, ValueError, TypeError, KeyError, RuntimeError, MemoryError, struct.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {error}") from error


def _lines(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            cells = line.split("\t")
            if len(cells) != 6:
                raise DataError(f"{path}, line {number}: {len(cells)} columns; expected 6, separated by tabs")
            name = f"{cells[0]}_{cells[1]}"
            if name in wanted:
                values = np.frombuffer(base64.b64decode(cells[5]), dtype="<f4")
                yield name, values.reshape(VIEWS, -1)


BOXES_FILE, CLASSES_FILE, POSITIONS_FILE = "bbox.json", "label_mpcat40.csv", "objects3d.csv"
#: The classes of Matterport3D's mpcat40 without "void" (Chang et al., 3DV 2017).
CLASSES = (
    "wall", "floor", "chair", "door", "table", "picture", "cabinet", "cushion", "window", "sofa", "bed", "curtain",
    "chest_of_drawers", "plant", "sink", "stairs", "ceiling", "toilet", "stool", "towel", "mirror", "tv_monitor",
    "shower", "column", "bathtub", "counter", "fireplace", "lighting", "beam", "railing", "shelving", "blinds",
    "gym_equipment", "seating", "board_panel", "furniture", "appliances", "clothes", "objects", "misc", "unlabeled",
)  # fmt: skip
WIDTH, HEIGHT = 640, 480
FOCAL = HEIGHT / 2 / np.tan(np.pi / 6)  # pixels; the vertical field of view is 60 degrees
UNKNOWN_RANGE = 1.6  # metres to an object that was not triangulated
MAX_RESIDUAL = 5.0  # degrees between rays and the triangulated position, beyond which it is not trusted
ROOMS_FILE = "rooms.csv"
ROOMS = (
    "office", "lounge", "familyroom", "entryway", "dining_room", "living_room", "stairs", "kitchen", "porch",
    "bathroom", "bedroom", "hallway",
)  # fmt: skip
RIDGE = 3e-3  # times the squared weights, added to the mean cross-entropy
ITERATIONS = 60


@dataclass(frozen=True, eq=False)
class ObjectViews:
    """The boxes of one house: a row for each object in each view of each viewpoint.

    Attributes
    ----------
    viewpoint, object, label, view : int64 ndarrays [R]
        Numbers of the viewpoint in the graph, of the object in the house, of its label in ``labels``, of the view.
    area : ndarray [R]
        Of the box as a share of the picture.
    centre : ndarray [R, 2]
        Of the box, in pixels from the middle of the picture, right and up.
    cut : bool ndarray [R]
        Whether the box ends at the picture's edge, so that more of the object may lie beyond it.
    labels : tuple of str
        Labels of the house's objects.
    objects : tuple of str
        The objects' ids.
    """

    viewpoint: np.ndarray
    object: np.ndarray
    label: np.ndarray
    view: np.ndarray
    area: np.ndarray
    centre: np.ndarray
    cut: np.ndarray
    labels: tuple[str, ...]
    objects: tuple[str, ...]

    def bearings(self) -> tuple[np.ndarray, np.ndarray]:
        """One row for each object at each viewpoint, and the direction to it there.

        Returns
        -------
        rows : int64 ndarray [M]
            Of the box nearest to the middle of its picture, among those that are not cut off where there are any.
        directions : ndarray [M, 3]
            Unit vectors through the middle of these boxes.
        """
        order = np.lexsort((np.hypot(*self.centre.T), self.cut, self.object, self.viewpoint))
        pairs = np.stack([self.viewpoint[order], self.object[order]], axis=1)
        new = np.ones(len(order), dtype=bool)
        new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        rows = order[new]
        heading, elevation = VIEW_HEADINGS[self.view[rows]], VIEW_ELEVATIONS[self.view[rows]]
        right = np.stack([np.cos(heading), -np.sin(heading), np.zeros(len(rows))], axis=1)
        up = unit_vectors(heading, elevation + np.pi / 2)
        x, y = (self.centre[rows] / FOCAL).T
        rays = unit_vectors(heading, elevation) + x[:, None] * right + y[:, None] * up
        return rows, rays / np.linalg.norm(rays, axis=1, keepdims=True)


def read_boxes(folder: Path, graphs: Mapping[str, Graph]) -> dict[str, ObjectViews] | None:
    """The boxes of each house that has a graph; ``None`` without a file of boxes.

    Raises :class:`DataError` where the file is malformed. Viewpoints that the graph does not include are left out, and
    houses without boxes have none.
    """
    path = find_file(folder, BOXES_FILE)
    if path is None:
        return None
    boxes = read_json(path)
    try:
        return {scan: _object_views(graph, boxes.get(scan, {})) for scan, graph in graphs.items()}
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        raise DataError(
            f"{path}: {type(error).__name__}: {error}; expected scan -> viewpoint -> object -> [label, views 0 to "
            "35, boxes [x, y, width, height]]"
        ) from error


def _object_views(
    graph: Graph, boxes: Mapping[str, Mapping[str, tuple[str, list[int], list[list[float]]]]]
) -> ObjectViews:
    number = graph.numbers
    labels: dict[str, int] = {}
    objects: dict[str, int] = {}
    heads: list[tuple[int, int, int, int]] = []
    rectangles: list[list[float]] = []
    for viewpoint, seen in boxes.items():
        if viewpoint not in number:
            continue
        for name, (label, views, sizes) in seen.items():
            which, what = objects.setdefault(name, len(objects)), labels.setdefault(label, len(labels))
            heads += [(number[viewpoint], which, what, view) for view in views]
            rectangles += sizes
    table = np.array(heads, dtype=np.int64).reshape(-1, 4)
    x, y, w, h = np.array(rectangles, dtype=np.float64).reshape(len(table), 4).T
    if not (np.isfinite(x + y) & (w >= 0) & (h >= 0) & (np.maximum(w, h) < 10 * WIDTH)).all():
        raise ValueError("a box whose place is not finite, or whose width or height is not that of a box in pixels")
    if len(table) and not (table[:, 3].min() >= 0 and table[:, 3].max() < VIEWS):
        raise ValueError(f"views from {table[:, 3].min()} to {table[:, 3].max()}")
    centre = np.stack([x + w / 2 - WIDTH / 2, HEIGHT / 2 - (y + h / 2)], axis=1)
    cut = (x <= 0) | (y <= 0) | (x + w >= WIDTH - 1) | (y + h >= HEIGHT - 1)
    share, ids = w * h / (WIDTH * HEIGHT), tuple(objects)
    return ObjectViews(table[:, 0], table[:, 1], table[:, 2], table[:, 3], share, centre, cut, tuple(labels), ids)


def read_classes(folder: Path) -> dict[str, int]:
    """The number of the class, in :data:`CLASSES`, of each label. Raises :class:`DataError` for one not in the list."""
    path = find_file(folder, CLASSES_FILE)
    if path is None:
        raise DataError(f"{folder}: no {CLASSES_FILE}, which gives the class of each label in {BOXES_FILE}; add it")
    table = read_table(path, ("name", "mpcat40"))
    table.distinct(["name"])
    classes = table.words("mpcat40", {name: number for number, name in enumerate(CLASSES)})
    return dict(zip(table.texts("name"), classes.tolist(), strict=True))


def read_positions(folder: Path) -> dict[tuple[str, str], np.ndarray]:
    """Where triangulated objects are, in metres, by scan and object; those of a large residual are left out."""
    path = find_file(folder, POSITIONS_FILE)
    if path is None:
        return {}
    table = read_table(path, ("scan", "object_id", "x", "y", "z", "median_residual_deg"))
    table.distinct(["scan", "object_id"])
    positions = np.stack([table.numbers(axis) for axis in "xyz"], axis=1)
    objects = list(zip(table.texts("scan"), table.texts("object_id"), strict=True))
    return {objects[row]: positions[row] for row in np.flatnonzero(table.numbers("median_residual_deg") < MAX_RESIDUAL)}


def read_rooms(folder: Path) -> dict[str, int]:
    """The room, by its number in :data:`ROOMS`, of viewpoints ``<scan>_<viewpoint>`` of training houses.

    Raises :class:`DataError` where the file is malformed; without it there are no rooms.
    """
    path = find_file(folder, ROOMS_FILE)
    if path is None:
        return {}
    table = read_table(path, ("scan", "viewpoint", "label_name_inferred", "split"))
    table.distinct(["scan", "viewpoint"])
    rooms = table.words("label_name_inferred", {name: number for number, name in enumerate(ROOMS)}).tolist()
    rows = zip(table.texts("scan"), table.texts("viewpoint"), table.texts("split"), rooms, strict=True)
    return {f"{scan}_{viewpoint}": room for scan, viewpoint, split, room in rows if split == "train"}


@dataclass(frozen=True, eq=False)
class RoomClassifier:
    """Probabilities of the rooms given how much of each label is around a viewpoint.

    ``labels`` maps a label to its row of ``weight [L, 12]``; labels that the training houses lack count for nothing.
    """

    labels: Mapping[str, int]
    weight: np.ndarray
    bias: np.ndarray

    def posterior(self, amounts: Sequence[Mapping[str, float]]) -> np.ndarray:
        """Probabilities ``[N, 12]`` at N viewpoints, given the amount of each label around them."""
        posterior: np.ndarray = scipy.special.softmax(_table(amounts, self.labels) @ self.weight + self.bias, axis=1)
        return posterior


def train_classifier(amounts: Sequence[Mapping[str, float]], rooms: Sequence[int]) -> RoomClassifier:
    """Fit the classifier by L-BFGS from zero weights, which draws no random number."""
    labels = {label: row for row, label in enumerate(sorted({label for each in amounts for label in each}))}
    shape = len(labels) + 1, len(ROOMS)  # the last row is the bias
    inputs = np.hstack([_table(amounts, labels), np.ones((len(amounts), 1))])
    targets = np.eye(len(ROOMS))[list(rooms)]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight = flat.reshape(shape)
        logits = inputs @ weight
        log_posterior = logits - scipy.special.logsumexp(logits, axis=1, keepdims=True)
        penalised = np.vstack([weight[:-1], np.zeros((1, len(ROOMS)))])
        gradient = inputs.T @ (np.exp(log_posterior) - targets) / len(targets) + 2 * RIDGE * penalised
        return float(RIDGE * (penalised**2).sum() - (targets * log_posterior).sum() / len(targets)), gradient.ravel()

    fitted = scipy.optimize.minimize(
        loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}
    )
    weight = fitted.x.reshape(shape)
    return RoomClassifier(labels, weight[:-1], weight[-1])


def _table(amounts: Sequence[Mapping[str, float]], labels: Mapping[str, int]) -> np.ndarray:
    table = np.zeros((len(amounts), len(labels)))
    for row, each in enumerate(amounts):
        for label, amount in each.items():
            if label in labels:
                table[row, labels[label]] = amount
    return table
