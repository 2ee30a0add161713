"""Takes labelled images from the logs of a robot: those a certain time apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedapps.tasks.logs.folder import IMAGE, ImportSettings, LogImport, Output
from fedapps.tasks.logs.mapping import Field, Signal
from fedapps.tasks.logs.readers import Log
from fedapps.tasks.logs.signals import ROUNDING, Gathered

from fedapps.base.atomic import path_name
from fedapps.base.errors import DataError
from fedapps.base.options import option


@dataclass(frozen=True)
class ImagesImportSettings(ImportSettings):
    """The settings of :class:`ImagesImport`."""

    gap: float = option(10.0, "Seconds for which a label holds", above=0)
    every: float = option(1.0, "Seconds from one image to the next; images in between are left out", minimum=0)
    split: str = option(
        "train", "Folder for the images: train, or test for a drive of its own to test on", choices=("train", "test")
    )


class ImagesImport(LogImport):
    """Files ``SPLIT/LABEL/*``."""

    Settings: ClassVar[type[ImportSettings]] = ImagesImportSettings
    advice: ClassVar[str] = "Images of the task images, with the last label before each."
    signals: ClassVar[Mapping[str, Signal]] = {
        "image": IMAGE,
        "label": Signal(
            "the labels of the images; a label holds until the next one, for settings.gap seconds at most",
            {"label": Field("word", ("label", "class", "class_name", "task_index", "data"))},
            holds=True,
        ),
    }

    def convert(self, log: Log, gathered: Gathered, output: Output) -> str:
        (images,), (labels,) = (gathered.series[name].values() for name in ("image", "label"))
        chosen: dict[int, str] = {}
        missed, last = 0, (-1, 0.0)
        for number, (epoch, time) in enumerate(zip(images.epoch, images.time, strict=True)):
            label = self.at("label", labels, epoch, time)
            if label is None or not label["label"].strip():
                missed += 1
            elif epoch != last[0] or time - last[1] >= self.settings.every - ROUNDING:
                chosen[number], last = label["label"], (epoch, time)
        if not chosen:
            raise DataError(
                f"{log.path}: no label stands before any of {missed} images; raise settings.gap, or correct time"
            )
        for number, content, ending in self.images(log, images, chosen):
            output.file(f"{self.settings.split}/{path_name(chosen[number])}/{output.log}-{number:06d}{ending}", content)
        classes = ", ".join(sorted(set(chosen.values())))
        return f"{len(chosen)} of {len(images.time)} images, classes {classes}; {missed} without a label"
