"""What can be chosen about visual place recognition, and which data set a folder holds."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.datasets import read_dataset
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.retrieval import Anywhere, NearestSequences
from fedapps.tasks.vpr.task import VprTask
from striped_places import write_places

from fedapps.base.options import parse_options


def test_the_defaults_are_allowed():
    defaults = {field.name.replace("_", "-"): field.default for field in fields(Options)}
    assert parse_options(Options, defaults) == ({field.name: field.default for field in fields(Options)}, [])
    VprTask()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"near": 30.0}, "vpr.near = 30: must be at most vpr.far = 25"),
        (
            {"validation_clients": 12, "validation_cities": "manila"},
            "vpr.validation-clients = 12 and vpr.validation-cities = 'manila': these options are mutually exclusive",
        ),
        (
            {"test_cities": "sf, cph", "validation_cities": "cph,manila"},
            "vpr.test-cities and vpr.validation-cities both contain cph",
        ),
        ({"backbone": "alexnet"}, "vpr.backbone = 'alexnet': must be one of resnet18-layer3, .*, or NETWORK@LAYER"),
        ({"backbone": "@layer3"}, "vpr.backbone = '@layer3': must be one of"),
        ({"trained_from": "layer2", "train_all": True}, "vpr.trained-from = 'layer2' and vpr.train-all = true"),
        ({"trained_from": "head", "pooling": "mac"}, "vpr.pooling = 'mac' leaves nothing to train; set vpr.projection"),
        ({"nordland_regions": 9, "nordland_stretches": 3}, "vpr.nordland-regions = 9: must be at most"),
    ],
)
def test_options_that_do_not_go_together(changes, said):
    with pytest.raises(DataError, match=said):
        VprTask(Options(**changes))


def test_the_radius_and_the_surplus_depend_on_the_source():
    assert Options().proximity == 2000
    assert Options(source="simulated").proximity == 50
    assert Options(source="simulated", radius=70.0).proximity == 70
    assert not Options().draws_surplus
    assert Options(source="simulated").draws_surplus
    assert not Options(source="simulated", surplus="refuse").draws_surplus


def test_weights_are_a_file_or_a_name_in_torchvision():
    assert Options().given_weights is None
    assert Options(weights="a/resnet18.pth").given_weights == Path("a/resnet18.pth")
    assert Options(weights="ResNet18_Weights.IMAGENET1K_V1").given_weights == "ResNet18_Weights.IMAGENET1K_V1"
    assert Options(weights="ResNet18_Weights.pth").given_weights == Path("ResNet18_Weights.pth")


def test_where_negatives_are_looked_for():
    assert Options().mining_pool() == Anywhere(1000)
    assert Options(nearest_sequences=20, sequence_images=7).mining_pool() == NearestSequences(20, 7)
    # FedVPR, appendix B: 3 of 333 and 50 of 20, the pool being of a thousand.
    assert [Options(nearest_sequences=n).mining_pool() for n in (333, 20)] == [
        NearestSequences(333, 3),
        NearestSequences(20, 50),
    ]


def test_pictures_are_as_wide_as_those_of_the_paper():
    sizes = [Options(height=height).size for height in (96, 192, 288, 384, 480)]
    assert sizes == [(96, 128), (192, 256), (288, 384), (384, 512), (480, 640)]
    assert Options(height=32, width=64).size == (32, 64)


@pytest.fixture
def line(tmp_path):
    """Forty frames of a railway line."""
    views = np.arange(40 * 4 * 8, dtype=np.uint8).reshape(40, 4, 8)
    np.savez(tmp_path / "nordland_64x32.npz", summer=views, winter=views, usable=np.ones(40, dtype=bool))
    return tmp_path


def test_the_last_cities_by_name_are_the_test(line):
    options = Options(nordland_stretches=10, nordland_regions=5)
    found = read_dataset(line, options)
    assert found.test.cities == ("region-4",)
    assert found.training.cities == ("region-0", "region-1", "region-2", "region-3")
    assert found.validation is None
    assert found.training.store is found.test.store
    own = read_dataset(line, options, own=True)
    assert own.test is None
    assert len(own.training.cities) == 5


@pytest.mark.parametrize(("share", "cities"), [(0.0, 0), (0.01, 1), (0.4, 2), (0.6, 3)])
def test_a_share_of_the_cities_is_the_test(line, share, cities):
    found = read_dataset(line, Options(nordland_stretches=10, test_share=share))
    assert (0 if found.test is None else len(found.test.cities)) == cities


def test_cities_are_for_what_they_are_named(line):
    options = Options(nordland_stretches=10, test_cities="region-1", validation_cities="region-0, region-3")
    found = read_dataset(line, options)
    assert found.test.cities == ("region-1",)
    assert found.validation.cities == ("region-0", "region-3")
    assert found.training.cities == ("region-2", "region-4")


def test_what_a_folder_must_hold(line, tmp_path_factory):
    with pytest.raises(DataError, match="no data set found; expected one of train_val, nordland"):
        read_dataset(tmp_path_factory.mktemp("empty"), Options())
    with pytest.raises(DataError, match="atlantis"):
        read_dataset(line, Options(nordland_stretches=10, test_cities="atlantis"))
    every = ",".join(f"region-{i}" for i in range(5))
    with pytest.raises(DataError, match="no city is left for training besides region-0, region-1"):
        read_dataset(line, Options(nordland_stretches=10, test_cities=every))


def test_a_table_of_another_name(tmp_path):
    write_places(tmp_path, cities=1, spots=2)
    (tmp_path / "places.csv").rename(tmp_path / "mine.csv")
    found = read_dataset(tmp_path, Options(table_file="mine.csv"))
    assert found.training.cities == ("city-0",)
    assert found.test is None
