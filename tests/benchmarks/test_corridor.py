"""The benchmark of the corridor: what counts as a right answer, and data that do not fit."""

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import corridor


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three queries and four references, empty files."""
    images, folder = tmp_path / "images", tmp_path / "data"
    folder.mkdir()
    for part, count in (("query", 3), ("ref", 4)):
        (images / part).mkdir(parents=True)
        for number in range(count):
            (images / part / f"{number:07d}.jpg").touch()
    with tarfile.open(folder / "images.tar", "w") as archive:
        for part in ("query", "ref"):
            archive.add(images / part, part)
    (folder / "ground_truth.csv").write_text("query,references\n0,0 1\n1,0 1 2\n2,3\n", encoding="utf-8")
    return folder


class Answering:
    """A model that answers the queries with these rows."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def index(self, images: list[Path], positions: Any) -> list[str]:
        assert np.shape(positions) == (len(images), 2)
        return [path.parent.name for path in images]

    def locate(self, images: list[Path], index: list[str], k: int) -> SimpleNamespace:
        assert ({path.parent.name for path in images}, set(index), k) == ({"query"}, {"ref"}, 1)
        return SimpleNamespace(rows=np.array(self.rows)[:, None])


def test_an_answer_is_right_that_the_ground_truth_names(data: Path, tmp_path: Path) -> None:
    queries, references, truth = corridor.read(data, tmp_path / "unpacked")
    assert (len(queries), len(references), truth) == (3, 4, [{0, 1}, {0, 1, 2}, {3}])
    model: Any = Answering([1, 3, 3])
    assert corridor.recall_at_1(model, queries, references, truth) == pytest.approx(2 / 3)


def test_data_that_are_missing_or_do_not_fit_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no images\.tar and no ground_truth\.csv"):
        corridor.read(tmp_path, tmp_path / "unpacked")
    (data / "ground_truth.csv").write_text("query,references\n0,0\n1,1\n2,4\n", encoding="utf-8")
    with pytest.raises(ValueError, match="does not fit its 3 queries"):
        corridor.read(data, tmp_path / "unpacked")
