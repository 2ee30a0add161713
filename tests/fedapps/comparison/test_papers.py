"""The papers' numbers against what is known about them."""

import pytest

from fedapps.catalogue import GRID, METHODS
from fedapps.comparison.papers import PAPERS
from fedapps.config.recipe_files import RECIPES, read_recipe

MODEL = 7_681  # parameters of the network of Elastic Transfer


def test_every_number_belongs_to_a_recipe_and_a_method():
    for recipe, table in PAPERS.items():
        chosen = read_recipe(RECIPES / f"{recipe}.toml")["methods"]
        assert table.keys() <= METHODS.keys()
        assert set(str(chosen).split(",")) & table.keys()


@pytest.mark.parametrize("recipe", ["social-methods", "social-elastic", "social-grid", "social-centralised"])
def test_the_paper_has_a_line_for_each_method_of_its_recipes(recipe):
    assert set(str(read_recipe(RECIPES / f"{recipe}.toml")["methods"]).split(",")) <= PAPERS[recipe].keys()


def test_lines_that_table_4_repeats_fix_which_lambda_is_which():
    """λ1 alone is EWC, λ3 alone is FedCurv, and Table 2 names two settings of Table 4."""
    table = PAPERS["social-elastic"]

    def errors(method):
        return tuple(table[method][name] for name in ("amse", "bwt", "fwt"))

    assert GRID["elastic-transfer(own-past=0.05,others-past=0,others-now=0)"].fisher == (0.05, 0.0, 0.0)
    assert errors("elastic-transfer(own-past=0.05,others-past=0,others-now=0)") == errors("fedavg-ewc")
    assert errors("elastic-transfer(own-past=0,others-past=0,others-now=0.5)") == errors("fedcurv")
    assert (
        errors("elastic-transfer(own-past=0,others-past=0.5,others-now=0)")
        == errors("elastic-transfer")
        == (0.0363, 0.0083, 0.0352)
    )
    assert errors("elastic-transfer(own-past=0.05,others-past=0.5,others-now=0.5)") == (0.0396, 0.0062, 0.0400)
    # Section 4.3: these two are the best of all settings.
    grid = [errors(method) for method in GRID]
    assert min(grid)[0] == 0.0363
    assert min(line[2] for line in grid) == 0.0352
    assert min(line[1] for line in grid) == 0.0062


def test_printed_overheads_are_multiples_of_the_model():
    """STL has a model for each of four stages; EWC two copies of the model for each, FedProx one more."""
    table = PAPERS["social-methods"] | PAPERS["social-elastic"]
    static = {method: line["static_parameters"] for method, line in table.items()}
    assert table["stl"]["trainable_parameters"] == 4 * MODEL
    assert static["fedavg-ewc"] == static["local-ewc"] == 8 * MODEL
    assert static["fedprox-ewc"] == 9 * MODEL
    assert {static[method] for method in GRID} == {15 * MODEL}
    assert static["fedcurv"] == 3 * MODEL - 3_000  # the misprint
    apd = 7_424 + 4 * (7_424 + 257 + 257)
    assert {table[f"{way}-apd"]["trainable_parameters"] for way in ("local", "fedavg", "fedprox")} == {apd}
