"""The papers' numbers and claims: their consistency, and claims checked against comparisons."""

import math
import re
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_runs import recipe_runs

from fedapps.base.options import matches
from fedapps.base.report.numbers import Estimate
from fedapps.comparison.matrix import Vary
from fedapps.comparison.papers import Claim, Setting, checked_claims, paper_claims, paper_of, paper_tables
from fedapps.config.recipe_files import packaged_keys, recipe_comparison
from fedapps.registry.expressions import labels
from fedapps.registry.methods import canonical
from fedapps.report import write_report
from fedapps.report.comparison_tables import comparison_text
from fedapps.runs.comparisons import Comparison

MODEL = 7_681  # parameters of the network of Elastic Transfer
GRID = [
    f"elastic-transfer(own-past={own},others-past={past},others-now={now})"
    for own in (0.5, 0.05, 0)
    for past in (0.5, 0.05, 0)
    for now in (0.5, 0.05, 0)
]


def methods_of(recipe):
    return labels(str(recipe_runs()[recipe]["methods"]))


def test_every_table_belongs_to_a_recipe_and_names_methods_that_exist():
    for table in paper_tables():
        assert any(Path(name).match(pattern) for pattern in table.recipes for name in recipe_runs())
        assert all(canonical(method) for method in table.numbers)
        for recipe in table.recipes:
            if not table.key and "*" not in recipe:
                assert paper_of(recipe, methods_of(recipe))


@pytest.mark.parametrize("recipe", ["social-methods", "social-elastic", "social-grid", "social-centralised"])
def test_the_paper_has_a_line_for_each_method_of_its_recipes(recipe):
    assert list(paper_of(recipe, methods_of(recipe))) == methods_of(recipe)


def test_aliases_and_default_arguments_find_the_same_numbers():
    found = paper_of("lqr", ["sfl", "fedavg", "cloud", "spfl(rate-scale=0.2)"])
    assert found["sfl"] == found["fedavg"]
    assert list(found) == ["sfl", "fedavg", "cloud"]
    assert paper_of("social-methods", ["ewc", "fedavg-ewc"])["ewc"]["amse"] == 0.0410


def test_numbers_of_a_study_hold_at_their_value():
    assert paper_of("fedvpr-splits", ["fedavg"], "vpr.split", "random") == {"fedavg": {"recall_at_1": 0.402}}
    assert paper_of("fedvpr-splits", ["fedavg"], "vpr.split", "elsewhere") == {}
    assert paper_of("fedvpr-hierarchy", ["h-fl"], "h-fl.groups", "city") == {"h-fl": {"recall_at_1": 0.333}}


def test_lines_that_table_4_repeats_fix_which_lambda_is_which():
    """λ1 alone is EWC, λ3 alone is FedCurv, and Table 2 names two settings of Table 4."""
    table = paper_of("social-elastic", [*GRID, "fedavg-ewc", "fedcurv", "elastic-transfer"])

    def errors(method):
        return tuple(table[method][name] for name in ("amse", "bwt", "fwt"))

    def setting(own, past, now):
        return errors(f"elastic-transfer(own-past={own},others-past={past},others-now={now})")

    assert setting(0.05, 0, 0) == errors("fedavg-ewc")
    assert setting(0, 0, 0.5) == errors("fedcurv")
    assert setting(0, 0.5, 0) == errors("elastic-transfer") == (0.0363, 0.0083, 0.0352)
    assert setting(0.05, 0.5, 0.5) == (0.0396, 0.0062, 0.0400)
    # Section 4.3: these two are the best of all settings.
    grid = [errors(method) for method in GRID]
    assert min(grid)[0] == 0.0363
    assert min(line[2] for line in grid) == 0.0352
    assert min(line[1] for line in grid) == 0.0062


def test_printed_overheads_are_multiples_of_the_model():
    """STL has a model for each of four stages; EWC two copies of the model for each, FedProx one more."""
    apds = ["local-apd", "fedavg-apd", "fedprox-apd"]
    table = paper_of("social-methods", ["stl", "fedavg-ewc", "local-ewc", "fedprox-ewc", *apds])
    table = {**table, **paper_of("social-elastic", [*GRID, "fedcurv"])}
    static = {method: line["static_parameters"] for method, line in table.items()}
    assert table["stl"]["trainable_parameters"] == 4 * MODEL
    assert static["fedavg-ewc"] == static["local-ewc"] == 8 * MODEL
    assert static["fedprox-ewc"] == 9 * MODEL
    assert {static[method] for method in GRID} == {15 * MODEL}
    assert static["fedcurv"] == 3 * MODEL - 3_000  # the misprint
    assert {table[method]["trainable_parameters"] for method in apds} == {7_424 + 4 * (7_424 + 257 + 257)}


