"""The report of a comparison: tables, paired tests, the paper and results by seed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_pages import dom_of, in_a_browser
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from report_pages import (
    FINAL,
    add_to_summary,
    comparison,
    comparison_page,
    estimate,
    headline,
    labels,
    node_line,
    page,
    paired_test,
    round_line,
    section,
    section_names,
    write_finished_run,
    write_lines,
)

from fedapps.base.report.metrics import describe
from fedapps.registry.methods import METHODS
from fedapps.report import read_run
from fedapps.report.sections.headline import gain_of, role_of


def test_a_comparison_shows_the_paper_and_paired_tests(tmp_path: Path) -> None:
    test = paired_test("test.elbo", "apfl", "sfl")
    table = {m: {"elbo": estimate(v)} for m, v in {"apfl": 0.02, "sfl": 0.03}.items()}
    paper = {"apfl": {"elbo": 0.0116}, "cloud": {"elbo": 0.01643}}
    comparison = {"recipe": "three-cars", "table": table, "paper": paper, "tests": [test]}
    text = comparison_page(tmp_path, comparison)
    assert '<span class="paper">0.01160</span>' in text
    assert "cloud (paper)" in text
    assert "apfl against sfl" in text
    doubt = "not significant (paired test over 5 seeds, p = 0.6; the smallest possible p is 0.0625 before correction)."
    assert doubt in text
    assert '<td class="n">−0.50 <small>−1.25 to 0.25</small></td>' in text
    assert "paired over 5 seeds, not over nodes or sessions. The smallest possible p is 0.0625; use 10 seeds" in text


def test_the_note_beside_the_tests_of_the_best_of_many_counts_all_pairs(tmp_path: Path) -> None:
    """Of eight methods there are 28 pairs, of which 7 are tested: 28 / 16 is above 1."""
    tests = [paired_test("test.elbo", "apfl", other) for other in "bcdefgh"]
    table = {method: {"elbo": estimate(0.5)} for method in ("apfl", *"bcdefgh")}
    text = comparison_page(tmp_path, {"recipe": "lane-swap", "table": table, "tests": tests})
    assert "correction over 28 pairs of methods); use 11 seeds" in text


def test_one_seed_shows_no_order(tmp_path: Path) -> None:
    test = paired_test("test.elbo", "apfl", "sfl", seeds=1, p=1.0, p_holm=1.0, low=None, high=None)
    table = {m: {"elbo": estimate(v)} for m, v in {"apfl": 0.02, "sfl": 0.03}.items()}
    text = comparison_page(tmp_path, {"recipe": "lane-swap", "table": table, "tests": [test]})
    assert '(0.03000).</p><p class="note">One seed does not show whether this is more than noise.' in text
    assert "paired over 1 seed, not over nodes or sessions. The smallest possible p is 1; use 10 seeds" in text


def test_a_comparison_has_a_headline_tables_and_tests(tmp_path: Path) -> None:
    spread = estimate(5.0)
    table = {
        m: {"num-examples": spread, "mae": spread, "unseen.ade": spread, "elbo": estimate(v, 0.0012)}
        for m, v in FINAL.items()
    }
    rows = [{"method": m, "seed": s, "metrics": {}} for m in FINAL for s in range(5)]
    tests = [paired_test("test.elbo", "apfl", "local", (4, 1)), paired_test("test.mae", "apfl", "local")]
    nodes = {m: {"elbo": dict.fromkeys("abcd", v) | {"e": 0.03}} for m, v in FINAL.items()}
    comparison = {"recipe": "lane-swap", "task": "driving", "rows": rows, "table": table, "tests": tests}
    text = comparison_page(tmp_path, comparison | {"nodes": nodes})
    assert section_names(text) == ["result", "comparison", "nodes"]
    assert headline(text).endswith("0.04000), the mean of 5 seeds; better on 4 of 5 nodes."), "e is a tie"
    assert "The difference is −1.250 to 0.2500 (95\N{NO-BREAK SPACE}% interval). It is not significant" in text
    # the task's main metrics in their order, then the others
    places = [text.index(f"{name}<small>") for name in ("ELBO loss", "unseen ADE", "MAE")]
    assert places == sorted(places)
    assert "num examples" not in text
    assert ">4 : 1<" in text
    assert text.index("apfl against local") < text.index("Tests on other metrics")
    assert "★ 0.0200</b> <small>± 0.0012</small>" in text
    assert "has not finished" not in text


def test_a_comparison_shows_results_and_distances_by_seed(tmp_path: Path) -> None:
    found = {"excess": 0.001, "dynamics_distance": 0.5, "gain_distance": 0.01}
    rows = [{"method": m, "seed": seed, "metrics": found} for m in ("apfl", "sfl") for seed in (0, 1)]
    rows.append({"method": "local", "seed": 0, "metrics": {"total_loss": 0.5}})  # without the metric of the figure
    table = {m: {"excess": estimate(0.001)} for m in ("apfl", "sfl")}
    table["local"] = {"total_loss": estimate(0.5)}
    text = comparison_page(tmp_path, {"recipe": "lqr", "rows": rows, "table": table})
    assert section_names(text) == ["result", "comparison", "seeds", "distances"]
    assert "excess of each method by seed" in text
    assert "distance of the gain and of the dynamics from the true ones" in text


def test_a_comparison_shows_results_against_what_a_node_sends(tmp_path: Path) -> None:
    sent = {"apfl": 2e6, "sfl": 4e4, "local": 45.0}
    table = {
        m: {"elbo": estimate(v, 0.001), "bytes_per_client_round": estimate(sent[m])}
        for m, v in {"apfl": 0.02, "sfl": 0.03, "local": 0.04}.items()
    }
    alt = "against the bytes that a node sends in a round: apfl 2 MB, 0.02; sfl 40 kB, 0.03"
    for bytes_of_sfl, drawn in ((4e4, True), (1.9e6, False)):
        table["sfl"]["bytes_per_client_round"]["mean"] = bytes_of_sfl
        text = comparison_page(tmp_path, {"recipe": "lane-swap", "table": table})
        assert (alt in text) == drawn
        assert ("traffic" in section_names(text)) == drawn


def test_curves_and_nodes_begin_with_the_main_metric(tmp_path: Path) -> None:
    metrics = {"state_loss": 0.5, "total_loss": 0.75}
    rows = [{"method": m, "seed": seed, "metrics": metrics} for m in ("apfl", "sfl") for seed in (0, 1)]
    table = {m: {name: estimate(v, 0.1) for name, v in metrics.items()} for m in ("apfl", "sfl")}
    course = {"rounds": [1, 2], "mean": [0.5, 0.25], "half": [0.125, 0.0625]}
    curves = {m: dict.fromkeys(metrics, course) for m in table}
    nodes = {m: {name: {"a": 0.25 * k, "b": 0.5} for name in metrics} for k, m in enumerate(table, start=1)}
    whole = {"recipe": "lqr", "rows": rows, "table": table, "curves": curves, "nodes": nodes}
    text = comparison_page(tmp_path, whole)
    assert text.index("Line chart of total loss over rounds") < text.index("Line chart of state loss over rounds")
    assert "Dot plot of total loss by node and method" in text
    assert "Lines are means over 2 seeds" in text


def test_a_comparison_marks_rounds_with_other_nodes(tmp_path: Path) -> None:
    course = {"rounds": [1, 2], "mean": [0.5, 0.75], "half": [0.125, 0.0625], "changed": [2]}
    rows = [{"method": "apfl", "seed": seed, "metrics": {"total_loss": 0.75}} for seed in (0, 1)]
    table = {"apfl": {"total_loss": estimate(0.75, 0.1)}}
    for paired, said in (
        (
            {"rounds": [1, 2], "mean": [0.5, 0.375]},
            "Dotted: in each seed, the mean over its nodes of every evaluation.",
        ),
        ({"rounds": [], "mean": []}, "No curve over the same nodes is drawn, because not every seed has one."),
    ):
        curves = {"apfl": {"total_loss": course | {"paired": paired}}}
        whole = {"recipe": "lqr", "rows": rows, "table": table, "curves": curves}
        text = comparison_page(tmp_path, whole)
        assert f"apfl: the evaluated nodes change in 1 round, first 2. {said}" in text
        assert ("round 2, same nodes: 0.3750" in text) == bool(paired["rounds"])


LONG = [f"fedprox(mu={mu},run.learning-rate=0.2771)" for mu in (0.001, 0.01, 0.1, 1, 10)]
# A window without a head is at least 500 pixels wide, so the page itself is narrowed.
_RIGHT_EDGE = """<script>
document.querySelector("main").style = "width: 390px; margin: 0";
document.body.dataset.edge = document.querySelector("#comparison td.n").getBoundingClientRect().right;
</script></body>"""


def with_long_names(folder: Path) -> str:
    table = {m: {"total_loss": estimate(v, 0.1)} for v, m in enumerate(LONG, start=1)}
    nodes = {m: {"total_loss": {"a": 0.25, "b": 0.5}} for m in LONG}
    rows = [{"method": m, "seed": 0, "metrics": {"total_loss": 0.5}} for m in LONG]
    return comparison_page(folder, {"recipe": "lqr", "rows": rows, "table": table, "nodes": nodes})


def test_long_names_lie_in_lines_below_the_chart_of_nodes(tmp_path: Path) -> None:
    drawn = section(with_long_names(tmp_path), "nodes")
    assert "rotate(-90 " not in drawn
    assert {"fedprox(mu=0.01,", "run.learning-", "rate=0.2771)"} <= set(labels(drawn))


@in_a_browser
def test_a_phone_shows_a_number_beside_a_long_name(tmp_path: Path) -> None:
    dom = dom_of(with_long_names(tmp_path).replace("</body>", _RIGHT_EDGE), tmp_path, "--window-size=500,900")
    edge = re.search(r'data-edge="([\d.]+)"', dom)
    assert edge
    assert float(edge[1]) < 390


# Comparisons in which a key of the run config varies.


def varied(tmp_path: Path, errors: dict[Any, dict[str, tuple[float, float]]], **more: float) -> str:
    """The page of a comparison whose share of the data varies: means and half widths by value and method.

    ``more`` are further metrics and their means, which are the same for all.
    """
    parts = []
    for value, of_method in errors.items():
        also = {name: estimate(mean) for name, mean in more.items()}
        table = {method: {"amse": estimate(mean, half), **also} for method, (mean, half) in of_method.items()}
        rows = [{"method": method, "seed": 0, "metrics": {"amse": 1.0}} for method in of_method]
        parts.append({"point": {"share": value}, "rows": rows, "table": table})
    return comparison_page(tmp_path, comparison([], varied=parts))


def test_the_main_metric_is_drawn_against_the_varied_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = []

    def fill_between(axes, x, low, high, **how):
        bands.append((list(x), list(low), list(high)))
        return Artist()

    monkeypatch.setattr(Axes, "fill_between", fill_between)
    errors = {1.0: {"stl": (0.5, 0.125), "apd": (0.25, 0.0)}, 0.25: {"stl": (0.75, 0.25), "apd": (1.0, 0.5)}}
    text = varied(tmp_path, errors)
    assert section_names(text) == ["result", "varied", "comparison"]
    assert bands == [([0.25, 1.0], [0.5, 0.375], [1.0, 0.625]), ([0.25, 1.0], [0.5, 0.25], [1.5, 0.25])]
    shown = section(text, "varied")
    assert "AMSE against share: stl 0.75, 0.5; apd 1, 0.25" in shown
    assert {"share", "0.25", "1.0", "AMSE  (lower is better)"} <= set(labels(shown))


def test_each_value_has_its_own_table(tmp_path: Path) -> None:
    errors = {0.5: {"stl": (0.5, 0.0), "apd": (0.25, 0.0)}, 1.0: {"stl": (0.75, 0.25), "apd": (1.0, 0.5)}}
    shown = section(varied(tmp_path, errors), "comparison")
    first, second = shown.split("<summary>share = 1.0</summary>")
    assert "<summary>share = 0.5</summary>" in first
    assert "★ 0.2500" in first
    assert "★ 0.75</b> <small>± 0.25" in second


def test_the_headline_counts_values(tmp_path: Path) -> None:
    errors = {v: {"stl": (0.5, 0.0), "apd": (best, 0.0)} for v, best in ((0.1, 0.25), (0.5, 0.75), (1.0, 0.25))}
    result = section(varied(tmp_path, errors), "result")
    assert "<b>apd</b> has the lowest AMSE at 2 of 3 values of share." in result


def test_the_headline_names_all_that_are_best_equally_often(tmp_path: Path) -> None:
    errors = {v: {"stl": (0.5, 0.0), "apd": (best, 0.0)} for v, best in ((0.1, 0.25), (0.5, 0.75))}
    result = section(varied(tmp_path, errors), "result")
    assert "<b>apd</b> and <b>stl</b> each have the lowest AMSE at 1 of 2 values of share." in result


def test_values_that_are_not_numbers_are_equally_spaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bands = []
    monkeypatch.setattr(Axes, "fill_between", lambda axes, x, *limits, **how: bands.append(list(x)) or Artist())
    shown = section(varied(tmp_path, {"yogi": {"stl": (0.5, 0.0)}, "adam": {"stl": (0.25, 0.0)}}), "varied")
    assert bands == [[0.0, 1.0]]
    assert "stl 0.5, 0.25" in shown
    assert {"yogi", "adam"} <= set(labels(shown))


def test_rounds_and_steps_to_the_target_have_figures(tmp_path: Path) -> None:
    errors = {0.5: {"stl": (0.5, 0.0)}, 1.0: {"stl": (0.75, 0.25)}}
    shown = section(varied(tmp_path, errors, rounds_to_target=30.0, steps_to_target=1400.0), "varied")
    assert shown.count("<figure") == 3
    assert "rounds to target against share: stl 30, 30" in shown
    assert "steps to target against share: stl 1400, 1400" in shown
    assert "to the target are shown for methods of which every seed" in shown


def grid(tmp_path: Path, table: Callable[[float, int], dict[str, Any]]) -> str:
    """The page of a comparison with two varied keys, by the table at each pair of values."""
    parts = [
        {"point": {"alpha": alpha, "epochs": epochs}, "table": table(alpha, epochs)}
        for alpha in (0.5, 1.0)
        for epochs in (1, 5)
    ]
    return comparison_page(tmp_path, comparison([], varied=parts))


def test_a_grid_has_a_figure_for_each_value_of_the_second_key(tmp_path: Path) -> None:
    text = grid(
        tmp_path, lambda alpha, epochs: {"stl": {"amse": estimate(alpha * epochs)}, "apd": {"amse": estimate(9.0)}}
    )
    shown = section(text, "varied")
    assert "AMSE against alpha, epochs = 1: stl 0.5, 1; apd 9, 9" in shown
    assert "AMSE against alpha, epochs = 5: stl 2.5, 5; apd 9, 9" in shown
    assert "at 4 of 4 combinations of alpha and epochs." in section(text, "result")
    assert "<summary>alpha = 0.5, epochs = 5</summary>" in section(text, "comparison")


def test_a_target_that_is_reached_at_one_value_of_the_second_key_has_a_figure_there(tmp_path: Path) -> None:
    """Two figures of the AMSE, one for each value of epochs, and one of the rounds at 5 epochs."""
    reached = {5: {"rounds_to_target": estimate(3.0)}}
    text = grid(tmp_path, lambda alpha, epochs: {"stl": {"amse": estimate(0.5), **reached.get(epochs, {})}})
    shown = section(text, "varied")
    assert shown.count("<figure") == 3
    assert "rounds to target against alpha, epochs = 5: stl 3, 3" in shown


def test_without_a_method_whose_runs_have_all_finished_nothing_is_drawn(tmp_path: Path) -> None:
    failed = [{"method": "stl", "seed": 1, "round": 2, "reason": "not finite"}]
    parts = [
        {"point": {"alpha": alpha}, "table": {"stl": {"amse": estimate(0.5, planned=2)}}, "failed": failed}
        for alpha in (0.5, 1.0)
    ]
    text = comparison_page(tmp_path, comparison([], varied=parts))
    assert section_names(text) == ["result", "comparison"]
    assert "(1 of 2)" in section(text, "comparison")


# The section about held-out nodes: shared, adapted and local, of a run and of a comparison.


MODELS = {"shared": {"test.elbo": 0.5}, "adapted": {"test.elbo": 0.25, "test.kl": 1.0}, "local": {"test.elbo": 0.375}}


def test_a_run_shows_the_three_models_of_each_method(tmp_path):
    write_finished_run(tmp_path)
    add_to_summary(
        tmp_path, "sfl", held_out={"epochs": 3, "nodes": {"c": MODELS, "d": MODELS}, "refused": {}, **MODELS}
    )
    shown = section(page(tmp_path), "held-out")
    assert "2 nodes, 3 epochs." in shown
    assert shown.count("<tr>") == 2
    assert '<td class="n"><b class="best">★ 0.2500</b></td><td class="n">0.3750</td>' in shown
    assert "−0.2500" in shown  # adapted − shared
    assert "−0.1250" in shown  # adapted − local
    assert " to " not in shown  # a run has no intervals


def test_a_comparison_shows_intervals(tmp_path):
    spreads = {model: estimate(MODELS[model]["test.elbo"], 0.0625) for model in MODELS}
    differences = {"gain": {"mean": -0.25, "low": -0.75, "high": 0.25}, "lead": {"mean": -1, "low": None, "high": None}}
    found = {"epochs": 1, "nodes": 1, "metrics": {"elbo": {**spreads, **differences}}}
    table = {"sfl": {"elbo": estimate(0.03)}}
    comparison = {"recipe": "lane-swap", "table": table, "tests": [], "held_out": {"sfl": found}}
    shown = section(comparison_page(tmp_path, comparison), "held-out")
    assert "1 node, 1 epoch." in shown
    assert "0.500 <small>± 0.062</small>" in shown
    assert "−0.25 <small>−0.75 to 0.25</small>" in shown
    assert '<td class="n">−1</td>' in shown


def test_without_held_out_nodes_there_is_no_section(tmp_path):
    assert section(page(write_finished_run(tmp_path)), "held-out") == ""


def test_without_test_data_the_first_metric_is_shown(tmp_path):
    """A trial of a tuning has no metric on test data."""
    write_finished_run(tmp_path)
    models = {model: {"validation.elbo": found["test.elbo"]} for model, found in MODELS.items()}
    add_to_summary(tmp_path, "sfl", held_out={"epochs": 3, "nodes": {"c": models}, "refused": {}, **models})
    assert "★ 0.2500" in section(page(tmp_path), "held-out")


# The headline of a run: what the nodes gain together over each alone, and on how many of them.


SPACE = "\N{NO-BREAK SPACE}"


def write_run(folder: Path, nodes: dict[str, list[float]], metric: str = "test.elbo") -> Path:
    """A finished run of one round, with these values of each method's nodes and their means as results."""
    means = {method: sum(values) / len(values) for method, values in nodes.items()}
    (folder / "config.toml").write_text(f'methods = "{",".join(nodes)}"\n')
    write_lines(folder / "metrics.jsonl", [round_line(m, 1, evaluate={metric: mean}) for m, mean in means.items()])
    lines = [
        node_line(method, str(place), 0.0) | {"round": 1, "metrics": {metric: value}}
        for method, values in nodes.items()
        for place, value in enumerate(values)
    ]
    write_lines(folder / "nodes.jsonl", lines)
    summary = {method: {"rounds": 1, "final": {metric: mean}, "seconds": 1.0} for method, mean in means.items()}
    (folder / "summary.json").write_text(json.dumps({"methods": summary}))
    return folder


