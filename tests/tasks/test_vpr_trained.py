"""A trained model of places: descriptors of any images, an index, and the places that it finds."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr import place_index
from fedapps.tasks.vpr.given_images import metres_between
from fedapps.tasks.vpr.place_index import PlaceIndex
from fedapps.tasks.vpr.task import VprTask
from fedapps.tasks.vpr.trained import VprTrained
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from striped_places import SIZE, write_places
from striped_tasks import SPOTS, evaluated, model_of, task_with

pytestmark = pytest.mark.usefixtures("tiny_network")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    write_places(folder, cities=2, spots=SPOTS)
    return folder


@pytest.fixture
def trained():
    task = task_with(maps_megabytes=0)
    return VprTrained(task, model_of(task), task.facts(None))


def images_of(folder, pattern="0-query-0-*.png"):
    return sorted(folder.glob(pattern))


# -- descriptors -----------------------------------------------------------------------------------------------


def test_descriptors_are_those_of_the_evaluation(folder, trained):
    """The images of the common test, of city 1, through the same network in the same chunks."""
    data = trained.task.load_node(folder, 0, 1)
    common = data.extra["common"]["test"].images
    inputs = common.through(trained.module)
    paths = [folder / common.places.store.source.names[row] for row in common.places.image]
    described = trained.describe(paths)
    assert described.dtype == np.float32
    assert described.shape == (4 * SPOTS, trained.module.width)
    np.testing.assert_array_equal(described, inputs.describe(np.arange(len(common.places))))
    np.testing.assert_allclose(np.linalg.norm(described, axis=1), 1, atol=1e-6)


def test_recalls_of_located_images_are_those_of_the_evaluation(folder, trained):
    data = trained.task.load_node(folder, 0, 1)
    expected = evaluated(trained.task, trained.module, data)
    places = data.extra["common"]["test"].images.places
    paths = np.array([str(folder / places.store.source.names[row]) for row in places.image])
    index = trained.index(paths[places.database].tolist(), places.position[places.database])
    matches = trained.locate(paths[places.queries].tolist(), index, 10, positions=places.position[places.queries])
    near = matches.metres <= trained.task.options.recall_radius
    found = {f"test.recall_at_{n}": near[:, :n].any(axis=1).mean() for n in (1, 5, 10)}
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-12)


def test_images_of_any_kind_and_size_give_the_same_descriptor(folder, trained, tmp_path):
    path = images_of(folder)[0]
    picture = Image.open(path)
    pixels = np.asarray(picture)
    kinds = [path, str(path), picture, pixels, torch.from_numpy(pixels.copy()).permute(2, 0, 1)]
    described = trained.describe(kinds)
    assert (described == described[0]).all()
    alone = trained.describe(pixels[None])
    np.testing.assert_allclose(alone, described[:1], atol=1e-6)
    np.testing.assert_array_equal(trained.describe(path), alone)
    larger = picture.resize((4 * SIZE[1], 3 * SIZE[0]))
    mixed = trained.describe([larger, picture, larger.convert("L")], batch_size=2)
    np.testing.assert_allclose(mixed[1], described[0], atol=1e-6)
    assert mixed.shape == (3, trained.module.width)
    larger.save(tmp_path / "b.png")
    picture.save(tmp_path / "a.png")
    np.testing.assert_allclose(trained.describe(tmp_path), mixed[[1, 0]], atol=1e-6)


def test_bad_images_are_named(trained, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"broken.png: not an image, or damaged"):
        trained.describe([tmp_path / "broken.png"])
    with pytest.raises(DataError, match=r"none.png: no such image"):
        trained.describe([tmp_path / "none.png"])
    with pytest.raises(DataError, match=r"image 0 is a ndarray of float64 \[4, 4, 3\]; expected the path of a file"):
        trained.describe([np.zeros((4, 4, 3))])
    with pytest.raises(DataError, match=r"images of shape \[4, 4, 3\]; expected a list, \[n, H, W, 3\]"):
        trained.describe(np.zeros((4, 4, 3), dtype=np.uint8))
    with pytest.raises(DataError, match="batch_size = 0"):
        trained.describe([np.zeros((4, 4), dtype=np.uint8)], batch_size=0)
    assert trained.describe([]).shape == (0, trained.module.width)


# -- the index -------------------------------------------------------------------------------------------------


def index_of(descriptors, **changes):
    count = len(descriptors)
    position = np.stack([10.0 * np.arange(count), np.zeros(count)], axis=1)
    given = {"names": tuple(f"image-{row}" for row in range(count)), "position": position, "degrees": False}
    given |= {"cities": ("",) * count, "model": "m"} | changes
    return PlaceIndex(np.asarray(descriptors, dtype=np.float32), **given)


def without_faiss(monkeypatch):
    monkeypatch.setattr(place_index, "find_spec", lambda name: None)


@pytest.mark.parametrize("faiss", [True, False])
def test_matches_by_hand(monkeypatch, faiss):
    """Of two equal distances the first row comes first; distances of descriptors are Euclidean, of places metres."""
    if not faiss:
        without_faiss(monkeypatch)
    index = index_of([[0, 1], [1, 0], [0, -1], [1, 0]])
    matches = index.search(np.array([[1.0, 0.0], [0.6, 0.8]]), 3, position=np.array([[13.0, 4.0], [np.nan, 0]]))
    assert matches.rows.tolist() == [[1, 3, 0], [0, 1, 3]]
    assert matches.names[0] == ["image-1", "image-3", "image-0"]
    np.testing.assert_allclose(matches.distance, [[0, 0, 2**0.5], [0.4**0.5, 0.8**0.5, 0.8**0.5]], rtol=1e-6)
    assert matches.position[0].tolist() == [[10, 0], [30, 0], [0, 0]]
    assert matches.metres[0].tolist() == [5.0, pytest.approx(17.4642, abs=1e-4), pytest.approx(13.6015, abs=1e-4)]
    assert np.isnan(matches.metres[1]).all()
    assert index.search(np.array([[1.0, 0.0]]), 9).rows.shape == (1, 4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 6), st.integers(1, 12), st.booleans())
@settings(max_examples=30)
def test_faiss_and_torch_find_the_same(seed, size, queries, k, doubled):
    """Also where images occur many times, and where descriptors differ by rounding only."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, max(1, size // 3), size) if doubled else np.arange(size)
    vectors = rng.standard_normal((size, 4))[rows] + rng.choice([0, 1e-8], (size, 1))
    index = index_of(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    asked = index.descriptors[rng.integers(0, size, queries)]
    found = index.search(asked, k)
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_faiss(monkeypatch)
        other = index_of(index.descriptors).search(asked, k)
    assert found.rows.tolist() == other.rows.tolist()
    assert found.distance.tolist() == other.distance.tolist()
    exact = np.linalg.norm(index.descriptors.astype(np.float64) - asked[:, None], axis=2)
    assert found.rows.tolist() == exact.argsort(axis=1, kind="stable")[:, :k].tolist()


def test_distances_on_the_earth():
    """A degree of latitude is 111.2 km; at 60 degrees north one of longitude is half as much."""
    here = np.array([10.0, 60.0])
    assert metres_between(here, np.array([10.0, 61.0]), degrees=True) == pytest.approx(111_195, abs=1)
    assert metres_between(here, np.array([10.01, 60.0]), degrees=True) == pytest.approx(555.97, abs=0.01)
    assert metres_between(np.array([179.995, 0]), np.array([-179.995, 0]), degrees=True) == pytest.approx(1112, abs=1)


def test_an_index_is_kept_in_a_file(folder, trained, tmp_path):
    index = trained.index(images_of(folder), np.arange(12).reshape(6, 2), names=list("abcdef"), degrees=True)
    file = index.save(tmp_path)
    assert file == tmp_path / "index.safetensors"
    again = PlaceIndex.load(tmp_path)
    np.testing.assert_array_equal(again.descriptors, index.descriptors)
    np.testing.assert_array_equal(again.position, index.position)
    assert (again.names, again.degrees, again.cities, again.model) == (tuple("abcdef"), True, ("",) * 6, index.model)
    assert trained.locate(images_of(folder)[2:3], again, 1).names == [["c"]]
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"index.safetensors: is no index of places, or damaged"):
        PlaceIndex.load(file)
    with pytest.raises(DataError, match=r"none: no such index"):
        PlaceIndex.load(tmp_path / "none")


