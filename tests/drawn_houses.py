"""Small houses in the real data's file formats, and small models in them, for tests of the task "vln"."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from fedapps.tasks.vln.connectivity import Graph
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.task import VlnTask
from safetensors.torch import save_file

from fedapps.base.errors import DataError
from fedapps.base.options import key_of

#: A floor of 3 x 4 viewpoints, 2 m apart, with two walls, and a landing above the last one.
POSITIONS = np.array([(2.0 * x, 2.0 * y, 1.5) for y in range(3) for x in range(4)] + [(6.0, 6.0, 3.5)])
EDGES = [
    *((4 * y + x, 4 * y + x + 1) for y in range(3) for x in range(3) if (y, x) != (1, 1)),
    *((4 * y + x, 4 * y + x + 4) for y in range(2) for x in range(4) if (y, x) != (0, 2)),
    (11, 12),
]
NAMES = [f"v{number:02d}" for number in range(len(POSITIONS))]
TEXTS = ("Walk past the {a} and stop at the {b}.", "go to the {b} , leaving the {a} !", "The {b} is where you stop...")
THINGS = ("sofa", "bed", "sink", "table", "lamp", "door", "stairs", "rug", "plant", "shelf", "stove", "desk", "piano")


def graph_entries(positions=POSITIONS, edges=EDGES, names=NAMES, *, excluded=()):
    """What a connectivity file holds, with everything visible that is within 5 m."""
    size = len(positions)
    joined = np.zeros((size, size), dtype=bool)
    for one, other in edges:
        joined[one, other] = joined[other, one] = True
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    visible = (apart < 5) & ~np.eye(size, dtype=bool)
    entries = []
    for row, name in enumerate(names):
        pose = np.eye(4)
        pose[:3, 3] = positions[row]
        entries.append(
            {
                "image_id": name,
                "pose": pose.ravel().tolist(),
                "included": row not in excluded,
                "visible": visible[row].tolist(),
                "unobstructed": joined[row].tolist(),
                "height": 1.5,
            }
        )
    return entries


def house_graph(scan="house"):
    """The graph of one house, as it is read from the file of :func:`write_graph`."""
    entries = graph_entries()
    joined, visible = (np.array([entry[name] for entry in entries]) for name in ("unobstructed", "visible"))
    return Graph(scan, tuple(NAMES), POSITIONS, joined, visible)


def write_graph(folder, scan, **changes):
    """The graph of one house."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{scan}_connectivity.json").write_text(json.dumps(graph_entries(**changes)))


def path_entry(scan, stops, number, *, heading=0.0, texts=3):
    """A path of R2R with instructions that name a thing at its start and at its end."""
    words = {"a": THINGS[stops[0]], "b": THINGS[stops[-1]]}
    return {
        "scan": scan,
        "path_id": number,
        "path": [NAMES[stop] for stop in stops],
        "heading": heading,
        "distance": 1.0,
        "instructions": [text.format(**words) for text in TEXTS[:texts]],
    }


PATHS = [
    (0, 1, 2, 3, 7),
    (8, 9, 10, 11, 12),
    (5, 1, 2, 3, 7, 11),
    (4, 5, 9, 10, 6),
    (12, 11, 7, 3, 2),
    (0, 4, 8, 9, 10),
]


def write_world(folder, *, seen=("houseA", "houseB"), unseen=("houseC",), width=6):
    """Houses with paths of all three splits, and random features in ``features.npz``."""
    for scan in (*seen, *unseen):
        write_graph(folder / "connectivity", scan)
    splits = {
        "train": [
            path_entry(scan, stops, 10 * n + m) for n, scan in enumerate(seen) for m, stops in enumerate(PATHS[:4])
        ],
        "val_seen": [path_entry(scan, PATHS[4], 100 + n) for n, scan in enumerate(seen)],
        "val_unseen": [path_entry(scan, stops, 200 + n) for scan in unseen for n, stops in enumerate(PATHS[:2])],
    }
    for split, entries in splits.items():
        (folder / f"R2R_{split}.json").write_text(json.dumps(entries))
    rng = np.random.default_rng(0)
    features = {
        f"{scan}_{name}": rng.random((36, width)).astype(np.float32) for scan in (*seen, *unseen) for name in NAMES
    }
    np.savez(folder / "features.npz", **features)
    return folder


OPTIONS = Options(
    features="file",
    feature_file="features.npz",
    feature_width=6,
    vocabulary_size=30,
    hidden=16,
    word_width=8,
    action_width=4,
    max_actions=6,
    sampled_paths=5,
)


def task_with(**changes):
    """The task on the houses of :func:`write_world`."""
    return VlnTask(replace(OPTIONS, **changes))


def run_keys(folder, **changes):
    """The run config of a small run in the houses of :func:`write_world`; ``changes`` are options of the task."""
    options = {f"vln.{key_of(name)}": value for name, value in asdict(replace(OPTIONS, **changes)).items()}
    return {
        "task": "vln", "data-dir": str(folder), "name": "run", "rounds": 2, "epochs": 1, "batch-size": 4,
        "learning-rate": 0.01, "clip-norm": 40.0, "weighting": "num-examples", "evaluate-every": 1, "collect-after": 0,
        **options,
    }  # fmt: skip


def message_of(call, *arguments):
    """The message of the error that a call raises."""
    with pytest.raises(DataError) as error:
        call(*arguments)
    return str(error.value)


def saved(model, path):
    """The file of a model's weights."""
    save_file(model.state_dict(), path)
    return str(path)


def speaking(folder):
    """Options with a speaker that says something, whose labels are cached in the same folder."""
    torch.manual_seed(0)
    file = saved(task_with(stage="speaker").build_model(), folder / "speaker.safetensors")
    return {"speaker_file": file, "feature_cache": str(folder / "cache")}