@pytest.mark.parametrize(
    ("nodes", "metric", "expected"),
    [
        (  # (.25 - .4) / .4 = -37.5 %; lower on nodes 0, 1 and 3
            {"local": [0.4, 0.4, 0.1, 0.7], "fedavg": [0.5, 0.5, 0.5, 0.5], "apfl": [0.2, 0.3, 0.2, 0.3]},
            "test.elbo",
            f"apfl: test ELBO loss 0.2500, 38{SPACE}% below training alone (local: 0.4000); better on 3 of 4 nodes.",
        ),
        (  # for an accuracy, higher is better; centralized trains in no federation
            {"local": [0.5, 0.75], "centralized": [1.0, 1.0], "fedavg": [0.75, 0.75]},
            "test.accuracy",
            f"fedavg: test accuracy 0.7500, 20{SPACE}% above training alone (local: 0.6250); better on 1 of 2 nodes.",
        ),
        (
            {"local": [0.25, 0.25], "spfl": [0.5, 0.5], "apfl": [0.75, 0.25]},
            "test.elbo",
            f"The federation gains nothing here. spfl: test ELBO loss 0.5000, 100{SPACE}% above training alone (local: "
            "0.2500); better on 0 of 2 nodes.",
        ),
        (
            {"local": [0.25, 0.75], "fedavg": [0.5, 0.5]},
            "test.elbo",
            "The federation gains nothing here. fedavg: test ELBO loss 0.5000, the same as training alone (local: "
            "0.5000); better on 1 of 2 nodes.",
        ),
        (  # zero has no share
            {"local": [0.0, 0.0], "fedavg": [0.5, 0.5]},
            "test.accuracy",
            "fedavg: test accuracy 0.5000, above training alone (local: 0); better on 2 of 2 nodes.",
        ),
        (  # one node has no spread
            {"local": [0.5], "fedavg": [0.25]},
            "test.elbo",
            f"fedavg: test ELBO loss 0.2500, 50{SPACE}% below training alone (local: 0.5000).",
        ),
        # Without a baseline, a federated method or a direction, the methods are compared with each other.
        (
            {"fedavg": [0.5], "apfl": [0.25]},
            "test.elbo",
            f"apfl has the lowest test ELBO loss: 0.2500, 50{SPACE}% below fedavg (0.5000).",
        ),
        (
            {"local": [0.5], "centralized": [0.25]},
            "test.elbo",
            f"centralized has the lowest test ELBO loss: 0.2500, 50{SPACE}% below local (0.5000).",
        ),
        (  # what has no finite value is not the second best
            {"spfl": [float("nan")], "fedavg": [0.5], "apfl": [0.25]},
            "test.elbo",
            f"apfl has the lowest test ELBO loss: 0.2500, 50{SPACE}% below fedavg (0.5000).",
        ),
        ({"fedavg": [0.5]}, "test.elbo", "Test ELBO loss: fedavg 0.5000."),
        ({"local": [0.5], "fedavg": [0.25]}, "test.words", "Test words: local 0.5000, fedavg 0.2500."),
    ],
)
def test_the_headline_is_the_gain_over_training_alone(
    tmp_path: Path, nodes: dict[str, list[float]], metric: str, expected: str
) -> None:
    assert headline(page(write_run(tmp_path, nodes, metric))) == expected