def test_another_models_index_is_refused(folder, trained):
    task = task_with(maps_megabytes=0)
    other = VprTrained(task, model_of(task, seed=1), task.facts(None))
    index = trained.index(images_of(folder))
    with pytest.raises(DataError, match=r"the index was made by another model: build it with index\(\) of this one"):
        other.locate(images_of(folder), index)
    with pytest.raises(DataError, match="there is no index of places"):
        other.locate(images_of(folder))
    with pytest.raises(DataError, match="k = 0"):
        trained.locate(images_of(folder), index, 0)


@pytest.mark.parametrize("k", [2.5, "2", None])
def test_the_number_of_matches_is_whole(k):
    with pytest.raises(DataError, match=f"k = {k}: must be a whole number of at least 1"):
        index_of([[0, 1], [1, 0]]).search(np.array([[1.0, 0.0]]), k)


def test_metres_of_different_cities_are_not_compared():
    """The positions of two cities have different origins, degrees have the same."""
    index = index_of([[1, 0], [0, 1]], cities=("rome", "oslo"))
    asked, position = np.array([[1.0, 0.0]]), np.array([[3.0, 4.0]])
    assert np.isnan(index.search(asked, 2, position=position).metres).all()
    assert np.isnan(index.search(asked, 2, position=position, cities=[""]).metres).all()
    assert index.search(asked, 2, position=position, cities=["rome"]).metres.tolist() == [[5.0, np.inf]]
    partly = index_of([[1, 0], [0, 1]], cities=("rome", ""))
    np.testing.assert_array_equal(partly.search(asked, 2, position=position, cities=["rome"]).metres, [[5.0, np.nan]])
    alone = index_of([[1, 0], [0, 1]], cities=("rome", "rome"))
    assert alone.search(asked, 1, position=position).metres.tolist() == [[5.0]]
    earth = index_of([[1, 0], [0, 1]], cities=("rome", "oslo"), degrees=True)
    assert np.isfinite(earth.search(asked, 2, position=position).metres).all()


