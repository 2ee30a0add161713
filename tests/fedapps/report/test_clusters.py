"""Cluster models compared with the global model, from hand-written records."""

from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from report_pages import labels, page, section, write_lines

from fedapps.base.report.metrics import columns, main_metric
from fedapps.report import ReportError, read_run, write_report
from fedapps.report.sections.clusters import clusters, clusters_of

RECALL = "test.recall_at_1"


def node(number: int, name: str, cluster: str | None, own: float, shared: float | None = 0.25, **more: Any) -> Any:
    """The evaluation of a node; ``own`` is the metric of its cluster's model."""
    metrics = {RECALL: own} | ({} if shared is None else {f"shared.{RECALL}": shared})
    groups = {"city": "any"} | ({} if cluster is None else {"cluster": cluster})
    line = {"method": "h-fl", "round": number, "node": name, "phase": "evaluate", "metrics": metrics, "groups": groups}
    return line | more


def row(number: int, averaged: Any = (), method: str = "h-fl") -> Any:
    strategy = {"averaged": averaged, "replies": {"Oslo": 2}}
    return {"method": method, "round": number, "evaluate": {f"shared.{RECALL}": 0.2, RECALL: 0.5}, "strategy": strategy}


#: Two nodes in Oslo, one in Bonn; the means are .5 and .75 against .25, then .625 and .125 against .375.
NODES = [
    node(1, "a", "Oslo", 0.25), node(1, "b", "Oslo", 0.75), node(1, "c", "Bonn", 0.75),
    node(2, "a", "Oslo", 0.5, 0.25), node(2, "b", "Oslo", 0.75, 0.5), node(2, "c", "Bonn", 0.125, 0.375),
]  # fmt: skip


def folder_with(folder: Path, nodes: list[Any], rows: list[Any]) -> Path:
    (folder / "config.toml").write_text('methods = "fedavg,h-fl"\n')
    for name, lines in (("metrics", rows), ("nodes", nodes)):
        write_lines(folder / f"{name}.jsonl", lines)
    return folder


def shown(folder: Path) -> str:
    return section(unescape(page(folder)), "clusters")


def test_lines_are_means_over_nodes(tmp_path: Path) -> None:
    found = clusters_of(read_run(folder_with(tmp_path, NODES, [row(1, ["city"]), row(2)])), "h-fl", RECALL)
    assert found is not None
    assert list(found.lines) == ["Oslo", "Bonn"]  # most nodes first
    assert found.lines == {"Oslo": {1: 0.5, 2: 0.625}, "Bonn": {1: 0.75, 2: 0.125}}
    assert found.global_lines == {"Oslo": {1: 0.25, 2: 0.375}, "Bonn": {1: 0.25, 2: 0.375}}
    assert found.shared == {1: 0.25, 2: 0.375}
    assert found.averaged == (1,)


def test_the_text_and_the_figure_show_both_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[float] = []
    monkeypatch.setattr(Axes, "axvline", lambda axes, x, **how: marked.append(x))
    text = shown(folder_with(tmp_path, NODES, [row(1, ["city"]), row(2), row(1, method="fedavg")]))
    assert (
        "h-fl, after round 2: test recall at 1 is 0.3750 with the global model and 0.1250 to 0.6250 with the cluster "
        "models; 1 of 2 cluster models are better than the global model on their own nodes. Clusters were averaged "
        "after round 1."
    ) in text
    assert "final values: Oslo 0.6250, Bonn 0.1250; global model 0.3750" in text
    assert marked == [1]
    assert text.count("<figure>") == 1
    drawn = labels(text)
    assert [label for label in drawn if label in ("Oslo", "global model", "Bonn")] == ["Oslo", "global model", "Bonn"]


@pytest.mark.parametrize(
    ("averaged", "said"),
    [
        ([], "Clusters were never averaged."),
        ([1, 2, 3, 4], "Clusters were averaged every round."),
        ([2, 4, 6], "Clusters were averaged every 2 rounds."),
        ([2, 4], "Clusters were averaged after rounds 2, 4."),
        ([1, 3, 4], "Clusters were averaged after rounds 1, 3, 4."),
        ([1, 2, 3, 5, 6, 7, 8], "Clusters were averaged after rounds 1, 2, 3, 5, 6, 7 and 1 more."),
    ],
)
def test_the_text_says_when_clusters_were_averaged(tmp_path: Path, averaged: list[int], said: str) -> None:
    rows = [row(number, ["city"] if number in averaged else []) for number in range(1, 9)]
    text = shown(folder_with(tmp_path, NODES, rows))
    assert said in text
    assert ("Vertical lines" in text) == bool(averaged)
    assert ("(clusters were just averaged)" in text) == (2 in averaged)