def test_a_method_that_diverged_is_left_out(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"local": [0.5, 0.5], "fedavg": [0.25, 0.25], "apfl": [0.1, 0.1]}))
    values = {"local": 0.5, "fedavg": 0.25, "apfl": float("nan")}
    gain = gain_of(run, describe("test.elbo"), values)
    assert gain is not None
    assert (gain.method, gain.nodes, gain.sign) == ("fedavg", (2, 2), 1)
    assert gain_of(run, describe("test.elbo"), values | {"local": float("inf")}) is None


def test_a_comparison_counts_nodes_and_seeds(tmp_path: Path) -> None:
    found = {"local": [0.5, 0.5, 0.5], "fedavg": [0.9, 0.8, 0.4]}
    rows = [
        {"method": method, "seed": seed, "metrics": {"accuracy": value}}
        for method, values in found.items()
        for seed, value in enumerate(values)
    ]
    table = {"local": {"accuracy": estimate(0.5)}, "fedavg": {"accuracy": estimate(0.7, 0.2)}}
    gap = {"seeds": 3, "mean": -0.2, "low": -0.8, "high": 0.4, "p": 0.5, "p_holm": 0.5}
    test = paired_test("test.accuracy", "local", "fedavg", **gap)
    nodes = {"local": dict.fromkeys("abcdefg", 0.5), "fedavg": dict.fromkeys("abcde", 0.9) | {"f": 0.4, "g": 0.5}}
    of_metric = {method: {"accuracy": of} for method, of in nodes.items()}
    content = comparison(rows, tests=[test]) | {"table": table, "nodes": of_metric}
    text = comparison_page(tmp_path, content)
    assert headline(text) == (
        f"fedavg: accuracy 0.7000, 40{SPACE}% above training alone (local: 0.5000), the mean of 3 seeds; better on 5 "
        "of 7 nodes and in 2 of 3 seeds."
    )
    assert f"The difference is −0.4000 to 0.8000 (95{SPACE}% interval). It is not significant" in text


