"""The images of a folder: a folder for each class, NumPy archives or tables, read once per process.

Pixels are decoded when they are asked for, so that profiles of nodes cost no decoding. Nothing here needs torch.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from fedapps.tasks.vision import ENDINGS

from fedapps.base.errors import DataError
from fedapps.base.rows import PARQUET
from fedapps.base.tables import columns_of, find_tables, read_table, refuse_spellings, table_names
from fedapps.base.text_files import arrays_in, found_in, refuse_several

from .image_set import ArrayImages, Files, ImageSet, ParquetImages, Pictures
from .options import Columns, Layout

#: The splits of a folder, with the names that their files and folders may have. "common" is for deployed nodes: images
#: that all nodes have, on which their models are compared.
SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val"),
    "test": ("test",),
    "common": ("common",),
}
_ARCHIVE = "npz"
_NAMED = 5  # damaged images that a message lists
_KEPT = 8  # folders whose listings are kept
#: Other names that people give to splits. No folder of a class may have one beside those of the other classes.
_LIKE_SPLITS = frozenset(["training", "trn", "testing", "tests", "tst", "dev", "eval", "evaluation", "holdout", "vald"])


@dataclass(frozen=True, eq=False)
class Folder:
    """The splits of a folder, what each was read from, and the names of the classes."""

    classes: tuple[str, ...]
    splits: Mapping[str, ImageSet]
    sources: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class _Found:
    """The images of one split, with labels as written: numbers of classes, or names."""

    where: str
    pictures: Pictures
    labels: np.ndarray
    names: tuple[str, ...] = ()
    groups: np.ndarray | None = None


def read_folder(folder: Path, layout: Layout) -> Folder:
    """Read the images of a folder. The result is the same object as long as the files do not change.

    Raises
    ------
    DataError
        There are no images, a file is damaged or lacks a column, a label is unknown, the images have another number of
        classes than the layout, or the folder can be read in two ways.
    """
    tables, archives = _tables(folder, layout.columns), _archives(folder)
    with_splits = any((folder / name).is_dir() for names in SPLITS.values() for name in names)
    listed = any(path.suffix != PARQUET for paths in tables.values() for path in paths)
    of_classes = _class_folders(folder) if not listed and (with_splits or not (tables or archives)) else {}
    readings = {"tables": bool(tables), "archives .npz": bool(archives), "folders of classes": bool(of_classes)}
    refuse_several(folder, readings, "keep the files of one kind")
    if files := tables or archives or of_classes:
        stamped = tuple((split, path, _stamp(path)) for split in files for path in files[split])
        return _read(folder, stamped, layout)
    raise DataError(
        f"{folder}: no images; expected train/CLASS/*.png (or {', '.join(ENDINGS[:2])} and others), train*.npz, "
        f"train*.parquet, folders CLASS with images, or train.csv with the columns {layout.columns.image} (files) and "
        f"{layout.columns.label}"
    )


def _stamp(path: Path) -> int:
    """The time at which a file, or a folder or one below it, has last changed, in ns."""
    return (
        max((changed for _, changed in _listing(path).times), default=0) if path.is_dir() else path.stat().st_mtime_ns
    )


@lru_cache(maxsize=4)
def _read(folder: Path, stamped: tuple[tuple[str, Path, int], ...], layout: Layout) -> Folder:
    parts: dict[str, _Found] = {}
    for split in dict.fromkeys(split for split, _, _ in stamped):
        paths = [path for name, path, _ in stamped if name == split]
        if paths[0].is_dir():
            parts[split] = _pictures_below(paths[0])
        elif paths[0].suffix == f".{_ARCHIVE}":
            for name, part in (pair for path in paths for pair in _arrays_of(path, split, layout)):
                if (other := parts.setdefault(name, part)) is not part:
                    raise DataError(f"{part.where}: {other.where} has the split {name}, too; keep one of the two")
        else:
            parts[split] = _table(paths, layout)
    classes = layout.labels or _classes_in([*parts.values()])
    if layout.classes and len(classes) != layout.classes:
        names = ", ".join(classes[:9]) or "none"
        raise DataError(
            f"{folder}: {len(classes)} classes ({names}), but images.classes = {layout.classes}: list the names of "
            "all classes in images.labels, or correct images.classes"
        )
    splits = {
        split: ImageSet(
            [(part.pictures, number) for number in range(len(part.labels))],
            _numbers(part, classes, layout),
            part.groups,
        )
        for split, part in parts.items()
        if len(part.labels)
    }
    if "train" not in splits and "test" not in splits:
        raise DataError(f"{folder}: its files have no image of a split {' or '.join(SPLITS)}")
    return Folder(classes, splits, {split: part.where for split, part in parts.items()})


# -- labels --------------------------------------------------------------------------------------------------------


def _classes_in(parts: Sequence[_Found]) -> tuple[str, ...]:
    """The names of the classes that images have, sorted; by value, if they are numbers."""
    if named := [part.names for part in parts if part.names]:
        return named[0]
    labels = [str(label) for part in parts for label in part.labels.tolist()]
    refuse_spellings(labels, parts[0].where, "images.labels")
    distinct = set(labels)
    try:
        return tuple(sorted(distinct, key=int))
    except ValueError:
        return tuple(sorted(distinct))


def _numbers(part: _Found, classes: tuple[str, ...], layout: Layout) -> np.ndarray:
    """The labels as numbers of ``classes``.

    Numbers in files are those of ``classes``, unless the classes are called by numbers.
    """
    known, labels = {name: number for number, name in enumerate(classes)}, part.labels
    distinct, kind_of = np.unique(labels if labels.dtype.kind in "iu" else labels.astype(str), return_inverse=True)
    spelled = [str(label) for label in distinct]
    if labels.dtype.kind in "iu":
        decimal = all(name.isdecimal() for name in classes)
        written = {int(name): name for name in classes} if decimal else dict(enumerate(classes))
        spelled = [written.get(int(label), str(label)) for label in distinct]
    for label, name in enumerate(spelled):
        if name not in known:
            image = int(np.flatnonzero(kind_of == label)[0])
            raise DataError(
                f"{part.where}, image {image}: label {name!r}; expected one of {', '.join(classes[:20])}, or its "
                "number; for other classes, choose a name of your own for images.dataset, or correct images.labels or "
                "images.label-column"
            )
    return np.array([known[name] for name in spelled], dtype=np.int64)[kind_of]


# -- folders of classes --------------------------------------------------------------------------------------------


def _class_folders(folder: Path) -> dict[str, list[Path]]:
    """The folder of each split that has folders of classes; ``folder`` itself if it has classes and no splits."""
    return _split_folders(folder, _listing(folder))


@lru_cache(maxsize=_KEPT)
def _split_folders(folder: Path, listing: "_Listing") -> dict[str, list[Path]]:
    of_split = {name: split for split, names in SPLITS.items() for name in names}
    tops: dict[str, bool] = {}  # whether images lie in folders of it
    for path in listing.paths:
        top, *below = path.relative_to(folder).parts
        tops[top] = tops.get(top, False) or len(below) > 1
        if top not in of_split and len(below) > 2 and below[0] in of_split:
            raise DataError(
                f"{folder}: {top}/{below[0]} has folders of classes, so {top} could be the folder of a node: give "
                "one such folder; `fedapps fleet` takes those of all nodes by --node-data"
            )
    folders: dict[str, list[Path]] = {}
    for top in tops:
        if top not in of_split and top.lower() in _LIKE_SPLITS | of_split.keys():
            raise DataError(
                f"{folder / top}: could be a split or a class; rename it to one of {', '.join(of_split)}, or "
                "move the classes into train/ if it is one"
            )
        if top in of_split and not tops[top]:
            raise DataError(f"{folder / top}: its images lie in no folder of a class; expected {top}/CLASS/*.png")
        if top in of_split:
            folders.setdefault(of_split[top], []).append(folder / top)
    if folders and (others := [top for top in tops if top not in of_split]):
        raise DataError(
            f"{folder}: {', '.join(others[:_NAMED])} hold images beside {', '.join(set(tops) & of_split.keys())}; move "
            "classes into the folder of their split, and remove other images"
        )
    _one_name_each(folder, folders)
    return {split: folders[split] for split in SPLITS if split in folders} or ({"train": [folder]} if tops else {})


def _one_name_each(folder: Path, paths_of: Mapping[str, Sequence[Path]]) -> None:
    """Raise :class:`DataError` if the files or folders of a split have several names, such as val and validation."""
    for split, paths in paths_of.items():
        refuse_several(folder, {path.name: True for path in paths}, f"keep one of them for the split {split}")


@dataclass(frozen=True, eq=False)
class _Listing:
    """The image files below a folder, and when each folder of the tree last changed, in ns."""

    paths: list[Path]
    times: list[tuple[Path, int]]

    @property
    def holds(self) -> bool:
        """Whether no folder has changed: each file that comes or goes changes its folder."""
        return all(path.is_dir() and path.stat().st_mtime_ns == changed for path, changed in self.times)


#: The listings of folders, which every node of a simulation asks for; the last ones.
_LISTINGS: dict[Path, _Listing] = {}
_TICK = 100_000_000  # ns, in which file systems tell two changes apart


def _listing(folder: Path) -> _Listing:
    listing = _LISTINGS.pop(folder, None)
    if listing is None or not listing.holds:
        now = time.time_ns()
        times = [(path, path.stat().st_mtime_ns) for path in (folder, *found_in(folder, "*/**/"))]
        paths = [path for path in found_in(folder, "*/**/*") if path.suffix.lower() in ENDINGS and not path.is_dir()]
        listing = _Listing(paths, times)
        if now - max(changed for _, changed in times) < _TICK:  # another change could have the same time
            return listing
    _LISTINGS[folder] = listing
    if len(_LISTINGS) > _KEPT:
        del _LISTINGS[next(iter(_LISTINGS))]
    return listing


def _images_below(folder: Path) -> list[Path]:
    return _listing(folder).paths


def _pictures_below(folder: Path) -> _Found:
    paths = _images_below(folder)
    labels = np.array([path.relative_to(folder).parts[0] for path in paths])
    return _Found(str(folder), Files(paths), labels)


# -- archives of arrays --------------------------------------------------------------------------------------------

#: Names of the images and the labels of a split: those of Keras, of MedMNIST, and of files with a single split.
_NAMES = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels")),
    "validation": (("x_val", "y_val"), ("val_images", "val_labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}


def _archives(folder: Path) -> dict[str, list[Path]]:
    """The archives of each split; those with all splits in one file as "train"."""
    named = {
        split: [path for name in names for path in found_in(folder, f"{name}.{_ARCHIVE}")]
        for split, names in SPLITS.items()
    }
    paths_of = {split: paths for split, paths in named.items() if paths}
    _one_name_each(folder, paths_of)
    single = found_in(folder, f"*.{_ARCHIVE}")
    if len(single) > max(1, len(paths_of)):
        raise DataError(f"{folder}: {len(single)} files .npz; name them train.npz and test.npz, or keep one of them")
    return paths_of or ({"train": single} if single else {})


def _arrays_of(path: Path, split: str, layout: Layout) -> Iterator[tuple[str, _Found]]:
    group = layout.columns.group
    single = [("images", layout.columns.label), ("images", "labels"), ("x", "y"), ("data", "targets")]
    single = [*dict.fromkeys(single)]
    wanted = {label for _, label in single} | {label for pairs in _NAMES.values() for _, label in pairs} | {group}
    arrays = dict(arrays_in(path, sorted(wanted - {""})))
    with np.load(path, allow_pickle=False) as archive:
        present = set(archive.files)
    candidates = [(name, pair) for name, pairs in _NAMES.items() for pair in pairs]
    several = [(name, pair) for name, pair in candidates if present.issuperset(pair)]
    one = [(split, pair) for pair in single if present.issuperset(pair)]
    if not several and not one:
        raise DataError(
            f"{path}: has the arrays {', '.join(sorted(present)) or 'none'}; expected images and labels, or x_train, "
            "y_train, x_test and y_test (images.label-column)"
        )
    named = layout.label_named and (split, ("images", layout.columns.label)) in one
    read = one[:1] if named else several + one
    if len({name for name, _ in read}) < len(read) or (several and one and not named):
        pairs = "; ".join(f"{images}, {label}" for _, (images, label) in read)
        raise DataError(
            f"{path}: several arrays could be the images and labels ({pairs}); name the labels in images.label-column, "
            "or keep one pair for each split"
        )
    for name, (images, label) in read:
        labels = arrays[label].reshape(-1)
        if labels.dtype.kind not in "iuUS":
            raise DataError(f"{path}, {label}: type {labels.dtype}; expected whole numbers or names of classes")
        groups = arrays.get(group)
        if groups is not None and len(groups) != len(labels):
            raise DataError(f"{path}: {len(groups)} {group} of {len(labels)} images; expected one for each")
        yield name, _Found(f"{path}, {label}", ArrayImages(path, images, len(labels)), labels, groups=_as_text(groups))


def _as_text(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else values.reshape(-1).astype(str)


# -- tables --------------------------------------------------------------------------------------------------------

#: Names that columns of labels usually have.
_LABELS = frozenset(["label", "labels", "target", "targets", "class", "classes", "y"])
_HINT = "images.image-column, images.label-column and images.group-column name the columns"


def _tables(folder: Path, columns: Columns) -> dict[str, list[Path]]:
    """The files of each split with encoded images (Parquet), or with a line for each image file (CSV, JSON lines)."""
    named = _named_tables(folder, _listing(folder))
    _one_name_each(folder, {split: [paths[0] for paths in several] for split, several in named.items()})
    return {
        split: several[0]
        for split, several in named.items()
        if several
        and (several[0][0].suffix == PARQUET or {columns.image, columns.label} <= {*columns_of(several[0][0])})
    }


@lru_cache(maxsize=_KEPT)
def _named_tables(folder: Path, listing: "_Listing") -> dict[str, list[list[Path]]]:
    """The files with the names of tables of each split, searched once for every listing of the folder."""
    return {
        split: [paths for name in names if (paths := find_tables(folder, table_names(name)))]
        for split, names in SPLITS.items()
    }


def _table(paths: Sequence[Path], layout: Layout) -> _Found:
    """The images of a split in tables. Paths of image files are relative to the folder of the table."""
    columns = layout.columns
    required = [columns.label] if paths[0].suffix == PARQUET else [columns.label, columns.image]
    tables = [read_table(path, required, [columns.group] if columns.group else [], hint=_HINT) for path in paths]
    for table in tables:
        if columns.image not in table.names:
            raise DataError(f"{table.path}: no column {columns.image}; found {', '.join(table.names)} ({_HINT})")
        if blank := [row for row, label in enumerate(table.texts(columns.label)) if not label.strip()]:
            raise table.fault(columns.label, blank, "expected the label of the image")
        others = sorted(name for name in table.names if name != columns.label and name.lower() in _LABELS)
        if others and not layout.label_named:
            raise DataError(
                f"{table.path}: {columns.label} and {', '.join(others)} could be the labels; name one of them in "
                "images.label-column"
            )
    labels = np.array([label for table in tables for label in table.texts(columns.label)])
    names = tables[0].classes.get(columns.label, ())
    if not names and all(label.isdecimal() for label in labels.tolist()):
        labels = labels.astype(np.int64)
    if layout.published and len(names) == layout.classes:  # the names in the file may be spelled otherwise
        labels, names = np.array([names.index(label) for label in labels.tolist()]), ()
    groups = None
    if all(columns.group in table for table in tables):
        groups = np.array([group for table in tables for group in table.texts(columns.group)])
    pictures: Pictures = ParquetImages(paths, columns.image)
    if paths[0].suffix != PARQUET:
        pictures = Files([table.path.parent / name for table in tables for name in table.texts(columns.image)])
    return _Found(str(paths[0]), pictures, labels, names, groups)
