"""The section about held-out nodes: shared, adapted and local, of a run and of a comparison."""

import json

from report_pages import estimate, page, section, write_finished_run

MODELS = {"shared": {"test.elbo": 0.5}, "adapted": {"test.elbo": 0.25, "test.kl": 1.0}, "local": {"test.elbo": 0.375}}


def test_a_run_shows_the_three_models_of_each_method(tmp_path):
    write_finished_run(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["methods"]["sfl"]["held_out"] = {"epochs": 3, "nodes": {"c": MODELS, "d": MODELS}, "refused": {}, **MODELS}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
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
    (tmp_path / "compare.json").write_text(json.dumps(comparison))
    shown = section(page(tmp_path), "held-out")
    assert "1 node, 1 epoch." in shown
    assert "0.500 <small>± 0.062</small>" in shown
    assert "−0.25 <small>−0.75 to 0.25</small>" in shown
    assert '<td class="n">−1</td>' in shown


def test_without_held_out_nodes_there_is_no_section(tmp_path):
    assert section(page(write_finished_run(tmp_path)), "held-out") == ""


def test_without_test_data_the_first_metric_is_shown(tmp_path):
    """A trial of a tuning has no metric on test data."""
    write_finished_run(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    models = {model: {"validation.elbo": found["test.elbo"]} for model, found in MODELS.items()}
    summary["methods"]["sfl"]["held_out"] = {"epochs": 3, "nodes": {"c": models}, "refused": {}, **models}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert "★ 0.2500" in section(page(tmp_path), "held-out")
