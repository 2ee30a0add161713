"""Every reader of files, given damaged ones: it reads them, or raises an error of ours that says what is wrong.

``make fuzz`` draws many more examples.
"""

import base64
import contextlib
import csv
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from damaged_files import Files, bounded, damaged, write
from drawn_houses import NAMES, graph_entries, path_entry
from fedapps.clients.rules import NodeRules, RulesError
from fedapps.tasks.driving.data import read_folder
from fedapps.tasks.driving.world.traffic import lane_swap_drivers
from fedapps.tasks.images.formats import read_folder as read_image_folder
from fedapps.tasks.images.options import Options as ImageOptions
from fedapps.tasks.lqr.world import read_rollouts, robot_files
from fedapps.tasks.social.scenes import participant_files, read_participant, split_scenes
from fedapps.tasks.text.corpus import Columns, Layout, read_corpus
from fedapps.tasks.text.vocabulary import read_vocabulary
from fedapps.tasks.text.word_vectors import vectors_in
from fedapps.tasks.vln.dataset import read_dataset as read_houses
from fedapps.tasks.vln.features import read_boxes, read_classes, read_features, read_positions, read_rooms
from fedapps.tasks.vln.houses import path_of, starts_of
from fedapps.tasks.vln.instructions import Vocabulary, entries_of
from fedapps.tasks.vln.options import Options as HouseOptions
from fedapps.tasks.vpr.datasets import damaged as damaged_images
from fedapps.tasks.vpr.datasets import read_dataset as read_places
from fedapps.tasks.vpr.images import ImageFiles, ImageStore
from fedapps.tasks.vpr.options import Options as PlaceOptions
from flwr.common.config import parse_config_args
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_files import drawn, hub_dataset
from PIL import Image

from fedapps.app.node_ledger import NodeLedger
from fedapps.base.errors import DataError
from fedapps.base.text_files import flattened, read_toml
from fedapps.config.clock import SimulatedTime, devices_of
from fedapps.config.parsing import ConfigError, read
from fedapps.config.recipe_files import read_pipeline, read_recipe
from fedapps.deployment.supernode import SuperNode


@dataclass(frozen=True)
class Reader:
    """A reader, and small valid files of it, which are made once."""

    files: Callable[[], Files]
    read: Callable[[Path], object]


def table(*rows: tuple[object, ...]) -> bytes:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode()


def lines(*entries: object) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def image(kind: str, mode: str = "RGB", **how: object) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((12, 9), 60).convert(mode).save(file, kind, **how)
    return file.getvalue()


def archive(files: Files, kind: str = "tar") -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(zipfile.ZipInfo(name), content)
        return file.getvalue()
    with tarfile.open(fileobj=file, mode="w") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


# -- texts -----------------------------------------------------------------------------------------------------


def texts() -> Files:
    rows = [("label", "text"), (1, "so it was"), (2, 'a "word", é'), (1, "two\nlines"), (2, "")]
    return {"train.csv": table(*rows), "test.csv.gz": gzip.compress(table(*rows[:3]), mtime=0)}


def json_texts() -> Files:
    return {"train.jsonl": lines(*({"label": n % 2, "text": f"text {n}"} for n in range(4)))}


def tsv_texts() -> Files:
    return {"train.tsv": b'text\tlabel\nso it was\t1\n"it is\t0\n'}


def read_texts(folder: Path) -> None:
    candidates = ("train.csv", "train.jsonl", "train.tsv"), ("test.csv",)
    corpus = read_corpus(folder, Layout(*candidates, Columns(("text",), "label"), (), 2))
    assert len(corpus.train.texts) == len(corpus.train.labels)
    assert corpus.train.labels.max() < 2


VECTORS = {"the": (0.5, -1.0, 2.0), ". .": (1.0, 2.0, 3.0), "a\xa0b": (0.0, 0.0, 1e-3)}


