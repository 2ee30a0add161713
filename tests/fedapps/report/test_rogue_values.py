"""Reports on runs with malicious names of nodes, groups and metrics."""

import json
from html import unescape
from pathlib import Path

import pytest

from fedapps.report import write_report

NAMES = [
    "<script>alert(1)</script>",
    "$\\frac{$",
    "a$b$c",
    '"><img src=x onerror=alert(1)>',
    "../../x",
    "stage-0.test.mse",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose nodes, groups, metrics and refusal reasons have these names."""
    (tmp_path / "config.toml").write_text('name = "r"\ntask = "driving"\nmethods = "h-fl"\nrounds = 3\n')
    metrics = {
        "test.loss": 1.0,
        **dict.fromkeys(NAMES, 2.0),
        **{f"shared.{name}": 3.0 for name in ["test.loss", *NAMES]},
    }
    refused = [{"node": name, "phase": "train", "reason": name} for name in NAMES]
    rounds, nodes = [], []
    for number in (1, 2, 3):
        rounds.append({"method": "h-fl", "round": number, "evaluate": metrics, "train": metrics, "refused": refused})
        for name in NAMES:
            groups = {"cluster": name, name: name}
            node = {"node": name, "phase": "evaluate", "num_examples": 3, "metrics": metrics, "groups": groups}
            nodes.append({"method": "h-fl", "round": number, **node})
    for file, rows in (("metrics.jsonl", rounds), ("nodes.jsonl", nodes)):
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_names_from_nodes_are_escaped(folder: Path) -> None:
    text = write_report(folder).read_text(encoding="utf-8")
    assert text.count("<script") == 1  # our own
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    for name in NAMES:
        assert name in unescape(text)
    assert list(folder.parent.rglob("x")) == []