def test_methods_without_a_federation_are_known(tmp_path: Path) -> None:
    roles = {name: kind().role for name, kind in METHODS.own.items()}
    assert {name for name, role in roles.items() if role == "alone"} == {"local", "stl"}
    assert {name for name, role in roles.items() if role == "reference"} == {"centralized", "untrained"}
    run = read_run(write_run(tmp_path, {"fedavg": [0.5]}))
    assert role_of(run, "local-ewc") == role_of(run, "ewc(local=true)") == role_of(run, "env-based") == "alone"
    assert role_of(run, "fedavg-ewc") == role_of(run, "fed-lan") == "federated"
    assert role_of(run, "of-another-package") == "reference"


def test_the_dots_show_the_metric_in_which_nodes_differ(tmp_path: Path) -> None:
    """Under fedavg, all nodes have the same model and so the same result on a common test."""
    common = {"test.global_accuracy": 0.5}
    own = [{"test.local_accuracy": 0.25}, {"test.local_accuracy": 0.75}]
    (tmp_path / "config.toml").write_text('task = "text"\nmethods = "fedavg"\n')
    write_lines(tmp_path / "metrics.jsonl", [round_line("fedavg", 3, evaluate={**common, "test.local_accuracy": 0.5})])
    lines = [node_line("fedavg", str(place), 0.0) | {"metrics": common | found} for place, found in enumerate(own)]
    write_lines(tmp_path / "nodes.jsonl", lines)
    assert "Dot plot of test local accuracy by node" in section(page(tmp_path), "nodes")
    lines = [node_line("fedavg", str(place), 0.0) | {"metrics": common} for place in range(2)]
    write_lines(tmp_path / "nodes.jsonl", lines)
    assert section(page(tmp_path), "nodes") == ""
