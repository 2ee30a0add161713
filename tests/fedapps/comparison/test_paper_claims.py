"""What a paper says in words, held against numbers."""

import json
from pathlib import Path

import pytest

from fedapps.catalogue import METHODS
from fedapps.comparison.matrix import Vary
from fedapps.comparison.paper_claims import CLAIMS, Claim, checked_claims
from fedapps.config.recipe_files import RECIPES, recipe_vary
from fedapps.report import write_report
from fedapps.runs.tables import comparison_text

CLAIM = Claim("ours is within one point of the best", "accuracy", "ours", ("one", "two"), -0.01)


def table(**means):
    return {method: {"accuracy": {"mean": value, "std": 0.0}} for method, value in means.items()}


@pytest.mark.parametrize(("ours", "holds"), [(0.80, True), (0.795, True), (0.789, False), (0.9, True)])
def test_a_margin_to_the_best_of_the_others(ours, holds):
    found = CLAIM.against(table(ours=ours, one=0.6, two=0.8))
    assert (found["rival"], found["holds"]) == ("two", holds)
    assert found["margin"] == pytest.approx(ours - 0.8)


def test_without_one_of_the_methods_nothing_is_claimed():
    assert CLAIM.against(table(ours=0.8, one=0.6)) is None
    assert CLAIM.against({**table(ours=0.8, one=0.6), "two": {}}) is None
    assert checked_claims("lqr", table(ours=0.8)) == []


def test_claims_are_of_recipes_and_methods_that_exist():
    assert CLAIMS.keys() <= {path.stem for path in RECIPES.glob("*.toml")}
    for recipe, claims in CLAIMS.items():
        vary = Vary.read(recipe_vary(Path(recipe)))
        known = {f"{name} at {value}" for name in METHODS for value in vary.values} if vary else METHODS.keys()
        assert {name for claim in claims for name in (claim.method, *claim.than)} <= known


def test_claims_about_values_of_a_varied_key():
    means = {f"fedavg at {split}": {"recall_at_1": {"mean": recall, "std": 0.0}} for split, recall in
             (("random", 0.3), ("clustering", 0.5), ("proximity", 0.4))}  # fmt: skip
    random, clustering = checked_claims("fedvpr-splits", means)
    assert (random["holds"], clustering["holds"]) == (True, False)
    assert (random["rival"], random["margin"]) == ("fedavg at random", pytest.approx(0.1))


def test_the_text_says_what_holds():
    means = {
        name: {"global_accuracy": {"mean": value, "std": 0.0}} for name, value in (("fedvocab", 0.7), ("local", 0.4))
    }
    claims = checked_claims("fedvocab-small", means)
    text = comparison_text({"table": means, "paper": {}, "tests": [], "claims": claims})
    assert "every node alone is far below  global_accuracy  fedvocab - local = +0.3000  holds" in text


def test_the_report_says_it_too(tmp_path):
    means = {name: {"global_accuracy": {"mean": m, "std": 0.0}} for name, m in (("fedvocab", 0.7), ("local", 0.68))}
    claims = checked_claims("fedvocab-small", means)
    comparison = {"recipe": "fedvocab-small", "rows": [], "table": means, "paper": {}, "tests": [], "claims": claims}
    (tmp_path / "compare.json").write_text(json.dumps(comparison))
    page = write_report(tmp_path).read_text()
    assert "Claims of the paper" in page
    assert "fedvocab against local" in page
    assert "<b>does not hold</b>" in page
