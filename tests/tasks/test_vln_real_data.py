"""Room-to-Room itself, where its files are at hand: counts, words, paths, floors and ceiling."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.vln.dataset import read_dataset, sample_paths
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.task import VlnTask

DATA = Path(os.environ.get("FEDAPPS_DATA", "")) / "vln"
pytestmark = pytest.mark.skipif(
    not os.environ.get("FEDAPPS_DATA") or not DATA.is_dir(), reason="needs FEDAPPS_DATA with the folder vln"
)


@pytest.fixture(scope="module")
def dataset():
    return read_dataset(DATA, Options())


def test_counts_are_the_published_ones(dataset):
    counts = {split: sum(map(len, houses.values())) for split, houses in dataset.paths.items()}
    assert counts == {"train": 4675, "val_seen": 340, "val_unseen": 783}
    texts = {
        split: sum(len(path.instructions) for paths in houses.values() for path in paths)
        for split, houses in dataset.paths.items()
    }
    assert texts == {"train": 14039, "val_seen": 1021, "val_unseen": 2349}
    assert (len(dataset.graphs), len(dataset.seen), len(dataset.unseen)) == (90, 61, 11)
    assert sum(len(graph.viewpoints) for graph in dataset.graphs.values()) == 10_567
    assert sum(int((~graph.navigable.any(axis=1)).sum()) for graph in dataset.graphs.values()) == 8
    assert len(dataset.vocabulary(Options())) == 992


def test_almost_all_test_paths_of_unseen_houses_are_shortest_paths_that_a_speaker_can_label(dataset):
    found = 0
    for scan in dataset.unseen:
        shortest = {path.path for path in sample_paths(dataset.graphs[scan], 0, np.random.default_rng(0))}
        found += sum(path.path in shortest for path in dataset.paths["val_unseen"][scan])
    assert found == 767


@pytest.fixture
def unseen(dataset, tmp_path):
    """The unseen houses with features of one number, so that they are read in a second."""
    graphs = [dataset.graphs[scan] for scan in dataset.unseen]
    names = [f"{graph.scan}_{viewpoint}" for graph in graphs for viewpoint in graph.viewpoints]
    np.savez(tmp_path / "one.npz", **dict(zip(names, torch.zeros(len(names), 36, 1).numpy(), strict=True)))
    options = Options(houses="unseen", features="file", feature_file=str(tmp_path / "one.npz"), feature_width=1)
    return VlnTask(options)


def test_floors_and_ceiling(unseen):
    """Eight of the 783 paths are not shortest paths, which costs the teacher no success."""
    data = unseen.load_all(DATA)
    assert data.count("val_unseen") == 2349
    found = unseen.references(DATA)
    assert found["shortest path"]["val_unseen.sr"] == 1
    assert found["shortest path"]["val_unseen.ndtw"] == 1
    assert 0.99 < found["shortest path"]["val_unseen.spl"] < 1
    assert 0.16 < found["forward"]["val_unseen.sr"] < 0.20
    assert 0.15 < found["random"]["val_unseen.sr"] < 0.21
    assert 0.03 < found["random walk"]["val_unseen.sr"] < 0.09
