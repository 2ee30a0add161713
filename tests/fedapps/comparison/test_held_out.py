"""What a comparison says of held-out nodes: means, and paired differences with their intervals."""

import json

import pytest
from scipy.stats import t

import fedapps.comparison.compare
from fedapps.base.report.numbers import Estimate
from fedapps.comparison.compare import compare_recipe
from fedapps.comparison.significance import held_out_row, held_out_table
from fedapps.config.recipe_files import RECIPES
from fedapps.report.comparison_tables import comparison_text
from fedapps.runs.comparisons import Comparison


def row(seed, shared, adapted, local, method="fedavg"):
    models = {"shared": {"loss": shared}, "adapted": {"loss": adapted, "kl": 1.0}, "local": {"loss": local}}
    return {"method": method, "seed": seed, "metrics": {}, "held_out": {"epochs": 5, "nodes": 2, **models}}


def test_the_row_of_a_run_has_the_means_of_its_nodes_without_the_prefix():
    models = {model: {"test.loss": 1.0, "steps.count": 4.0} for model in ("shared", "adapted", "local")}
    summary = {"held_out": {"epochs": 5, "nodes": {"a": {}, "b": {}}, "refused": {}, **models}}
    kept = {"loss": 1.0, "steps.count": 4.0}
    assert held_out_row(summary)["held_out"] == {"epochs": 5, "nodes": 2, **dict.fromkeys(models, kept)}
    assert held_out_row({"final": {}}) == {}
    assert held_out_row({"held_out": {**summary["held_out"], "nodes": {}}}) == {}


def test_means_and_differences_by_hand():
    rows = [row(0, 3.0, 1.0, 2.0), row(1, 5.0, 2.0, 2.0), {"method": "local", "seed": 0, "metrics": {}}]
    table = held_out_table(rows, ["test.loss", "test.kl", "test.mse"])
    assert table.keys() == {"fedavg"}
    assert (table["fedavg"].epochs, table["fedavg"].nodes) == (5, 2)
    loss = table["fedavg"].metrics["loss"]
    assert table["fedavg"].metrics.keys() == {"loss"}  # the only one that all models have
    assert (loss.shared.mean, loss.shared.sd, loss.shared.half) == (4.0, *map(pytest.approx, (2**0.5, t.ppf(0.975, 1))))
    half = t.ppf(0.975, 1) * 0.5  # of the differences -2 and -3, and of -1 and 0
    assert (loss.gain.low, loss.gain.mean, loss.gain.high) == pytest.approx((-2.5 - half, -2.5, -2.5 + half))
    assert (loss.lead.low, loss.lead.mean, loss.lead.high) == pytest.approx((-0.5 - half, -0.5, -0.5 + half))


def test_the_table_as_text():
    held_out = held_out_table([row(0, 3.0, 1.0, 2.0)], ["test.loss"])
    table = {"fedavg": {"loss": Estimate(9.0)}}
    assert comparison_text(Comparison(recipe="r", table=table, held_out=held_out)).splitlines()[4:] == [
        "nodes that took no part in the rounds: 2 nodes, 5 epochs; ± and ranges are 95 % intervals over seeds",
        "",
        "method  shared loss  adapted loss  local loss  adapted − shared  adapted − local",
        "--------------------------------------------------------------------------------",
        "fedavg            3             1           2                −2               −1",
    ]


def test_a_comparison_with_held_out_nodes(tmp_path, monkeypatch, capsys):
    def in_this_process(cells, work, **_):
        return [work(**cell) for cell in cells]

    monkeypatch.setattr(fedapps.comparison.compare, "run_matrix", in_this_process)
    monkeypatch.setattr("fedapps.app.server_app.write_report", lambda folder: folder)
    tiny = {"num-nodes": 4, "rounds": 1, "epochs": 1, "held-out-nodes": "0.25", "held-out-epochs": 2}
    tiny |= {"apfl.epochs": 1, "lqr.trajectories": 4, "lqr.horizon": 5, "cache-dir": str(tmp_path / "worlds")}
    folder = compare_recipe(
        RECIPES / "lqr.toml", methods=["sfl", "apfl"], seeds=2, overrides=tiny, output_dir=str(tmp_path)
    )
    comparison = json.loads((folder / "compare.json").read_text())
    table = comparison["held_out"]
    assert table.keys() == {"sfl", "apfl"}
    assert table["sfl"]["metrics"]["total_loss"]["local"] == table["apfl"]["metrics"]["total_loss"]["local"]
    assert {row["held_out"]["nodes"] for row in comparison["rows"]} == {1}
    assert "shared total loss" in capsys.readouterr().out
    assert 'id="held-out"' in (folder / "report.html").read_text()