def vectors_as_text() -> Files:
    body = "".join(" ".join([word, *map(str, numbers)]) + "\n" for word, numbers in VECTORS.items()).encode()
    return {
        "a.txt": body,
        "b.vec": f"{len(VECTORS)} 3\n".encode() + body,
        "c.zip": archive({"glove.3d.txt": body, "glove.2d.txt": b"a 1 2\n"}, "zip"),
        "d.txt.xz": lzma.compress(body),
    }


def vectors_in_binary() -> Files:
    words = {word: np.array(numbers, "<f4") for word, numbers in VECTORS.items() if " " not in word}
    return {"a.bin": b"2 3\n" + b"".join(word.encode() + b" " + v.tobytes() + b"\n" for word, v in words.items())}


def vectors_of_gensim() -> Files:
    models = pytest.importorskip("gensim.models")
    saved = models.KeyedVectors(3)
    saved.add_vectors(list(VECTORS), np.array(list(VECTORS.values()), dtype=np.float32))
    return {"a.kv": pickle.dumps(saved, protocol=4)}


def read_vectors(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        words: tuple[str, ...] = ()
        for read_one in (vectors_in, lambda path, width: read_vocabulary(path, 0, width=width)):
            try:
                found = read_one(path, 3)
            except DataError:
                continue
            if words := getattr(found, "words", ()):
                assert len(set(words)) == len(words)
            else:
                assert np.isfinite(found.table).all()
                assert found.table.shape == (len(found.table), 3)


def tokenizers() -> Files:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "token": 1, "##s": 2, "of": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return {"t.json": tokenizer.to_str().encode(), "words.txt": b"the\nof\nNew York\n"}


def read_vocabularies(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        vocabulary = read_vocabulary(path, 10)
        assert vocabulary.encode(["tokens of the", ""], 5)
        assert len(vocabulary.words) < 10_000


# -- images and places -----------------------------------------------------------------------------------------


def images() -> Files:
    kinds = {"PNG": "LA", "JPEG": "RGB", "TIFF": "I;16", "GIF": "P", "WEBP": "RGBA", "BMP": "L", "PPM": "RGB"}
    files = {f"a.{kind.lower()}": image(kind, mode) for kind, mode in kinds.items()}
    return files | {"b.png": image("PNG"), "b.tiff": image("TIFF", compression="tiff_lzw")}


def read_images(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    source = ImageFiles(folder, names)
    problems = damaged_images(source, np.arange(len(names)))
    for index in range(len(names)):
        try:
            decoded = source.decode(index)
        except DataError:
            continue
        assert decoded.mode == "RGB"
        assert index not in problems


def place_table() -> Files:
    head = ("path", "sequence", "role", "lon", "lat", "city")
    rows = [(f"{n}.jpg", f"s{n}", role, 10 + n / 1e4, 50, "oslo") for n, role in enumerate(("query", "database"))]
    return {"places.csv": table(head, *rows), "0.jpg": image("JPEG"), "1.jpg": image("JPEG")}


def streets() -> Files:
    files = {"continents.csv": table(("city", "continent"), ("atlantis", "lost"))}
    for role in ("query", "database"):
        folder, one, other = f"train_val/oslo/{role}", f"{role}0", f"{role}1"
        positions = ("key", "easting", "northing"), (one, 500.0, 9000.5), (other, 510.0, 9000.0)
        sequences = ("key", "sequence_key"), (one, role), (other, role)
        files[f"{folder}/raw.csv"] = table(("key", "pano"), (one, False), (other, True))
        files[f"{folder}/postprocessed.csv"] = table(*positions)
        files[f"{folder}/seq_info.csv"] = table(*sequences)
        files[f"{folder}/images/{one}.jpg"] = image("JPEG")
    return files


def tower() -> Files:
    head = ("id", "floor", "split", "area", "section", "floor_range", "video")
    rows = [
        (f"{split}{n}", f"floor{n + 1}", split, "hall", "above-ground", "lowrise", f"v{n}")
        for n in range(2)
        for split in ("query", "gallery")
    ]
    names = {f"{row[0]}.jpg": image("JPEG") for row in rows}
    return {"metadata.csv": table(head, *rows), "images_128x96.tar": archive(names)}


def railway() -> Files:
    grey = np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3)
    return {"nordland_64x32.npz": npz(summer=grey, winter=grey + 1, usable=np.ones(4, dtype=bool))}


def read_all_places(folder: Path) -> None:
    places = read_places(folder, PlaceOptions(nordland_stretches=2, nordland_regions=2, test_share=0)).training
    assert np.isfinite(places.position).all()
    assert len(places) == len(places.track)
    ImageStore(places.store.source, capacity=0).load(places.image[:2], (4, 5))


# -- images of classes -----------------------------------------------------------------------------------------


def class_folders() -> Files:
    return {
        "train/cat/a.png": image("PNG"), "train/cat/b.jpg": image("JPEG"), "train/dog/c.png": image("PNG", "L"),
        "test/dog/d.png": image("PNG"),
    }  # fmt: skip


def class_archives() -> Files:
    pixels, labels = drawn(4)
    return {"train.npz": npz(images=pixels, labels=labels % 2), "test.npz": npz(x=pixels / 255, y=labels % 2)}


def class_parquet() -> Files:
    pixels, labels = drawn(4)
    file = io.BytesIO()
    hub_dataset(pixels, labels % 2, classes=("cat", "dog")).to_parquet(file)
    return {"data/train-00000-of-00001.parquet": file.getvalue()}


def read_labelled(folder: Path) -> None:
    layout = ImageOptions(dataset="pets", classes=2, height=6).layout()
    for images in read_image_folder(folder, layout).splits.values():
        images.require_readable()
        assert images.pixels(layout.size).shape == (len(images), 3, 6, 6)


# -- houses ----------------------------------------------------------------------------------------------------


def houses() -> Files:
    graph = json.dumps(graph_entries()).encode()
    path = path_entry("houseA", (0, 1, 2, 3, 7), 1)
    return {
        "connectivity/houseA_connectivity.json": graph,
        "connectivity.tar": archive({"houseB_connectivity.json": graph}),
        "R2R_train.json": json.dumps([path, path | {"path_id": 2}]).encode(),
    }


def rxr() -> Files:
    entry = {"path_id": 1, "scan": "houseA", "heading": 1.5, "path": NAMES[:3], "language": "en-US"}
    return {
        "houseA_connectivity.json": json.dumps(graph_entries()).encode(),
        "rxr_train_guide.jsonl": lines(*(entry | {"instruction": text} for text in ("Go.", "Walk é."))),
        "words.txt": b"<PAD>\nleft\ngo\n",
    }


def read_all_houses(folder: Path) -> None:
    dataset = read_houses(folder, HouseOptions())
    for graph in dataset.graphs.values():
        assert graph.navigable.shape == (len(graph.viewpoints),) * 2
    if (folder / "words.txt").exists():
        Vocabulary.read(folder / "words.txt")


def objects() -> Files:
    boxes = {"houseA": {"v00": {"12": ["sofa", [3, 4], [[1, 2, 30, 40], [0, 5, 6, 7.5]]]}}}
    positions = ("scan", "object_id", "x", "y", "z", "median_residual_deg"), ("houseA", "12", 1, 2.5, 0, 1.5)
    rooms = ("scan", "viewpoint", "label_name_inferred", "split"), ("houseA", "v00", "kitchen", "train")
    return {
        "houseA_connectivity.json": json.dumps(graph_entries()).encode(),
        "bbox.json": json.dumps(boxes).encode(),
        "label_mpcat40.csv": table(("name", "mpcat40"), ("sofa", "sofa"), ("oak", "wall")),
        "objects3d.csv": table(*positions),
        "rooms.csv": table(*rooms),
    }


def read_objects(folder: Path) -> None:
    graphs = read_houses(folder, HouseOptions()).graphs
    boxes = read_boxes(folder, graphs)
    read_classes(folder), read_positions(folder), read_rooms(folder)
    for views in (boxes or {}).values():
        rows, directions = views.bearings()
        assert np.isfinite(directions).all()
        assert len(rows) == len(directions)


def features() -> Files:
    values = np.random.default_rng(0).random((36, 2)).astype(np.float32)
    code = base64.b64encode(values.tobytes()).decode()
    hdf5 = io.BytesIO()
    with pytest.importorskip("h5py").File(hdf5, "w") as file:
        file.create_dataset("houseA_v00", data=values, compression="gzip")
    return {
        "f.npz": npz(houseA_v00=values),
        "f.tsv": f"houseA\tv00\t640\t480\t60\t{code}\n".encode(),
        "f.hdf5": hdf5.getvalue(),
    }


def read_all_features(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        try:
            found = read_features(path, ["houseA_v00"], 2)
        except DataError:
            continue
        assert np.isfinite(found).all()


def paths_in_hand() -> Files:
    entry = {"scan": "houseA", "path": NAMES[:3], "heading": 1.5, "instructions": ["Go.", "Walk é."]}
    return {"a.json": json.dumps([entry, entry]).encode(), "b.jsonl": lines(entry, {**entry, "viewpoint": NAMES[0]})}


def read_paths_in_hand(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        for place, entry in entries_of(path):
            assert path_of(place, entry).viewpoints
            assert all(start.instruction is not None for start in starts_of(place, entry))


# -- robots ----------------------------------------------------------------------------------------------------


def scenes() -> Files:
    scene = {
        "score": 79, "identifier": "1", "links": [[1, 2, "interact"]], "robot": {"id": 0},
        "room": [[-200, -100], [300, -100], [300, 400], [-200, 400], [-200, -100]],
        "humans": [{"id": 1, "xPos": 100, "yPos": 0, "orientation": 90}],
        "objects": [{"id": 2, "xPos": 0, "yPos": 300.5, "orientation": 180}],
    }  # fmt: skip
    return {"raw_data/a.json": lines(*(scene | {"identifier": str(n)} for n in range(4)))}


def read_scenes(folder: Path) -> None:
    for name in participant_files(folder):
        found = read_participant(folder, name)
        assert all(0 <= scene.score <= 100 for scene in found)
        assert np.isfinite([pose for scene in found for pose in scene.humans + scene.objects]).all()
        split_scenes(found, name, seed=0)


def trials() -> Files:
    cars = [f"{quantity}{car}" for car in "rh" for quantity in ("x", "y", "vx", "vy", "ax", "ay")]
    robot, human = (-6.1, 30, 0.5, 4, 0.25), (-1.8, 28, -0.5, 1, -0.75)
    rows = [
        (trial, 5, step, step / 10, -140 + 3 * step, *robot, -138 + 2.8 * step, *human)
        for trial in range(2)
        for step in range(3)
    ]
    world = {"scenario": "lane-swap", "seed": 0, "blocks": {"5": asdict(lane_swap_drivers(1)[0])}}
    return {
        "trials.csv": table(("trial", "block", "step", "t", *cars), *rows),
        "world.json": json.dumps(world).encode(),
    }


def read_trials(folder: Path) -> None:
    for sessions in read_folder(folder).blocks.values():
        assert all(np.isfinite(session.states).all() for session in sessions)


def robots() -> Files:
    head = ("control_weight", "split", "y", "v", "u", "next_y", "next_v")
    rows = [(1.0, split, 0.5, -1, 2, 0.25, 1e-3) for split in ("train", "train", "validation", "test")]
    return {"robot-a.csv": table(head, *rows), "robot-b.csv.xz": lzma.compress(table(head, *rows))}


def read_robots(folder: Path) -> None:
    for part in read_rollouts(robot_files(folder), 0.3).tables.values():
        assert np.isfinite(part).all()


# -- configs ---------------------------------------------------------------------------------------------------


def recipes() -> Files:
    recipe = 'task = "lqr"\nmethods = "fedavg, fedprox(mu=0.1)"\nrounds = 3\nlearning-rate = 0.1\n[lqr]\nhorizon = 4\n'
    stages = '\n[pipeline.one]\nseed = 1\n[pipeline.two]\nseed = 2\n[compare]\nvary = "seed=1,2"\n'
    return {"a.toml": recipe.encode(), "b.toml": f'base = "a"\n{stages}'.encode()}


def read_recipes(folder: Path) -> None:
    for name in ("a.toml", "b.toml:one"):
        read(read_recipe(folder / name))
    read_pipeline(folder / "b.toml")


def node_configs() -> Files:
    return {"node.toml": b'data-dir = "/data/car-7"\npartition-id = 3\nprivate = "own.*, b"\n'}


def read_node_config(folder: Path) -> None:
    *_, config = SuperNode().command(["--node-config", str(folder / "node.toml")])
    assert parse_config_args([config]) == flattened(read_toml(folder / "node.toml"))


def clock_files() -> Files:
    devices = table(("device", "speed", "up", "down"), ("a", 2.0, 1e6, 1e6), ("b", 0.5, "", 2e6))
    return {"devices.csv": devices, "trace.csv": table(("device", "start", "end"), ("a", 0, 60), ("b", 30.5, 90))}


def read_clock_files(folder: Path) -> None:
    trace = str(folder / "trace.csv")
    clock = SimulatedTime(clock_step_seconds="", clock_devices=str(folder / "devices.csv"), clock_availability=trace)
    devices_of(clock, 2, 0)


def ledgers() -> Files:
    rows = [{"run": "a", "method": "fedavg", "round": n, "clip": 1.0, "noise": 2.0, "number": n} for n in (1, 2, 3)]
    return {NodeLedger(Path(), RULES).path.name: lines(*rows)}


def read_ledger(folder: Path) -> None:
    with contextlib.suppress(RulesError):
        NodeLedger(folder, RULES).check(2.0)


RULES = NodeRules(dp="local", max_epsilon=100.0)
READERS = {
    "texts": Reader(texts, read_texts),
    "texts in JSON lines": Reader(json_texts, read_texts),
    "texts in TSV": Reader(tsv_texts, read_texts),
    "word vectors": Reader(vectors_as_text, read_vectors),
    "binary word vectors": Reader(vectors_in_binary, read_vectors),
    "word vectors of gensim": Reader(vectors_of_gensim, read_vectors),
    "vocabularies": Reader(tokenizers, read_vocabularies),
    "images": Reader(images, read_images),
    "folders of classes": Reader(class_folders, read_labelled),
    "archives of classes": Reader(class_archives, read_labelled),
    "Parquet files of classes": Reader(class_parquet, read_labelled),
    "a table of places": Reader(place_table, read_all_places),
    "MSLS": Reader(streets, read_all_places),
    "the tower": Reader(tower, read_all_places),
    "Nordland": Reader(railway, read_all_places),
    "R2R": Reader(houses, read_all_houses),
    "RxR": Reader(rxr, read_all_houses),
    "paths in hand": Reader(paths_in_hand, read_paths_in_hand),
    "objects": Reader(objects, read_objects),
    "features": Reader(features, read_all_features),
    "SocNav1": Reader(scenes, read_scenes),
    "driving": Reader(trials, read_trials),
    "robots": Reader(robots, read_robots),
    "recipes": Reader(recipes, read_recipes),
    "node configs": Reader(node_configs, read_node_config),
    "devices and their traces": Reader(clock_files, read_clock_files),
    "ledgers": Reader(ledgers, read_ledger),
}


@contextlib.contextmanager
def naming(folder: Path) -> Iterator[None]:
    """A plain ``ValueError`` is one of ours if it names the file."""
    try:
        yield
    except ValueError as error:
        if str(folder) not in str(error) and not isinstance(error, (DataError, ConfigError)):
            raise AssertionError(f"{type(error).__name__}: {error}: which file?") from error
        if isinstance(error, UnicodeError):
            raise AssertionError("an error of Python's") from error
        raise DataError from error


@cache
def valid(name: str) -> Files:
    return READERS[name].files()


@pytest.mark.parametrize("name", READERS)
def test_the_files_are_valid(tmp_path, name):
    READERS[name].read(write(tmp_path, valid(name)))


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_are_read_or_refused(tmp_path_factory, name, data):
    folder = tmp_path_factory.getbasetemp() / "fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, damaged(valid(name), data.draw))
    with contextlib.suppress(DataError, ConfigError), bounded(), naming(folder):
        READERS[name].read(folder)