# -- claims ------------------------------------------------------------------------------------------------------

CLAIM = Claim("ours is within one point of the best", ["any"], "accuracy", "ours", ("one", "two"), -0.01)


def accuracies(**values):
    return {method: {"accuracy": of_method} for method, of_method in values.items()}


@pytest.mark.parametrize(
    ("ours", "verdict", "rival"),
    [
        ((0.80, 0.81, 0.79), "holds", "two"),  # differences to two: .000, .001, -.001
        ((0.75, 0.76, 0.74), "fails", "two"),
        ((0.85, 0.70, 0.79), "within noise", "two"),  # differences to two: .05, -.11, -.001
    ],
)
def test_a_verdict_is_by_the_interval_of_the_paired_difference(ours, verdict, rival):
    found = CLAIM.against(accuracies(ours=ours, one=(0.60, 0.61, 0.59), two=(0.80, 0.809, 0.791)))
    assert (found.verdict, found.rival, found.difference.seeds, found.by) == (verdict, rival, 3, -0.01)


def test_an_interval_of_a_claim_by_hand():
    # differences to two 0, .001, -.001 and two rivals: 98.75 % quantile of t with 2 degrees of freedom 6.2053
    found = CLAIM.against(accuracies(ours=(0.8, 0.81, 0.79), one=(0.6, 0.61, 0.59), two=(0.8, 0.809, 0.791)))
    half = 6.2053 * 0.001 / 3**0.5
    assert found.difference.mean == pytest.approx(0, abs=1e-12)
    assert (found.difference.low, found.difference.high) == (
        pytest.approx(-half, abs=1e-6),
        pytest.approx(half, abs=1e-6),
    )


def test_a_noisy_rival_decides_although_its_mean_is_lower():
    found = CLAIM.against(accuracies(ours=(0.8, 0.8, 0.8), one=(0.5, 0.9, 0.7), two=(0.79, 0.79, 0.79)))
    assert (found.verdict, found.rival) == ("within noise", "one")


def test_identical_results_are_within_noise_and_within_a_point():
    same = (0.8, 0.7, 0.9)
    assert CLAIM.against(accuracies(ours=same, one=same, two=same)).verdict == "holds"  # within a point
    better = Claim("ours is better", ["any"], "accuracy", "ours", ("one",))
    found = better.against(accuracies(ours=same, one=same))
    gap = found.difference
    assert (found.verdict, gap.mean, gap.low, gap.high) == ("within noise", 0, 0, 0)


def test_one_seed_gives_no_verdict():
    found = CLAIM.against(accuracies(ours=(0.99,), one=(0.1,), two=(0.2,)))
    assert (found.verdict, found.rival, found.difference.low, found.difference.high) == ("one seed", "two", None, None)
    assert found.difference.mean == pytest.approx(0.79)


@given(st.lists(st.tuples(*[st.integers(0, 100)] * 2), min_size=2, max_size=6), st.integers(-20, 20))
def test_a_claim_and_its_opposite_have_opposite_verdicts(pairs, by):
    ours, other = ([value / 4 for value in values] for values in zip(*pairs, strict=True))
    claim = Claim("ours exceeds other", ["any"], "accuracy", "ours", ("other",), by / 4)
    opposite = Claim("other exceeds ours", ["any"], "accuracy", "other", ("ours",), -by / 4)
    values = accuracies(ours=ours, other=other)
    verdicts = {claim.against(values).verdict, opposite.against(values).verdict}
    assert verdicts in ({"holds", "fails"}, {"within noise"})


def test_a_claim_needs_finite_values_of_all_of_its_methods():
    whole = accuracies(ours=(0.8, 0.8), one=(0.6, 0.6), two=(0.7, 0.7))
    assert CLAIM.against(whole).verdict == "holds"
    assert CLAIM.against(accuracies(ours=(0.8, 0.8), one=(0.6, 0.6))) is None
    assert CLAIM.against({**whole, "two": {}}) is None
    assert CLAIM.against({**whole, **accuracies(two=(0.7, math.nan))}) is None
    assert checked_claims("lqr", accuracies(local=(0.8,))) == []


def test_claims_are_of_recipes_and_methods_that_exist():
    for claim in paper_claims():
        of_pattern = [[name for name in recipe_runs() if matches(name, [pattern])] for pattern in claim.recipes]
        assert all(of_pattern)
        for recipe in chain(*of_pattern):
            axes = [Vary.read(axis) for axis in recipe_comparison(Path(recipe), "vary").splitlines()]
            values = {str(value) for axis in axes for value in axis.values} or {""}
            for name in (claim.method, *claim.than):
                method, _, value = name.partition(" at ")
                assert canonical(method)
                assert value in values


