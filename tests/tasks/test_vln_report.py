"""Walks through houses, sentences of a speaker and results by house: reading, drawing and malformed traces."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedapps.tasks.vln.report_houses import House, Walk, floor_plan, read_house, read_walks
from fedapps.tasks.vln.report_results import read_sentences
from report_pages import labels, page, save_traces, section, write_lines

from fedapps.base.report.sections import Arrays
from fedapps.report import ReportError

#: Three viewpoints in a row and one upstairs, above the last.
VIEWPOINTS = np.array([[0, 0, 1.5], [2, 0, 1.5], [4, 0, 1.9], [4, 1, 4.5]])
EDGES = np.array([[0, 1], [1, 2], [2, 3]])


def text(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), dtype=np.uint8)


def walk(path: str, walked: list[int], *, success: bool, instruction: str = "go <up>") -> dict[str, Any]:
    return {
        f"{path}.walked": np.array(walked),
        f"{path}.reference": np.array([0, 1, 2]),
        f"{path}.error": np.array(0.0 if success else 4.25),
        f"{path}.success": np.array(float(success)),
        f"{path}.instruction": text(instruction),
    }


HOUSE = {"viewpoints": VIEWPOINTS, "edges": EDGES}


def evaluated(method: str, node: str, **metrics: float) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in metrics.items()}
    return {"method": method, "round": 1, "node": node, "phase": "evaluate", "num_examples": 1, "metrics": named}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two methods without traces."""
    (tmp_path / "config.toml").write_text('methods = "untrained,fedavg"\ntask = "vln"\n')
    write_lines(tmp_path / "metrics.jsonl", [{"method": method, "round": 1} for method in ("untrained", "fedavg")])
    return tmp_path


# -- walks -------------------------------------------------------------------------------------------------------


def test_a_walk_is_read_as_it_was_written(tmp_path: Path) -> None:
    arrays = Arrays(save_traces(tmp_path, "fedavg", "houseC", HOUSE | walk("val_seen.1", [0, 1], success=False)))
    house = read_house(arrays)
    assert house is not None
    np.testing.assert_array_equal(house.viewpoints, VIEWPOINTS)
    (found,) = read_walks(arrays, house).values()
    assert (found.instruction, found.error, found.success) == ("go <up>", 4.25, False)
    assert (found.walked.tolist(), found.reference.tolist()) == ([0, 1], [0, 1, 2])


def test_a_floor_spans_up_to_two_metres() -> None:
    """Steps of 0.75 m lead up: 0, 0.75 and 1.5 are one floor, and the next floor begins at 2.25."""
    heights = [3.0, 0.0, 0.75, 1.5, 2.25, 4.5]
    house = House(np.array([[0.0, 0.0, z] for z in heights]), np.zeros((0, 2), dtype=np.int64))
    assert house.floors.tolist() == [1, 0, 0, 0, 1, 2]


def some_walk(*rows: int) -> Walk:
    return Walk("go", np.array(rows[:1]), np.array(rows), 0.0, True)


def test_only_floors_that_a_path_touches_are_laid_out() -> None:
    house = House(VIEWPOINTS, EDGES)
    below = floor_plan(house, [some_walk(0, 1, 2)])
    assert below.shown.tolist() == [True, True, True, False]
    assert (below.width, below.height, below.names) == (4 + 5, 5, ())


def test_a_second_floor_is_drawn_where_the_figure_stays_compact() -> None:
    """Ground: 9 m by 5 m; upstairs: 5 m by 5 m. Above each other they need 9 m by 12 m, side by side 16 m by 5 m."""
    found = floor_plan(House(VIEWPOINTS, EDGES), [some_walk(0, 1, 2, 3)])
    assert (found.width, found.height) == (9, 12)
    assert found.names == ((0.0, 5.0, "floor 1"), (0.0, 12.0, "floor 2"))
    np.testing.assert_allclose(found.positions, [[2.5, 2.5], [4.5, 2.5], [6.5, 2.5], [2.5, 9.5]])


