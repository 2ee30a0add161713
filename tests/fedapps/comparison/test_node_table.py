"""The table of a recipe's nodes."""

from pathlib import Path

import pytest
from striped_places import write_places

from fedapps.cli.commands import main
from fedapps.comparison.matrix import Vary
from fedapps.comparison.nodes import RecipeNodes, nodes_text
from fedapps.config.parsing import ConfigError
from fedapps.config.recipe_files import recipes

PLACES = {"vpr.radius": 1000.0, "vpr.backbone": "squeezenet1_1", "vpr.validation-clients": 0}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Five cities on two continents, each with two query and two database sequences at four places."""
    folder = tmp_path_factory.mktemp("places")
    write_places(folder, cities=5, spots=4)
    return PLACES | {"data-dir": str(folder), "num-nodes": 4}


def test_the_table_of_a_split(places):
    assert nodes_text(RecipeNodes.read(Path("fedvpr"), places)).splitlines() == [
        "  nodes  sequences  images  queries  queries to train on",
        "--------------------------------------------------------",
        "      4          4      16        8                    8",
        "the split gives 4 clients with 100% of the sequences; 4 take part",
        "city: city-0 1, city-1 1, city-2 1, city-3 1",
        "continent: land-0 2, land-1 2",
    ]


def test_a_line_for_each_value_of_a_key(places):
    text = nodes_text(RecipeNodes.read(Path("fedvpr"), places | {"num-nodes": 3}, Vary("vpr.test-share", (0.2, 0.4))))
    assert text.splitlines()[2:] == [
        "0.2                 3          4      16        8                    8",
        "0.4                 3          4      16        8                    8",
        "0.2: the split gives 4 clients with 100% of the sequences; 3 take part",
        *(line for line in text.splitlines() if line.startswith("0.2: c")),
        "0.4: the split gives 3 clients with 100% of the sequences; 3 take part",
        "0.4: city: city-0 1, city-1 1, city-2 1",
        "0.4: continent: land-0 2, land-1 1",
    ]


def test_by_default_the_sizes_are_the_examples_of_each_split(tmp_path):
    small = {"cache-dir": str(tmp_path), "num-nodes": 2, "lqr.trajectories": 4, "lqr.horizon": 6}
    head, _, row, *_ = nodes_text(RecipeNodes.read(Path("lqr"), small)).splitlines()
    assert head.split() == ["nodes", "train", "examples", "test", "examples"]
    assert row.split() == ["2", "18", "6"]  # four trajectories of six steps, one of them for the test


def test_an_invalid_config_or_missing_data_are_refused(places, capsys):
    with pytest.raises(ConfigError, match="num-nodes = 0"):
        RecipeNodes.read(Path("fedvpr"), places | {"num-nodes": 0})
    assert main(["nodes", "fedvpr"]) == 2
    assert "data-dir = ''" in capsys.readouterr().err


def test_the_command_prints_it(places, capsys):
    given = [f"--set={key}={value}" for key, value in places.items()]
    assert main(["nodes", "fedvpr", *given]) == 0
    assert "the split gives 4 clients" in capsys.readouterr().out
    assert "fedvpr" in recipes()
