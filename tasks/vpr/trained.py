"""A trained model of the task "vpr" in use: descriptors of images, and the place of an image in an index."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, TextIO, cast

import numpy as np
import torch
from fedapps.tasks.answers import Network, finite_answer, several
from fedapps.tasks.base import NodeData
from fedapps.tasks.profiles import check_partition, fingerprint
from fedapps.tasks.trained import TrainedModel
from fedapps.tasks.vision import GivenImage
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed

from .given_images import GivenImages, in_hand, is_collection, positions_of, read_images_of, unread_tables
from .networks import PlaceNetwork
from .nodes import node_data, own_data
from .options import Options
from .place_index import INDEX_FILE, Matches, PlaceIndex
from .training_set import CHUNK, computed

Images = Sequence[GivenImage] | np.ndarray | Tensor
_MATCHES = 5  # that a row of a prediction lists


class VprTrained(TrainedModel):
    """A network that describes places.

    Images are RGB of any size: each is resized bilinearly to ``vpr.height`` x ``vpr.width`` pixels and normalised as in
    training and evaluation. A *position* is east and north in metres from any origin, or longitude and latitude in
    degrees.

    Attributes
    ----------
    places : PlaceIndex, optional
        The index that is kept in the model's folder. Set it before :meth:`save` to keep one there.
    """

    pipeline_tag: ClassVar[str] = "image-feature-extraction"
    file_sizes: ClassVar[Mapping[str, int]] = {INDEX_FILE: 1 << 34}

    def __init__(self, *arguments: Any, **further: Any) -> None:
        super().__init__(*arguments, **further)
        kept = self.files / INDEX_FILE if self.files else None
        self.places: PlaceIndex | None = PlaceIndex.load(kept) if kept and kept.is_file() else None

    def describe(self, images: Images | str | Path, *, batch_size: int = CHUNK) -> np.ndarray:
        """Return the descriptors of n images, float32 ``[n, d]`` of length 1, on the CPU.

        Images of the same place have a small Euclidean distance. As in an evaluation, images beside an image in its
        batch change its descriptor by rounding.

        Parameters
        ----------
        images : sequence of images, array, tensor, str or Path
            Paths of files, Pillow images, uint8 arrays ``[H, W, 3]`` or ``[H, W]``, uint8 tensors ``[3, H, W]``; of
            equal sizes also ``[n, H, W, 3]`` or, as a tensor, ``[n, 3, H, W]``. A path alone is an image, a folder or a
            table (:func:`~fedapps.tasks.vpr.given_images.read_images_of`).
        batch_size : int
            The number of images in memory at a time.

        Raises
        ------
        DataError
            An image is missing or damaged, or none of these, or the model has no finite answer to it.
        """
        return self._described(self._given(images), batch_size)

    def index(
        self,
        images: Images | str | Path,
        positions: Any = None,
        *,
        names: Sequence[str] | None = None,
        cities: Sequence[str] | None = None,
        degrees: bool = False,
    ) -> PlaceIndex:
        """Describe images of known places. Only this model can search in the index.

        Parameters
        ----------
        images : sequence of images, array, tensor, str or Path
            As those of :meth:`describe`. The images of a folder come with positions if it has a table of them; where
            that has queries and a database, the database is indexed.
        positions : array-like [n, 2], optional
            Positions of the images, instead of those of a folder's table.
        names, cities : sequences, optional
            Names of the images for matches, and their cities if positions in several cities have different origins;
            what is no string becomes one.
        degrees : bool
            Whether ``positions`` are longitudes and latitudes in degrees.

        Raises
        ------
        DataError
            As :meth:`describe`. There is no image; there are not as many positions, names or cities as images; a
            longitude or latitude is impossible; or a folder gives no position, but has a table of another name than
            ``vpr.table-file``.
        """
        image_set = self._given(images).of_role(query=False)
        if not len(image_set):
            raise DataError("there is no image to index: give at least one")
        count = len(image_set)
        if positions is not None:
            position = positions_of(positions, count, degrees=degrees)
            image_set = GivenImages(image_set.source, image_set.rows, image_set.names, position, degrees)
        elif isinstance(images, (str, Path)) and unread_tables(Path(images).expanduser(), self._options):
            self._check_positions(Path(images).expanduser(), image_set)
        for what, values in (("names", names), ("cities", cities)):
            if values is not None and len(several(values, what)) != count:
                raise DataError(f"{len(values)} {what} of {count} images; expected one for each")
        return self._indexed(image_set, names, cities)

    def locate(
        self,
        images: Images | str | Path,
        index: PlaceIndex | None = None,
        k: int = 5,
        *,
        positions: Any = None,
        cities: Sequence[str] | None = None,
    ) -> Matches:
        """Find the ``k`` images of an index that are most like each image.

        Parameters
        ----------
        images : sequence of images, array, tensor, str or Path
            As those of :meth:`describe`. Of a folder with queries and a database, the queries are located.
        index : PlaceIndex, optional
            By default the one that is kept with the model.
        k : int
            Matches for each image.
        positions : array-like [n, 2], optional
            Where the images were taken, if that is known, in the coordinates of the index; NaN where it is not.
            Positions in a folder's table are used without this argument.
        cities : sequence of str, optional
            Their cities; "" where unknown.

        Returns
        -------
        Matches
            With the distances of descriptors, the positions of the matches, and how far these are from the image's own.

        Raises
        ------
        DataError
            There is no index, or another model made it; an image cannot be read; ``k`` is not a whole number of at
            least 1; there are not as many positions or cities as images; or a longitude or latitude is impossible.
        """
        queries = self._given(images).of_role(query=True)
        return self._located(queries, index, k, positions=positions, cities=cities)

    def data(self, folder: str | Path, partition: int | None = None, num_partitions: int = 1) -> NodeData:
        """As :meth:`TrainedModel.data`; the file of the first weights is not needed."""
        path = Path(folder).expanduser()
        if partition is None:
            return own_data(path, self._options)
        check_partition(partition, num_partitions)
        return node_data(path, self._options, partition, num_partitions)

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = CHUNK) -> Iterator[dict[str, Any]]:
        """Yield the matches of each image, or its descriptor.

        An input is an image, a folder or a table of images, or a stream with the path of an image on each line. Images
        are located in the index that is kept with the model; without it, the queries of a folder or table that names
        roles are located in its database. Otherwise a row has the ``descriptor``.

        Yields
        ------
        dict
            ``image``, and ``matches``: a list of dictionaries with ``image``, ``distance`` (0 to 2), the position ``x``
            and ``y`` or ``lon`` and ``lat``, and ``metres`` from the query's position; what is unknown is ``None``.
        """
        for image_set in self._image_sets(inputs):
            index = self.places
            if index is None and image_set.of_role(query=False) is not image_set:
                index = self._indexed(image_set.of_role(query=False))
            image_set = image_set.of_role(query=True)
            for start in range(0, len(image_set), batch_size):
                some = image_set.select(np.arange(start, min(start + batch_size, len(image_set))))
                if index is None:
                    described = self._described(some, batch_size).tolist()
                    yield from (
                        {"image": name, "descriptor": row} for name, row in zip(some.names, described, strict=True)
                    )
                else:
                    yield from self._located(some, index, _MATCHES).rows_of(some.names, degrees=index.degrees)

    def network(self, example: NodeData | None = None) -> Network:
        """The whole network, from uint8 images of the size in the options to descriptors."""
        height, width = self._options.size
        with torch_seed(0, "vpr", "network"):
            images = torch.randint(256, (2, 3, height, width), dtype=torch.uint8)
        return Network(
            deepcopy(self.module).cpu(),
            (images,),
            ("images",),
            ("descriptors",),
            {"images": {0: "batch"}},
            f"Images must be resized to {height} x {width} pixels (bilinear, antialiased) beforehand; the search in an "
            "index stays outside.",
        )

    def keep_index(self, images: Path) -> None:
        """Set :attr:`places` to the index of a folder or table of images with positions.

        Raises
        ------
        DataError
            As :meth:`index`, or no image has a position.
        """
        image_set = self._given(images).of_role(query=False)
        self._check_positions(Path(images).expanduser(), image_set)
        self.places = self._indexed(image_set)

    def save_files(self, folder: Path) -> None:
        """Write the index :attr:`places`, if there is one."""
        if self.places is not None:
            self._check(self.places)
            self.places.save(folder / INDEX_FILE)

    # -- steps ---------------------------------------------------------------------------------------------------

    @property
    def _options(self) -> Options:
        return cast(Options, self.task.options)

    def _given(self, images: Images | str | Path) -> GivenImages:
        if not isinstance(images, (str, Path)):
            return in_hand(several(images, "images"))
        path = Path(images).expanduser()
        return read_images_of(path, self._options) if is_collection(path) else in_hand([path])

    def _check_positions(self, path: Path, image_set: GivenImages) -> None:
        if np.isfinite(image_set.position).all(axis=1).any():
            return
        name, others = self._options.table_file, unread_tables(path, self._options)
        not_read = f"; not read: {', '.join(others)} (rename it, or give its path, not the folder's)" if others else ""
        raise DataError(
            f"{path}: no image has a position; expected a table {name} with the columns path, and x and y or lon and "
            f"lat{not_read}"
        )

    def _image_sets(self, inputs: Sequence[Path | TextIO]) -> Iterator[GivenImages]:
        """The images of inputs; successive images are read together."""
        for from_collection, some in groupby(
            inputs, key=lambda source: isinstance(source, Path) and is_collection(source)
        ):
            if from_collection:
                yield from (self._given(source) for source in some if isinstance(source, Path))
            else:
                yield in_hand([path for source in some for path in _paths(source)])

    def _described(self, image_set: GivenImages, batch_size: int) -> np.ndarray:
        if batch_size < 1:
            raise DataError(f"batch_size = {batch_size}: must be at least 1")
        network, store = cast(PlaceNetwork, self.module), image_set.store
        batches = (image_set.rows[start : start + batch_size] for start in range(0, len(image_set), batch_size))
        vectors = [
            computed(network, network, store.load(rows, self._options.size), chunk=batch_size) for rows in batches
        ]
        described = torch.cat(vectors).numpy() if vectors else np.zeros((0, network.width), dtype=np.float32)
        return finite_answer(described, "descriptors")

    def _indexed(
        self, image_set: GivenImages, names: Sequence[str] | None = None, cities: Sequence[str] | None = None
    ) -> PlaceIndex:
        return PlaceIndex(
            self._described(image_set, CHUNK),
            tuple(image_set.names if names is None else map(str, names)),
            image_set.position,
            image_set.degrees,
            tuple(image_set.cities if cities is None else map(str, cities)),
            self._fingerprint,
        )

    def _located(
        self,
        queries: GivenImages,
        index: PlaceIndex | None,
        k: int,
        *,
        positions: Any = None,
        cities: Sequence[str] | None = None,
    ) -> Matches:
        searched = self.places if index is None else index
        if searched is None:
            raise DataError("there is no index of places: give one that index() made, or set places to it")
        self._check(searched)
        if positions is None and queries.degrees == searched.degrees:
            positions = queries.position
        if cities is None and any(queries.cities) and any(searched.cities):
            cities = queries.cities
        return searched.search(self._described(queries, CHUNK), k, position=positions, cities=cities)

    def _check(self, index: PlaceIndex) -> None:
        if index.model != self._fingerprint:
            raise DataError("the index was made by another model: build it with index() of this one")

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(tensor.cpu() for tensor in self.module.state_dict().values()).hex()


def _paths(source: Path | TextIO) -> list[str | Path]:
    return [source] if isinstance(source, Path) else [line.strip() for line in source if line.strip()]
