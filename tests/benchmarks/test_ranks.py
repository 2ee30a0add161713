"""Ranks of methods over data sets, and the page that shows all methods."""

from math import sqrt

import pytest

from benchmarks import ranks
from benchmarks.ranks import DataSet, Ranks
from benchmarks.results import Estimate, Result


def test_ranks_of_three_methods_on_four_data_sets():
    """Ranks 1, 2, 3 three times and 1, 3, 2 once: means 1, 2.25, 2.75.

    χ² = 12·4/(3·4)·(1² + 2.25² + 2.75² − 3·4²/4) = 6.5, and Iman and Davenport's F = 3·6.5/(4·2 − 6.5) = 13. With 2 and
    6 degrees of freedom, P(F > x) = (1 + x/3)⁻³. Demšar's table has q = 2.343 for three methods.
    """
    found = Ranks.of([{"a": 3, "b": 2, "c": 1}] * 3 + [{"a": 9, "b": -2, "c": -1, "only here": 5}])
    assert found.ranks == pytest.approx({"a": 1, "b": 2.25, "c": 2.75})
    assert found.p == pytest.approx((1 + 13 / 3) ** -3)
    assert found.critical_difference == pytest.approx(2.343 * sqrt(3 * 4 / (6 * 4)), abs=1e-3)


def test_equal_values_share_a_rank():
    assert Ranks.of([{"a": 1, "b": 1, "c": 0}, {"a": 1, "b": 0, "c": 0}]).ranks["a"] == pytest.approx(1.25)


@pytest.mark.parametrize("scores", [[], [{"a": 1, "b": 2, "c": 3}], [{"a": 1, "b": 2}] * 2])
def test_ranks_need_three_methods_on_two_data_sets(scores):
    with pytest.raises(ValueError, match="ranks need"):
        Ranks.of(scores)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data set with three methods and two seeds; ``close`` is below ``best`` in one of them."""
    values = {"close(run.learning-rate=1)": (0.8, 0.7), "worst": (0.1, 0.2), "best": (0.7, 0.9)}
    methods = {label: {"accuracy": Estimate.of(of)} for label, of in values.items()}
    methods["a guess"] = {"accuracy": Estimate.of([0.0, 0.0])}
    methods["best"] |= {"worst_tenth.accuracy": Estimate.of([0.5]), "bytes_per_client_round": Estimate.of([12_345])}
    methods["best: adapted"] = {"accuracy": Estimate.of([0.6])}
    (tmp_path / "methods-toy.json").write_text(Result("methods-toy", "toys", methods=methods).text())
    monkeypatch.setattr(ranks, "FOLDER", tmp_path)
    monkeypatch.setattr(ranks, "result", lambda name: Result.read(tmp_path / f"{name}.json"))
    return DataSet("methods-toy", "Toys", "accuracy")


def test_a_table_has_a_row_for_each_method_and_the_means_that_are_known(data):
    assert data.known
    head, _, *rows = ranks.method_table([data]).splitlines()
    assert head == "|  | Toys |"
    assert rows == [
        "| `best` | .800* .500* .600 |",
        "| `close` | .750* - - |",
        "| `worst` | .150 - - |",
        "| reference | a guess .000 |",
    ]
    assert data.rows()["best"]["bytes"].mean == 12_345


def test_a_method_with_a_setting_at_the_end_of_its_range_has_a_dagger(data, tmp_path):
    tuned = [{"method": "close", "near_end": ["run.learning-rate"]}, {"method": "best", "near_end": []}]
    (tmp_path / "methods-toy-tune.json").write_text(Result("methods-toy-tune", "toys", rows=tuned).text())
    assert [row for row in ranks.method_table([data]).splitlines() if "†" in row] == ["| `close` | .750* - -† |"]


def test_a_method_with_failed_runs_is_not_ranked_and_says_how_many_seeds_it_has(data, tmp_path):
    methods = data.rows()
    failed = [{"method": "best", "seed": 2, "round": 4, "reason": "diverged"}]
    kept = {
        "worst": {"accuracy": methods["worst"]["own"]},
        "close": {"accuracy": methods["close"]["own"]},
        "best": {"accuracy": Estimate.of([0.9, 0.9])},
    }
    text = Result("methods-toy", "toys", seeds=(0, 1, 2), methods=kept, failed=failed).text()
    (tmp_path / "methods-toy.json").write_text(text)
    rows = ranks.method_table([data]).splitlines()[2:]
    assert rows[0] == "| `best` | .900 - - (2 of 3 seeds) |"
    assert data.as_good("own")[0] == "close"


def test_the_best_method_and_those_that_may_be_as_good(data):
    assert data.as_good("own") == ("best", ["close"])
    assert data.not_below_best("own") == ["best", "close"]
    assert data.not_below_best("common") == []


def test_the_methods_that_are_better_in_an_experiment(data):
    """``close`` is above ``worst`` by .7 and .5: .6 ± 12.7 · .1; ``best`` by .6 and .7: .65 ± 12.7 · .05."""
    assert ranks.beaten_by(
        "methods-toy", "accuracy", "worst", {"best": "the best", "close(run.learning-rate=1)": "close"}
    ) == ("`the best`")
    assert ranks.beaten_by("methods-toy", "accuracy", "best", {"worst": "worst"}) == "none"


def test_the_advice_follows_from_the_results(data, monkeypatch):
    """``close`` may be as good as ``best`` on both data sets; FedAvg would come before either with as many."""
    monkeypatch.setattr(ranks, "DATA_SETS", (data, DataSet("methods-toy", "Same toys", "accuracy", "accuracy")))
    assert ranks.leaders("own") == [("best", 2), ("close", 2)]
    assert ranks.leaders("common") == [("best", 1), ("close", 1)]
    said = ranks.advice()
    assert said.count(". ") == 2
    assert said.startswith("For a node's own data take `best`: within noise of the best on 2 of 2 data sets. For")
    assert "take `best`: within noise of the best on 1 of 1 data sets with common data" in said
    assert said.endswith("within noise of the best on own data on 0 of 2.")
    sets = {"Toys": ("best", ["fedavg"]), "Same toys": ("best", ["fedavg"]), "Others (loss)": ("worst", [])}
    monkeypatch.setattr(ranks, "DATA_SETS", (*ranks.DATA_SETS, DataSet("methods-toy", "Others (loss)", "accuracy")))
    monkeypatch.setattr(DataSet, "as_good", lambda self, column: sets[self.name])
    assert ranks.leaders("own") == [("fedavg", 2), ("best", 2), ("worst", 1)]
    assert "take `fedavg`: within noise of the best on 2 of 3 data sets; the others have `worst` (Others)." in (
        ranks.advice()
    )
    assert ranks.advice().endswith("on 2 of 3.")


def test_fedavg_with_sgd_is_told_from_fedavg():
    labels = [
        "fedavg(run.learning-rate=1)",
        "fedavg(run.learning-rate=1,run.optimizer=sgd)",
        "scaffold(run.optimizer=sgd)",
    ]
    assert [ranks.name_of(label) for label in labels] == ["fedavg", "fedavg (SGD)", "scaffold"]