def test_claims_about_values_of_a_varied_key():
    recalls = {"random": (0.3, 0.31), "clustering": (0.5, 0.51), "proximity": (0.4, 0.41)}
    found = {f"fedavg at {split}": {"recall_at_1": recall} for split, recall in recalls.items()}
    random, clustering = checked_claims("fedvpr-splits", found)
    assert (random.verdict, clustering.verdict) == ("holds", "fails")
    assert (random.rival, random.difference.mean) == ("fedavg at random", pytest.approx(0.1))


def fedvocab_and_local(*local):
    values = {"fedvocab": [0.7] * len(local), "local": local}
    return {name: {"global_accuracy": of_name} for name, of_name in values.items()}


def test_the_text_shows_the_verdicts_and_what_they_rest_on():
    claims = checked_claims("fedvocab-small", fedvocab_and_local(0.4, 0.5))
    text = comparison_text(Comparison(recipe="r", claims=claims))
    assert re.search(r"fedvocab against local +0.25 \(−0.39 to 0.89\) +> 0.05 +within noise", text)
    assert text.split("\n\n")[1].startswith("Intervals of the paired difference over 2 seeds have 95 % confidence")


def test_the_text_says_that_one_seed_gives_no_verdict():
    claims = checked_claims("fedvocab-small", fedvocab_and_local(0.4))
    text = comparison_text(Comparison(recipe="r", claims=claims))
    assert text.split("\n\n")[1].startswith("One seed gives no verdict")
    assert re.search(r"fedvocab against local +0.3000 +> 0.05 +one seed", text)


def test_the_report_shows_the_claims(tmp_path):
    found = fedvocab_and_local(0.68, 0.69, 0.68)
    claims = checked_claims("fedvocab-small", found)
    table = {name: {"global_accuracy": Estimate(0.7)} for name in found}
    comparison = Comparison(recipe="fedvocab-small", table=table, claims=claims)
    (tmp_path / "compare.json").write_text(comparison.text())
    page = write_report(tmp_path).read_text()
    assert "Claims of the paper" in page
    assert "fedvocab against local" in page
    assert "<b>fails</b>" in page
    assert "Intervals of the paired difference over 3 seeds" in page


# -- data and nodes of another setting ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "changed", "simulates", "departures"),
    [
        ("fedvocab-small", {"data-dir": "/agnews", "rounds": 5, "text.vocabulary": "file"}, False, []),
        ("fedvocab-small", {"data-dir": "/sms", "text.dataset": "sms"}, False, ["text.dataset"]),
        ("fedvocab-small", {"num-nodes": 7}, False, ["num-nodes"]),
        ("lqr", {"epochs": 3}, True, []),
        ("lqr", {"lqr.trajectories": 5}, True, ["lqr.trajectories"]),
        ("lqr", {"data-dir": "/robots"}, True, ["data-dir"]),
        ("fedvocab-mine", {}, False, ["recipe"]),
    ],
)
def test_other_data_or_nodes_are_another_setting(recipe, changed, simulates, departures):
    keys = {**(packaged_keys(recipe) or {}), **changed}
    setting = Setting(recipe, keys, simulates)
    assert setting.departures() == departures
    assert setting.fits([recipe]) is not bool(departures)


def test_a_varied_key_is_not_compared():
    keys = {**packaged_keys("lqr"), "lqr.trajectories": 5}
    assert Setting("lqr", keys, simulates=True, varied=("lqr.trajectories",)).departures() == []


def test_the_paper_is_silent_on_other_data_but_not_on_its_other_data_sets():
    """The claims of FedVocab are on three data sets."""
    values = fedvocab_and_local(0.4, 0.5)
    own = {**packaged_keys("fedvocab-small"), "text.labels": "ham,spam", "text.dataset": "sms"}
    assert checked_claims("fedvocab-small", values, Setting("fedvocab-small", own, simulates=False)) == []
    sst2 = {**packaged_keys("fedvocab-small"), "text.dataset": "sst2"}
    shown = checked_claims("fedvocab-small", values, Setting("fedvocab-small", sst2, simulates=False))
    assert shown == checked_claims("fedvocab-small", values) != []
    robots = {**packaged_keys("lqr"), "data-dir": "/robots"}
    assert paper_of("lqr", ["sfl"], setting=Setting("lqr", robots, simulates=True)) == {}