def test_at_most_eight_clusters_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are drawn, but only the eight largest clusters have a colour and a name."""
    colours, plot = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda axes, *a, **how: colours.append(how["color"]) or plot(axes, *a, **how))
    nodes = [node(1, f"n-{i:02d}", f"city-{i % 10}", 0.5 + i / 100) for i in range(18)]
    text = shown(folder_with(tmp_path, nodes, [row(1)]))
    named = {label for label in labels(text) if label.startswith("city-")}
    assert named == {f"city-{i}" for i in range(8)}
    assert "2 other clusters" in labels(text)
    assert colours[-10:].count("#9ca3af") == 2


def test_nodes_without_a_cluster_count_only_for_the_global_model(tmp_path: Path) -> None:
    """The global mean is that of .25 and .75. Clusters named by a number get the prefix "cluster"."""
    nodes = [
        node(1, "a", "0", 0.5),
        node(1, "b", "1", 0.5),
        node(1, "c", "", 0.75, 0.75),
        node(1, "d", None, 0.75, 0.75),
    ]
    found = clusters_of(read_run(folder_with(tmp_path, nodes, [row(1)])), "h-fl", RECALL)
    assert found is not None
    assert (found.shared, found.lines) == ({1: 0.5}, {"0": {1: 0.5}, "1": {1: 0.5}})
    text = shown(tmp_path)
    assert (
        "0.5000 with the global model and 0.5000 with the cluster models; 2 of 2 cluster models are better than the "
        "global model on their own nodes; 2 nodes have no cluster yet."
    ) in text
    assert {"cluster 0", "cluster 1"} <= set(labels(text))


def test_missing_values_are_ignored(tmp_path: Path) -> None:
    nan = [node(1, "a", "Oslo", 0.25), node(1, "b", "Oslo", float("nan")), node(1, "c", "Bonn", 0.5, float("nan"))]
    found = clusters_of(read_run(folder_with(tmp_path, nan, [row(1)])), "h-fl", RECALL)
    assert found is not None
    assert (found.lines, found.shared) == ({"Oslo": {1: 0.25}}, {1: 0.25})
    text = shown(tmp_path)
    assert "0.2500 with the global model and 0.2500 with the cluster models; 0 of 1 cluster models are better" in text


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [node(1, "a", None, 0.5)],
        [node(1, "a", "Oslo", 0.5, None)],
        [node(1, "a", "Oslo", 0.5, phase="train")],
        [{key: value for key, value in node(1, "a", "Oslo", 0.5).items() if key != "groups"}],
    ],
)
def test_there_is_no_section_without_both_models(tmp_path: Path, nodes: list[Any]) -> None:
    assert shown(folder_with(tmp_path, nodes, [row(1)])) == ""


def test_there_is_no_section_without_evaluations(tmp_path: Path) -> None:
    line = {"method": "h-fl", "round": 1, "strategy": {"averaged": None}}
    assert clusters(read_run(folder_with(tmp_path, NODES, [line]))) is None


@pytest.mark.parametrize(
    ("nodes", "rows", "message"),
    [
        (
            [node(1, "a", "Oslo", 0.5) | {"groups": {"cluster": 3}}],
            [row(1)],
            r"nodes\.jsonl:1: 'groups.cluster' is 3; it must be a valid string",
        ),
        ([node(1, "a", "Oslo", 0.5) | {"groups": ["x"]}], [row(1)], r"nodes\.jsonl:1: 'groups' is \['x'\]"),
        (NODES, [row(1, "city")], r"metrics\.jsonl:1: 'strategy.averaged' is 'city'; it must be a valid array"),
        (NODES, [row(1, [1])], r"metrics\.jsonl:1: 'strategy.averaged.0' is 1; it must be a valid string"),
    ],
)
def test_a_malformed_record_is_reported(tmp_path: Path, nodes: list[Any], rows: list[Any], message: str) -> None:
    with pytest.raises(ReportError, match=message):
        write_report(folder_with(tmp_path, nodes, rows))


def test_a_metric_of_the_shared_model_is_never_the_main_one() -> None:
    """In alphabetical order, "shared" comes before "test"."""
    assert main_metric([f"shared.{RECALL}", RECALL]) == RECALL
    assert columns([f"shared.{RECALL}", "validation.x", RECALL]) == [RECALL, f"shared.{RECALL}", "validation.x"]
