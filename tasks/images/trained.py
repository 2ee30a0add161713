"""Use a trained model of the task "images": classes and their probabilities of images."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import torch
from fedapps.tasks.answers import Network, Predictions, finite_answer, several
from fedapps.tasks.base import NodeData
from fedapps.tasks.partitioners import for_own_label_shares, own_label_shares
from fedapps.tasks.trained import TrainedModel
from fedapps.tasks.vision import ENDINGS, GivenImage, picture_of
from torch import Tensor
from torch.nn.functional import softmax

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed
from fedapps.base.text_files import found_in

from .image_set import planes
from .task import CHUNK, ImagesTask


class ImagesTrained(TrainedModel):
    """A classifier of images. Images of any size are resized bilinearly to that of the network."""

    task: ImagesTask
    pipeline_tag: ClassVar[str] = "image-classification"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        return tuple(self.facts["classes"])

    def predict(
        self, images: Sequence[GivenImage] | np.ndarray | Tensor, batch_size: int = CHUNK, *, own_shares: bool = True
    ) -> Predictions:
        """Classify images.

        Parameters
        ----------
        images : sequence of images, array or tensor
            Paths of files, Pillow images, uint8 arrays ``[H, W, 3]`` or ``[H, W]``, uint8 tensors ``[3, H, W]``; of
            equal sizes also ``[n, H, W, 3]``, ``[n, H, W]`` or, as a tensor, ``[n, 3, H, W]``.
        batch_size : int
            ≥ 1.
        own_shares : bool
            Whether the images have the label shares of the model's node, as the node's own test examples have. This
            matters only to a model with the added logits of its node (``logit-adjustment``), which predicts for
            balanced labels otherwise. ``fedapps predict`` and exports predict as with ``True``.

        Raises
        ------
        DataError
            ``images`` is a single image, an image is missing, damaged or none of these, or the model has no finite
            answer to it.
        """
        several(images, "images")
        if isinstance(images, np.ndarray | Tensor) and (
            images.ndim not in (3, 4) or (images.ndim == 3 and images.shape[2] == 3)
        ):
            raise DataError(f"images of shape {list(images.shape)}: must be several, as [n, H, W, 3] or [n, H, W]")
        if batch_size < 1:
            raise DataError(f"batch_size = {batch_size}: must be at least 1")
        size = self.task.layout.size
        probabilities = np.empty((len(images), len(self.classes)), dtype=np.float32)
        with torch.no_grad(), own_label_shares(self.module) if own_shares else nullcontext():
            for start in range(0, len(images), batch_size):
                some = [
                    planes(picture_of(image, f"image {start + index}"), size)
                    for index, image in enumerate(images[start : start + batch_size])
                ]
                pixels = torch.from_numpy(np.stack(some)).to(self.device)
                probabilities[start : start + len(some)] = softmax(self.module(pixels), dim=1).cpu().numpy()
        return Predictions.of(finite_answer(probabilities, "probabilities"), self.classes)

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = CHUNK) -> Iterator[dict[str, Any]]:
        """Yield ``image``, ``label``, ``probability`` and ``probability.<label>`` of every class, for each image.

        An input is an image, a folder of images, or a stream with the path of an image on each line.
        """
        paths = (path for source in inputs for path in _paths(source))
        while some := list(islice(paths, batch_size)):
            predictions = self.predict(some, batch_size)
            yield from (
                {"image": str(path)} | row for path, row in zip(some, predictions.rows(self.classes), strict=True)
            )

    def data(self, folder: str | Path, partition: int | None = None, num_partitions: int = 1) -> NodeData:
        """As :meth:`fedapps.tasks.trained.TrainedModel.data`, with the model's classes."""
        return self.task.read_with(self.classes, Path(folder).expanduser(), partition, num_partitions)

    def network(self, example: NodeData | None = None) -> Network:
        """Map ``images`` uint8 ``[n, C, H, W]`` to ``logits`` ``[n, classes]``.

        The logits include the added logits of the node, if the model has them.
        """
        height, width, channels = self.task.layout.size
        with torch_seed(0, "images", "network"):
            images = torch.randint(256, (2, channels, height, width), dtype=torch.uint8)
        kind = "grey" if channels == 1 else "RGB"
        return Network(
            for_own_label_shares(deepcopy(self.module).cpu()),
            (images,),
            ("images",),
            ("logits",),
            {"images": {0: "batch"}},
            f"Images must be 8-bit {kind}, resized to {height} x {width} pixels (bilinear, antialiased) beforehand; "
            "config.json has the names of the classes.",
        )


def _paths(source: Path | TextIO) -> Iterator[Path]:
    if not isinstance(source, Path):
        yield from (Path(line.strip()) for line in source if line.strip())
    elif source.is_dir():
        paths = [path for path in found_in(source, "**/*") if path.suffix.lower() in ENDINGS and path.is_file()]
        if not paths:
            raise DataError(f"{source}: no images; expected files that end in {', '.join(ENDINGS)}")
        yield from paths
    else:
        yield source