@pytest.mark.parametrize("names", [range(6), np.arange(6), [Path(str(number)) for number in range(6)]])
def test_names_of_any_kind_become_strings(folder, trained, tmp_path, names):
    index = trained.index(images_of(folder), names=names, cities=names)
    assert index.names == index.cities == tuple("012345")
    assert PlaceIndex.load(index.save(tmp_path)).names == index.names
    position = np.zeros((6, 2))
    index = trained.index(images_of(folder), position, cities=names)
    matches = trained.locate(images_of(folder), index, 1, positions=position, cities=names)
    assert matches.metres.tolist() == [[0.0]] * 6


def test_impossible_degrees_are_refused(folder, trained):
    images = images_of(folder)[:2]
    tokyo = np.array([[139.76, 35.68], [np.nan, np.nan]])
    index = trained.index(images, tokyo, degrees=True)
    swapped = r"positions\[0, 1\] = 139.76, the lat in degrees; expected -90 to 90; are lon and lat swapped\?"
    with pytest.raises(DataError, match=swapped):
        trained.index(images, tokyo[:, ::-1], degrees=True)
    with pytest.raises(DataError, match=swapped):
        trained.locate(images, index, positions=tokyo[:, ::-1])
    with pytest.raises(DataError, match=r"positions\[0, 0\] = 4500, the lon in degrees.* are they metres\?"):
        trained.locate(images, index, positions=[[4500.0, 60.0], [10.0, 60.0]])


def test_bad_positions_are_refused(folder, trained):
    images = images_of(folder)
    with pytest.raises(DataError, match=r"positions of shape \[3, 2\]; expected \[6, 2\]"):
        trained.index(images, np.zeros((3, 2)))
    with pytest.raises(DataError, match="2 names of 6 images"):
        trained.index(images, names=["a", "b"])
    with pytest.raises(DataError, match="names = 'abcdef': must be a list"):
        trained.index(images, names="abcdef")
    with pytest.raises(DataError, match="no image to index"):
        trained.index([])


# -- folders, tables and predictions ---------------------------------------------------------------------------


def test_the_database_of_a_folder_is_indexed_with_its_positions(folder, trained):
    index = trained.index(folder)
    assert len(index) == 4 * SPOTS
    assert index.names[0] == "0-database-0-0.png"
    assert index.position[1].tolist() == [50.0, 0.0]
    assert set(index.cities) == {"city-0", "city-1"}
    matches = trained.locate(folder, index, 4 * SPOTS)
    assert matches.rows.shape == (4 * SPOTS, 4 * SPOTS)
    assert np.isinf(matches.metres).sum(axis=1).tolist() == [2 * SPOTS] * 4 * SPOTS  # those of the other city


def test_a_table_needs_a_path_alone(folder, trained, tmp_path):
    names = [path.name for path in images_of(folder)[:3]]
    for name in names:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    table = tmp_path / "walk.csv"
    table.write_text("path,lon,lat\n" + "".join(f"{name},10.{row},60\n" for row, name in enumerate(names)))
    index = trained.index(table)
    assert index.degrees
    assert index.position.tolist() == [[10.0, 60.0], [10.1, 60.0], [10.2, 60.0]]
    matches = trained.locate(table, index, 1)
    assert matches.metres.tolist() == [[0.0]] * 3
    table.write_text("path\n" + "\n".join(names) + "\n")
    assert np.isnan(trained.index(table).position).all()
    table.write_text("path,lon,lat\n" + f"{names[0]},60,1000\n")
    with pytest.raises(DataError, match=r"walk.csv, line 2, column lat: '1000'; expected degrees from -90 to 90"):
        trained.index(table)


