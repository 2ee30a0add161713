"""Cluster models compared with the global model, from hand-written records."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from report_pages import comparison, comparison_page, labels, page, section, write_lines

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


# Train-test matrices of runs and comparisons with stages.


#: By method, P[i][j]: the error on stage j after stage i.
MATRICES = {"fedavg": [[0.25, 0.5], [0.75, 0.125]], "stl": [[0.5, 1.5], [0.25, 0.5]]}


def staged_rows(method: str, upto: int = 4) -> list[dict[str, Any]]:
    """Rounds of a run of two stages, two rounds each, which is evaluated in the middle of a stage too."""
    rows = []
    for number in range(1, upto + 1):
        p = MATRICES[method][(number - 1) // 2]
        shown = {f"stage-{j}.test.mse": value + (9 if number % 2 else 0) for j, value in enumerate(p, 1)}
        present = {"validation.mse": 1.0 / number, "test.mse": shown[f"stage-{(number + 1) // 2}.test.mse"]}
        train = {"trainable_parameters": 7.0, "loss": 1.0 / number}
        rows.append({"method": method, "round": number, "train": train, "evaluate": present | shown})
    return rows


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A finished run of two methods on data of two stages."""
    (tmp_path / "config.toml").write_text('name = "s"\ntask = "social"\nmethods = "stl,fedavg"\nrounds = 4\n')
    write_lines(tmp_path / "metrics.jsonl", [row for method in MATRICES for row in staged_rows(method)])
    final = {"stl": {"test.mse": 0.5, "test.amse": 0.5, "test.bwt": -0.25, "test.fwt": 1.5, "stage-1.test.mse": 0.25}}
    final["fedavg"] = {"test.mse": 0.125, "test.amse": 0.1875, "test.bwt": 0.5, "test.fwt": 0.5}
    methods = {method: {"rounds": 4, "final": values} for method, values in final.items()}
    (tmp_path / "summary.json").write_text(json.dumps({"methods": methods}))
    return tmp_path


def test_a_run_shows_its_matrices(staged: Path) -> None:
    """AMSE, BWT and FWT by hand: (.25 + .125) / 2, .75 - .25 and .5; (.5 + .5) / 2, .25 - .5 and 1.5.

    The means so far are .5 and (.25 + .5) / 2; .25 and (.75 + .125) / 2.
    """
    shown = section(page(staged), "stages")
    assert "stl 0.5000, −0.2500, 1.500; fedavg 0.1875, 0.5000, 0.5000" in shown
    numbers = [text for text in labels(shown) if "." in text]
    assert numbers == ["0.50", "1.5", "0.50", "0.25", "0.50", "0.38", "0.25", "0.50", "0.25", "0.75", "0.12", "0.44"]
    assert {"stl", "fedavg", "tested on stage", "trained up to stage"} <= set(labels(shown))


def test_a_started_run_shows_the_matrices_of_its_own_rounds(staged: Path) -> None:
    """Rounds 3 to 6: its first stage ends with round 4, not 2."""
    rows = [row | {"round": row["round"] + 2} for method in MATRICES for row in staged_rows(method)]
    write_lines(staged / "metrics.jsonl", rows)
    (staged / "started.json").write_text(json.dumps({"rounds": {"stl": 2, "fedavg": 2}, "lineage": ["before-1"]}))
    shown = section(page(staged), "stages")
    assert "stl 0.5000, −0.2500, 1.500; fedavg 0.1875, 0.5000, 0.5000" in shown


def test_stages_of_training_are_rows_and_stages_of_testing_columns(
    staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, write = {}, Axes.text

    def watched(axes: Axes, x: float, y: float, text: str, **how: Any) -> Any:
        found[x, y] = (text, how["weight"])
        return write(axes, x, y, text, **how)

    monkeypatch.setattr(Axes, "text", watched)
    write_lines(staged / "metrics.jsonl", staged_rows("stl"))
    page(staged)
    assert found == {
        (0, 0): ("0.50", "bold"), (1, 0): ("1.5", "normal"), (0, 1): ("0.25", "normal"), (1, 1): ("0.50", "bold"),
        (2, 0): ("0.50", "normal"), (2, 1): ("0.38", "normal"),
    }  # fmt: skip


def test_stages_that_have_not_finished_are_blank(staged: Path) -> None:
    write_lines(staged / "metrics.jsonl", staged_rows("stl", upto=3))
    (staged / "summary.json").unlink()
    shown = section(page(staged), "stages")
    assert [text for text in labels(shown) if "." in text] == ["0.50", "1.5", "0.50"]
    assert "stl NaN, NaN, 1.500" in shown


def test_metrics_of_single_stages_are_in_no_table_and_no_curve(staged: Path) -> None:
    text = page(staged)
    assert "stage 1" not in text.replace("trained up to stage", "")
    curves = section(text, "curves")
    assert curves.count("<figure>") == 3
    assert curves.index("Line chart of test MSE") < curves.index("training: loss")
    assert "parameters" not in curves


def test_the_headline_of_a_run_with_stages_is_its_average_error(staged: Path) -> None:
    result = section(page(staged), "result")
    assert "<b>fedavg</b>: test AMSE <b>0.1875</b>, 62\N{NO-BREAK SPACE}% below training alone (stl: 0.5000)." in result
    heads = re.findall(r"<th(?: [^>]*)?>([^<]*)", result)
    assert heads[:5] == ["method", "test AMSE", "test BWT", "test FWT", "test MSE"]


def test_a_comparison_shows_the_mean_matrix_over_seeds(tmp_path: Path) -> None:
    """The means of a and b are [[2, 4], [3, 3]]: AMSE 2.5, BWT 1, FWT 4; what one seed lacks has no mean."""
    rows = [
        {"method": "stl", "seed": 0, "metrics": {"amse": 1.5}, "matrices": {"mse": [[1, 3], [3, 2]], "b.mse": [[7]]}},
        {"method": "stl", "seed": 1, "metrics": {"amse": 3.5}, "matrices": {"mse": [[3, 5], [3, 4]]}},
        {"method": "apd", "seed": 0, "metrics": {"amse": 3.5}, "matrices": {"mse": [[1, None], [1, 1]]}},
        {"method": "apd", "seed": 1, "metrics": {"amse": 3.5}, "matrices": {"mse": [[1, 1], [2, 1]]}},
    ]
    shown = section(comparison_page(tmp_path, comparison(rows)), "stages")
    assert "stl 2.500, 1, 4; apd 1, 0.5000, NaN" in shown
    assert "mean over seeds" in shown
    assert "7" not in labels(shown)


def test_a_malformed_matrix_is_reported(tmp_path: Path) -> None:
    rows = [{"method": "stl", "seed": 0, "metrics": {"amse": 1.5}, "matrices": {"mse": [[1, 3], [3]]}}]
    with pytest.raises(ReportError, match=r"compare\.json: 'mse' is \[\[1.0, 3.0\], \[3.0\]\]; it must be a list"):
        comparison_page(tmp_path, comparison(rows))