def test_walks_of_all_methods_are_drawn_with_their_outcome(folder: Path) -> None:
    far = HOUSE | walk("val_unseen.0", [0, 1, 2], success=True) | walk("val_unseen.1", [0, 1, 2, 3], success=False)
    near = HOUSE | walk("val_unseen.0", [0, 1, 2], success=True) | walk("val_unseen.1", [0, 1, 2], success=True)
    save_traces(folder, "untrained", "houseC", far)
    save_traces(folder, "fedavg", "houseC", near)
    save_traces(folder, "fedavg", "houseA", HOUSE | walk("val_seen.0", [0], success=False))
    shown = section(page(folder), "houses")
    assert "Walks through houseC from above" in shown
    assert "Walks through houseA" in shown
    assert "go &lt;up&gt;" in shown
    assert shown.index("untrained ✗ 4.2 m; fedavg ✓ 0.0 m") < shown.index("untrained ✓ 0.0 m; fedavg ✓ 0.0 m")
    assert {"untrained: ✗ 4.2 m", "fedavg: ✓ 0.0 m", "floor 1", "floor 2", "✓", "✗"} <= set(labels(shown))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"edges": np.array([[0, 4]])}, r"'edges' must hold whole numbers from 0 to 3"),
        ({"viewpoints": VIEWPOINTS[:, :2]}, r"'viewpoints' has shape \(4, 2\); it must be \(any, 3\)"),
        ({"viewpoints": VIEWPOINTS * np.nan}, r"'viewpoints' must be finite"),
        ({"val_seen.0.walked": np.array([4])}, r"'val_seen\.0\.walked' must hold whole numbers from 0 to 3"),
        ({"val_seen.0.walked": np.zeros(0)}, r"'val_seen\.0\.walked' must name a viewpoint"),
        ({"val_seen.0.instruction": np.array([255])}, r"'val_seen\.0\.instruction' is not UTF-8"),
    ],
)
def test_a_malformed_walk_is_reported(folder: Path, other: dict[str, Any], message: str) -> None:
    save_traces(folder, "fedavg", "houseC", HOUSE | walk("val_seen.0", [0], success=True) | other)
    with pytest.raises(ReportError, match=rf"traces\.safetensors: {message}"):
        page(folder)


# -- sentences ---------------------------------------------------------------------------------------------------


def sentences(path: str, said: str) -> dict[str, Any]:
    return {f"{path}.said": text(said), f"{path}.instruction": text("Go to the <sofa>.")}


def test_sentences_stand_beside_what_a_person_wrote(folder: Path) -> None:
    final = {"val_unseen.bleu": 21.5, "val_unseen.distinct": 0.5}
    (folder / "summary.json").write_text(json.dumps({"methods": {"fedavg": {"final": final}}}))
    (folder / "references.json").write_text(json.dumps({"one person": {"val_unseen.bleu": 15.25}}))
    path = save_traces(
        folder, "fedavg", "houseC", sentences("val_unseen.0", "go to the sofa") | sentences("val_unseen.1", "walk")
    )
    assert read_sentences(Arrays(path))["val_unseen.1"][1] == "walk"
    save_traces(folder, "untrained", "houseC", sentences("val_unseen.0", "the the the"))
    shown = section(page(folder), "sentences")
    assert "<td>Go to the &lt;sofa&gt;.</td><td>the the the</td><td>go to the sofa</td>" in shown
    assert "<td>–</td><td>walk</td>" in shown
    assert '<td>reference: one person</td><td class="n">15.25</td><td class="n">–</td>' in shown
    assert '<td class="n">21.50</td><td class="n">0.5000</td>' in shown


# -- results by house --------------------------------------------------------------------------------------------


def test_results_by_house_stand_beside_the_untrained_model(folder: Path) -> None:
    lines = [evaluated("untrained", f"house{n}", val_unseen__sr=0.25) for n in "ABC"]
    after = {"houseA": 0.5, "houseB": 0.25, "houseC": 0.75}
    lines += [evaluated("fedavg", node, val_unseen__sr=value) for node, value in after.items()]
    lines += [evaluated(method, "houseD", val_seen__sr=0.5) for method in ("untrained", "fedavg")]
    write_lines(folder / "nodes.jsonl", lines)
    shown = section(page(folder), "house-results")
    assert "Open circles: untrained." in shown
    assert {"fedavg", "better in 2 of 3", "houseA", "houseD", "val unseen SR  (higher is better)"} <= set(labels(shown))


def test_one_method_has_its_results_by_house(folder: Path) -> None:
    write_lines(folder / "nodes.jsonl", [evaluated("fedavg", "houseA", val_unseen__bleu=0.0)])
    shown = section(page(folder), "house-results")
    assert "Dot plots of val unseen BLEU by house: fedavg" in shown


def test_there_are_no_sections_without_houses(folder: Path) -> None:
    save_traces(folder, "fedavg", "houseC", {"something": np.zeros(3)})
    text = page(folder)
    for name in ("houses", "house-results", "sentences"):
        assert not section(text, name)
