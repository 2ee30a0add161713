"""Small labelled images, and the formats in which people have them."""

import io

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pillow

CLASSES = ("cat", "dog", "owl")


def drawn(count, height=6, width=5, seed=0, classes=3):
    """``count`` images uint8 ``[n, H, W, 3]``, and their classes in turn."""
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, height, width, 3), dtype=np.uint8), np.arange(count) % classes


def png(pixels):
    """The bytes of a PNG file."""
    content = io.BytesIO()
    Pillow.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def write_folders(folder, pixels, labels, classes=CLASSES):
    """``CLASS/00000.png`` and so on, as torchvision's ImageFolder reads them."""
    for place, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / classes[label] / f"{place:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))


def hub_dataset(pixels, labels, classes=CLASSES, groups=None, image="image", label="label", group="writer_id"):
    """A data set of the library datasets, as the hub has them: encoded images and named classes."""
    columns = {image: [{"bytes": png(one), "path": None} for one in pixels], label: labels.tolist()}
    features = {image: Image(), label: ClassLabel(names=list(classes))}
    if groups is not None:
        columns[group], features[group] = list(groups), Value("string")
    return Dataset.from_dict(columns, features=Features(features))


def write_parquet(path, *arguments, **named):
    path.parent.mkdir(parents=True, exist_ok=True)
    hub_dataset(*arguments, **named).to_parquet(str(path))