def test_a_folder_whose_table_has_another_name_is_not_indexed_without_positions(folder, trained, tmp_path):
    names = [path.name for path in images_of(folder)[:2]]
    for name in names:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert np.isnan(trained.index(tmp_path).position).all()
    with pytest.raises(DataError, match=r"no image has a position; expected a table places\.csv .* lon and lat$"):
        trained.keep_index(tmp_path)
    table = tmp_path / "images.csv"
    table.write_text("path,x,y\n" + "".join(f"{name},{row},0\n" for row, name in enumerate(names)))
    for index in (trained.index, trained.keep_index):
        with pytest.raises(
            DataError, match=r"no image has a position; .*; not read: images\.csv \(rename it, or give its path"
        ):
            index(tmp_path)
    assert trained.places is None
    assert trained.describe(tmp_path).shape[0] == len(trained.index(tmp_path, np.zeros((2, 2)))) == 2
    trained.keep_index(table)
    assert trained.places.position.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    table.rename(tmp_path / "places.csv")
    assert trained.index(tmp_path).position.tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_a_prediction_is_a_descriptor_or_the_matches_in_an_index(folder, trained):
    paths = images_of(folder)
    rows = list(trained.rows([paths[0], io.StringIO(f"{paths[1]}\n\n{paths[2]}\n")], batch_size=2))
    assert [row["image"] for row in rows] == [str(path) for path in paths[:3]]
    np.testing.assert_allclose([row["descriptor"] for row in rows], trained.describe(paths[:3]), atol=1e-6)
    rows = list(trained.rows([folder], batch_size=5))
    assert len(rows) == 4 * SPOTS
    assert rows[0]["image"] == "0-query-0-0.png"
    best = rows[0]["matches"][0]
    assert set(best) == {"image", "distance", "x", "y", "metres"}
    trained.places = trained.index(folder)
    same = next(trained.rows([folder / "0-query-0-0.png"]))["matches"][0]
    assert same == {**best, "distance": pytest.approx(best["distance"], abs=1e-6), "metres": None}


# -- the model folder ------------------------------------------------------------------------------------------


def test_a_model_folder_keeps_the_index_and_needs_no_file_of_weights(folder, tmp_path):
    """The weights' file decides the normalisation of images, which the model keeps."""
    task = task_with(maps_megabytes=0)
    weights = tmp_path / "weights.npz"
    network = model_of(task)
    renamed = {name.split(".", 1)[1]: tensor.numpy() for name, tensor in network.state_dict().items()}
    np.savez(weights, **{name: array for name, array in renamed.items() if not name.startswith("p")})
    task = task_with(maps_megabytes=0, weights=str(weights))
    trained = VprTrained(task, model_of(task), task.facts(None))
    assert trained.module.normalise.kind == "caffe"
    trained.places = trained.index(images_of(folder))
    described = trained.describe(images_of(folder))
    trained.save(tmp_path / "model")
    weights.unlink()
    again = VprTrained.read(tmp_path / "model", lambda name: VprTask)
    assert isinstance(again, VprTrained)
    np.testing.assert_array_equal(again.describe(images_of(folder)), described)
    assert again.locate(images_of(folder), k=1).distance.max() == 0
    expected = evaluated(task, trained.module, trained.data(folder, 0, 1))
    assert again.evaluate(again.data(folder, 0, 1)) == expected
    again.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "files" / "index.safetensors").is_file()


def test_the_network_to_export_describes_pixels_of_the_options_size(folder, trained):
    network = trained.network()
    pixels = np.stack([np.asarray(Image.open(path)) for path in images_of(folder)])
    found = network.module(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    torch.testing.assert_close(found.detach(), torch.from_numpy(trained.describe(pixels)))
    assert network.module is not trained.module
    assert network.inputs[0].shape == (2, 3, *SIZE)
    assert f"resized to {SIZE[0]} x {SIZE[1]} pixels" in network.outside


@pytest.mark.slow
@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of published datasets")
def test_winter_is_located_in_summer_as_in_the_evaluation():
    """All frames of Nordland, in which neighbours of a frame are farther away than a correct match."""
    nordland = Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "nordland"
    task = task_with(test_share=0.0)
    trained = VprTrained(task, model_of(task), task.facts(None))
    matches = trained.locate(nordland, trained.index(nordland), 5)
    near = matches.metres <= task.options.recall_radius
    found = trained.evaluate(task.load_all(nordland), final=False)
    for n in (1, 5):
        assert near[:, :n].any(axis=1).mean() == pytest.approx(found[f"train.recall_at_{n}"])
