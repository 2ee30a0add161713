"""A trained classifier of images: what it takes, what it says, and what it leaves to others."""

import io

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.images.options import Options
from fedapps.tasks.images.task import ImagesTask
from fedapps.tasks.images.trained import ImagesTrained
from fedapps.tasks.partitioners import adjust_logits
from fedapps.tasks.trained import TrainedModel
from image_files import CLASSES, drawn, png, write_folders
from PIL import Image
from torch import nn

from fedapps.registry.tasks import task_class
from fedapps.trained.programs import write_torch

FACTS = {"classes": list(CLASSES), "mean": [0.0] * 3, "deviation": [1.0] * 3}


class Says(nn.Module):
    """A classifier with the logits log 2, 0, 0, in the order of the class that the first red pixel says."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0).log())

    def forward(self, images):
        return self.scale * nn.functional.one_hot(images[:, 0, 0, 0].long(), 3).float()


@pytest.fixture
def model():
    return ImagesTrained(ImagesTask(Options(dataset="pets", classes=3, height=6, width=5)), Says(), FACTS)


def of_class(*classes):
    return np.stack([np.full((6, 5, 3), number, dtype=np.uint8) for number in classes])


def test_all_kinds_of_images_have_the_same_predictions(model, tmp_path):
    pixels = of_class(2, 0, 1)
    (tmp_path / "0.png").write_bytes(png(pixels[0]))
    given = [
        [tmp_path / "0.png", *pixels[1:]],
        [str(tmp_path / "0.png"), Image.fromarray(pixels[1]), torch.from_numpy(pixels[2]).permute(2, 0, 1)],
        pixels,
        torch.from_numpy(pixels).permute(0, 3, 1, 2),
        pixels[..., 0],  # grey
        [Image.fromarray(image).resize((20, 30)) for image in pixels],
    ]
    for images in given:
        found = model.predict(images, batch_size=2)
        assert found.names == ("owl", "cat", "dog")
        assert found.probabilities == pytest.approx(np.array([[1, 1, 2], [2, 1, 1], [1, 2, 1]]) / 4)
    assert len(model.predict([])) == 0


def test_rows_read_images_folders_and_lists_of_paths(model, tmp_path):
    write_folders(tmp_path, of_class(0, 1), [0, 1])
    paths = [tmp_path / "cat" / "00000.png", tmp_path / "dog" / "00001.png"]
    expected = [
        {
            "image": str(path), "label": label, "probability": 0.5,
            **{f"probability.{name}": 0.5 if name == label else 0.25 for name in CLASSES},
        }
        for path, label in zip(paths, CLASSES, strict=False)
    ]  # fmt: skip
    for inputs in ([tmp_path], paths, [io.StringIO(f"{paths[0]}\n\n{paths[1]}\n")]):
        assert [*model.rows(inputs)] == [{**row, "probability": pytest.approx(0.5)} | {
            key: pytest.approx(value) for key, value in row.items() if key.startswith("probability.")
        } for row in expected]  # fmt: skip


def test_images_that_cannot_be(model, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    for images, said in (
        ([tmp_path / "none.png"], r"none\.png: no such image"),
        ([tmp_path / "text.png"], r"text\.png: not an image, or damaged"),
        ([np.zeros((6, 5, 3))], r"image 0 is a ndarray of float64 \[6, 5, 3\]; expected the path of a file"),
    ):
        with pytest.raises(DataError, match=said):
            model.predict(images)
    with pytest.raises(DataError, match="batch_size = 0"):
        model.predict(of_class(0), batch_size=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no images"):
        next(model.rows([tmp_path / "empty"]))


def test_own_label_shares_shift_the_predictions_of_a_model_with_adjusted_logits(model):
    adjust_logits(model.module, torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64))
    assert model.predict(of_class(1)).names == ("owl",)
    assert model.predict(of_class(1), own_shares=False).names == ("dog",)


def test_files_and_exports_have_the_answers_for_the_nodes_own_label_shares(model, tmp_path):
    write_folders(tmp_path, of_class(1), [1])
    images = torch.from_numpy(of_class(1)).permute(0, 3, 1, 2)
    for added, expected in ((None, "dog"), (torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64), "owl")):
        if added is not None:
            adjust_logits(model.module, added)
        assert [row["label"] for row in model.rows([tmp_path])] == [expected]
        assert model.classes[model.network().module(images).argmax()] == expected


def test_an_exported_program_has_the_probabilities_for_the_nodes_own_label_shares(tmp_path):
    task = ImagesTask(Options(dataset="pets", classes=3, height=6, width=5, model="mlp"))
    model = ImagesTrained(task, task.model_of(FACTS, None), FACTS)
    adjust_logits(model.module, torch.tensor([-0.5, 0.0, 2.0], dtype=torch.float64))
    write_torch(model.network(), tmp_path / "model.pt2")
    images = torch.from_numpy(drawn(4)[0]).permute(0, 3, 1, 2)
    (logits,) = torch.export.load(tmp_path / "model.pt2").module()(images)
    expected = model.predict(images, own_shares=True)
    assert logits.softmax(dim=1).detach().numpy() == pytest.approx(expected.probabilities, abs=1e-6)


def test_a_model_folder_reads_images_with_its_own_classes(tmp_path):
    task = ImagesTask(Options(dataset="pets", classes=3, height=6, width=5, model="mlp"))
    data = tmp_path / "data"
    write_folders(data, *drawn(12))
    node = task.load_own(data)
    model = ImagesTrained(task, task.build_model_for(node), task.facts(node))
    again = TrainedModel.read(model.save(tmp_path / "model"), task_class)
    assert again.classes == CLASSES
    assert again.evaluate(data) == model.evaluate(node)
    images = drawn(4)[0]
    assert np.array_equal(again.predict(images).probabilities, model.predict(images).probabilities)
    (data / "owl").rename(tmp_path / "owl")  # two of three classes: the model knows the third
    assert again.data(data).extra["classes"] == CLASSES
    network = again.network()
    assert network.module(*network.inputs).shape == (2, 3)
    assert [*network.inputs[0].shape] == [2, 3, 6, 5]
