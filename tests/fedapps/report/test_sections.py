"""Sections of the report of one run: refused replies, privacy and learned rates."""

import json
from pathlib import Path

import pytest
from report_pages import page, round_line, section_names, write_finished_run, write_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_finished_run(tmp_path)


def test_nodes_that_may_not_work_are_counted_apart(folder: Path) -> None:
    lines = [round_line("sfl", r, ineligible={"driver-03": "it drives"} if r != 2 else {}) for r in (1, 2, 3)]
    write_lines(folder / "metrics.jsonl", lines)
    text = page(folder)
    assert "Nodes that did not work" in text
    assert "<td>driver-03</td><td>it drives</td><td>1, 3</td>" in text
    assert "refused and not aggregated" not in text


def test_refused_replies_are_counted(folder: Path) -> None:
    refused = [{"node": "driver-03", "phase": "train", "reason": "loss is <nan>"}]
    crash = {
        "node": "driver-04",
        "phase": "train",
        "reason": "Traceback (most recent call last):\n  |   File <x>\n  | ValueError: no data",
    }
    lines = [round_line("sfl", r, refused=refused if r in (1, 2, 3, 5) else [crash] * (r == 6)) for r in range(1, 7)]
    write_lines(folder / "metrics.jsonl", lines)
    text = page(folder)
    assert "5 replies were refused" in text
    assert "<li><p>loss is &lt;nan&gt;</p><small><b>driver-03</b>, sfl, rounds 1–3, 5: 4×</small></li>" in text
    assert "<li><p>ValueError: no data</p><small><b>driver-04</b>, sfl, round 6: 1×</small><details>" in text
    assert "File &lt;x&gt;" in text


def test_metrics_that_were_left_out_are_counted_and_named(folder: Path) -> None:
    left_out = [{"node": "driver-03", "phase": "evaluate", "metric": "test.auc", "value": "nan"}]
    write_lines(folder / "metrics.jsonl", [round_line("sfl", r, left_out=left_out) for r in (1, 2)])
    text = page(folder)
    assert "2 values were left out of the means" in text
    assert "<td>test.auc</td><td>1–2</td>" in text
    assert "refused and not aggregated" not in text


def test_a_guarantee_of_privacy_is_shown_with_its_neighbouring_relation(folder: Path) -> None:
    assert "epsilon" not in page(folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["methods"]["sfl"]["privacy"] = "epsilon = 6.57; neighbouring runs differ in <one node>"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert '<p class="note">sfl: epsilon = 6.57; neighbouring runs differ in &lt;one node&gt;.</p>' in page(folder)


def test_learned_rates(folder: Path) -> None:
    rates = {"encoder.weight": 0.001, "decoder.bias": 1.0}
    write_lines(folder / "metrics.jsonl", [round_line("apfl", r, strategy={"rates": rates}) for r in (1, 2)])
    text = page(folder)
    assert "rates" in section_names(text)
    assert "decoder.bias has the highest rate and encoder.weight the lowest" in text


def test_at_most_40_tensors_are_shown(folder: Path) -> None:
    rates = {f"layer-{place:02d}": place / 59 for place in range(60)}
    write_lines(folder / "metrics.jsonl", [round_line("apfl", 1, strategy={"rates": rates})])
    text = page(folder)
    assert "the 40 tensors with the highest rates of 60" in text
    assert ">layer-20<" in text
    assert ">layer-19<" not in text
