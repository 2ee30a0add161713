"""Small model folders of every task as their files, and what one does with a model that was read from them."""

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn_houses import task_with
from fedapps.tasks.driving.options import Options as DrivingOptions
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.images.options import Options as ImageOptions
from fedapps.tasks.images.task import ImagesTask
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.social.networks import Options as SocialOptions
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.text.options import Options as TextOptions
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.trained import Origin, TrainedModel, trained_class
from fedapps.tasks.vpr.options import Options as PlaceOptions
from fedapps.tasks.vpr.task import VprTask
from tiny_encoder import encoder_folder

from fedapps.base.seeding import torch_seed

ORIGIN = Origin(
    "run", "fedavg", "node", 3, 0, 5, 7, 3, 40, 0, {"test.loss": 0.5, "test.list": [1.0]},
    {"test.loss": {"mean": 0.5, "low": 0.4, "high": 0.6}}, "", {"torch": "2"}, {"task": "lqr", "node-cpus": 1},
)  # fmt: skip
WORDS = ("<pad>", "<unk>", "win", "loss", "2050", "goals")
PICTURES = np.zeros((1, 24, 32, 3), dtype=np.uint8)
ROOM = {"robot": {"id": 0}, "humans": [], "objects": [], "links": [], "room": [[-200, -200], [200, -200], [0, 400]]}
PRIVATE = PrivateParameters(("embedding.*",))


def lqr() -> TrainedModel:
    return _model(LqrTask(), {})


def images() -> TrainedModel:
    facts = {"classes": ["cat", "dog"], "mean": [0.5] * 3, "deviation": [1.0] * 3}
    options = ImageOptions(dataset="pets", classes=2, height=6, width=5, model="mlp", normalise="data")
    return _model(ImagesTask(options), facts, PICTURES)


def words() -> TrainedModel:
    options = TextOptions(source="simulated", dataset="mine", classes=2, hidden=3, embedding_width=4, vocabulary_size=9)
    return _model(TextTask(options), {"classes": ["0", "1"], "words": list(WORDS)})


def digits() -> TrainedModel:
    options = TextOptions(source="simulated", dataset="mine", classes=2, hidden=3, embedding_width=4, vocabulary_size=9)
    private = PrivateParameters(("embedding*private",))
    return _model(TextTask(options), {"classes": ["0", "1"], "words": [*WORDS, "<digits>"]}, private=private)


def encoder(kind: str = "bert", facts: Mapping[str, Any] | None = None, **changes: Any) -> TrainedModel:
    """A transformer, whose encoder lies in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        source = encoder_folder(Path(folder), kind)
        options = TextOptions(dataset="mine", labels="0,1", model=str(source), max_length=8, **changes)
        task = TextTask(options)
        private = PRIVATE if facts else PrivateParameters()
        model = _model(task, {**task.facts(None), **(facts or {})}, private=private)
        model.vocabulary  # noqa: B018 - it is read while the folder is there
    return model


def adapters() -> TrainedModel:
    return encoder("distilbert", adapter="lora", adapter_rank=2)


def pieces() -> TrainedModel:
    return encoder(facts={"pieces": [1, 4, 5]})


def driving() -> TrainedModel:
    return _model(DrivingTask(DrivingOptions(hidden=4, latent=2, samples=2)), {})


def social() -> TrainedModel:
    return _model(SocialTask(SocialOptions(participants="a;b", source="simulated", hidden=4, layers=2)), {})


def places() -> TrainedModel:
    task = VprTask(PlaceOptions(backbone="squeezenet1_1-stride8", height=24, width=32))
    model: Any = _model(task, {"normalisation": "imagenet"}, PICTURES)
    model.places = model.index(PICTURES, [[0.0, 1.0]])
    return model


def houses() -> TrainedModel:
    return _model(task_with(), {"vocabulary": ["left", "right"]})


def speaker() -> TrainedModel:
    return _model(task_with(stage="speaker"), {"vocabulary": ["left", "right"]})


def _model(task: Any, facts: Mapping[str, Any], *_: Any, private: PrivateParameters = PrivateParameters()) -> Any:  # noqa: B008
    task = task.under(private)
    with torch_seed(0):
        if isinstance(task, TextTask) and not task.options.recurrent:
            module = task.build_model()
            if "pieces" in facts:
                from fedapps.tasks.text.networks import keep_own_rows

                keep_own_rows(module.embedding, tuple(facts["pieces"]))
        else:
            module = task.model_of(facts, None)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.nan_to_num_(0, 0, 0).clamp_(-1, 1)
    return trained_class(task)(task, module, facts, ORIGIN, private=private)


MODELS: dict[str, Callable[[], TrainedModel]] = {
    "lqr": lqr, "images": images, "text": words, "text with private digits": digits, "text with BERT": encoder,
    "text with adapters": adapters, "text with private pieces": pieces, "driving": driving, "social": social,
    "vpr": places, "vln": houses, "vln speaker": speaker,
}  # fmt: skip


@cache
def files_of(name: str) -> dict[str, bytes]:
    """The files of a model folder by their paths in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = MODELS[name]().save(Path(folder) / "model")
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def config_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The config of a model folder."""
    config: dict[str, Any] = json.loads(files["config.json"])
    return config


def use(model: Any) -> None:
    """Let a model answer once. Its answer must be finite."""
    name = model.task.name
    if name == "lqr":
        found = model.control([0.5, -1.0])
    elif name == "images":
        found = model.predict(PICTURES).probabilities
    elif name == "text":
        found = model.predict(["win 2050 goals", ""]).probabilities
    elif name == "driving":
        cars = model.task.setting.cars
        found = model.forecast(np.ones((30, cars, 4)), np.zeros((30, cars, 2)))
    elif name == "social":
        found = model.score(ROOM)
    elif name == "vpr":
        found = model.locate(PICTURES, k=1).distance if model.places else model.describe(PICTURES)
    else:
        return
    assert np.isfinite(found).all()
