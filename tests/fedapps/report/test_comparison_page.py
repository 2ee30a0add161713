"""The report of a comparison: tables, paired tests, the paper and results by seed."""

import json
import re
from pathlib import Path

from browser_pages import dom_of, in_a_browser
from report_pages import FINAL, estimate, headline, labels, page, paired_test, section, section_names


def test_a_comparison_shows_the_paper_and_paired_tests(tmp_path: Path) -> None:
    test = paired_test("test.elbo", "apfl", "sfl")
    table = {m: {"elbo": estimate(v)} for m, v in {"apfl": 0.02, "sfl": 0.03}.items()}
    paper = {"apfl": {"elbo": 0.0116}, "cloud": {"elbo": 0.01643}}
    comparison = {"recipe": "three-cars", "table": table, "paper": paper, "tests": [test]}
    (tmp_path / "compare.json").write_text(json.dumps(comparison))
    text = page(tmp_path)
    assert '<span class="paper">0.01160</span>' in text
    assert "cloud (paper)" in text
    assert "apfl against sfl" in text
    doubt = "not significant (paired test over 5 seeds, p = 0.6; the smallest possible p is 0.0625 before correction)."
    assert doubt in text
    assert '<td class="n">−0.50 <small>−1.25 to 0.25</small></td>' in text
    assert "paired over 5 seeds, not over nodes or sessions. The smallest possible p is 0.0625; use 10 seeds" in text


def test_one_seed_shows_no_order(tmp_path: Path) -> None:
    test = paired_test("test.elbo", "apfl", "sfl", seeds=1, p=1.0, p_holm=1.0, low=None, high=None)
    table = {m: {"elbo": estimate(v)} for m, v in {"apfl": 0.02, "sfl": 0.03}.items()}
    (tmp_path / "compare.json").write_text(json.dumps({"recipe": "lane-swap", "table": table, "tests": [test]}))
    text = page(tmp_path)
    assert '(0.03000).</p><p class="note">One seed does not show whether this is more than noise.' in text
    assert "paired over 1 seed, not over nodes or sessions. The smallest possible p is 1; use 10 seeds" in text


def test_a_comparison_has_a_headline_tables_and_tests(tmp_path: Path) -> None:
    spread = estimate(5.0)
    table = {m: {"num-examples": spread, "kl": spread, "elbo": estimate(v, 0.0012)} for m, v in FINAL.items()}
    rows = [{"method": m, "seed": s, "metrics": {}} for m in FINAL for s in range(5)]
    tests = [paired_test("test.elbo", "apfl", "local", (4, 1)), paired_test("test.kl", "apfl", "local")]
    comparison = {"recipe": "lane-swap", "rows": rows, "table": table, "tests": tests}
    (tmp_path / "compare.json").write_text(json.dumps(comparison))
    text = page(tmp_path)
    assert section_names(text) == ["result", "comparison"]
    assert headline(text).endswith("0.04000), the mean of 5 seeds; better on 4 of 5 nodes.")
    assert "The difference is −1.250 to 0.2500 (95\N{NO-BREAK SPACE}% interval). It is not significant" in text
    assert text.index("ELBO loss<small>") < text.index("KL<small>")
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
    (tmp_path / "compare.json").write_text(json.dumps({"recipe": "lqr", "rows": rows, "table": table}))
    text = page(tmp_path)
    assert section_names(text) == ["result", "comparison", "seeds", "distances"]
    assert "excess of each method by seed" in text
    assert "distance of the gain and of the dynamics from the true ones" in text


def test_a_comparison_shows_results_against_what_a_node_sends(tmp_path: Path) -> None:
    sent = {"apfl": 2e6, "sfl": 4e4, "local": 0.0}
    table = {
        m: {"elbo": estimate(v, 0.001), "bytes_per_client_round": estimate(sent[m])}
        for m, v in {"apfl": 0.02, "sfl": 0.03, "local": 0.04}.items()
    }
    alt = "against the bytes that a node sends in a round: apfl 2 MB, 0.02; sfl 40 kB, 0.03"
    for bytes_of_sfl, drawn in ((4e4, True), (1.9e6, False)):
        table["sfl"]["bytes_per_client_round"]["mean"] = bytes_of_sfl
        (tmp_path / "compare.json").write_text(json.dumps({"recipe": "lane-swap", "table": table}))
        text = page(tmp_path)
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
    (tmp_path / "compare.json").write_text(json.dumps(whole))
    text = page(tmp_path)
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
        (tmp_path / "compare.json").write_text(json.dumps(whole))
        text = page(tmp_path)
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
    (folder / "compare.json").write_text(json.dumps({"recipe": "lqr", "rows": rows, "table": table, "nodes": nodes}))
    return page(folder)


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
