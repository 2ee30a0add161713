"""The table and the figure of a recipe's nodes."""

from pathlib import Path

import pytest
import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.lqr.task import LqrTask
from striped_places import write_places

from fedapps.cli.commands import main
from fedapps.comparison.matrix import Vary
from fedapps.comparison.nodes import NodesOfConfig, RecipeNodes, node_counts, nodes_figure, nodes_text, write_nodes
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
    text = nodes_text(RecipeNodes.read(Path("fedvpr"), places | {"num-nodes": 3}, [Vary("vpr.test-share", (0.2, 0.4))]))
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


class Classified(LqrTask):
    num_classes = 3


def node(key, labels, **groups):
    return NodeData(key, {"train": {"label": torch.tensor(labels)}}, groups)


def test_examples_are_counted_by_class():
    found = NodesOfConfig(Classified(), Path(), [node("a", [0, 2, 2]), node("b", [1])], ())
    assert node_counts(found) == {
        "a": {"class 0": 1, "class 1": 0, "class 2": 2},
        "b": {"class 0": 0, "class 1": 1, "class 2": 0},
    }


def test_without_classes_they_are_counted_under_the_group_of_the_node():
    found = NodesOfConfig(LqrTask(), Path(), [node("a", [0, 1], city="oslo", zone="x"), node("b", [1], zone="y")], ())
    assert node_counts(found) == {"a": {"city oslo": 2}, "b": {"city none": 1}}
    assert node_counts(NodesOfConfig(LqrTask(), Path(), [node("a", [0, 1])], ())) == {"a": {"examples": 2}}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_bar_for_each_node_and_a_panel_for_each_value(tmp_path, suffix):
    parts = {0.1: [node("lagos", [0, 0, 1]), node("oslo", [2])], 10.0: [node("lagos", [0, 1]), node("oslo", [1, 2])]}
    found = {(value,): NodesOfConfig(Classified(), Path(), nodes, ()) for value, nodes in parts.items()}
    path = tmp_path / f"nodes.{suffix}"
    figure = nodes_figure(RecipeNodes(["text.alpha"], found), path)
    assert path.stat().st_size > 1000
    first, second = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["text.alpha = 0.1", "text.alpha = 10.0"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["lagos", "oslo"]
    widths = [[bar.get_width() for bar in bars] for bars in first.containers]
    assert widths == [[2, 0], [1, 0], [0, 1]]  # by class, then by node
    assert [bar.get_x() for bar in first.containers[1]] == [2, 0]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["class 0", "class 1", "class 2"]


def test_a_hundred_nodes_are_drawn_without_their_names(tmp_path):
    found = {(): NodesOfConfig(Classified(), Path(), [node(f"node-{n}", [n % 3]) for n in range(100)], ())}
    figure = nodes_figure(RecipeNodes([], found), tmp_path / "nodes.png")
    assert not figure.axes[0].get_yticklabels()
    assert figure.axes[0].get_ylabel() == "100 nodes"


def test_the_command_draws_the_nodes(tmp_path, capsys):
    keys = ["num-nodes=2", "lqr.trajectories=4", "lqr.horizon=6", f"cache-dir={tmp_path}"]
    sets = [part for key in keys for part in ("--set", key)]
    assert main(["nodes", "lqr", *sets, "--plot", str(tmp_path / "nodes.svg")]) == 0
    assert "train examples" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "nodes.svg").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [("nodes.txt", "must end with .png, .svg or .pdf"), ("nowhere/nodes.png", "there is no folder")],
)
def test_a_file_that_cannot_be_drawn_is_refused_before_any_work(tmp_path, capsys, name, message):
    path = tmp_path / name
    assert main(["nodes", "lqr", "--set", f"cache-dir={tmp_path / 'worlds'}", "--plot", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "worlds").exists()


WRITTEN = {
    "lqr": {"num-nodes": 2, "lqr.trajectories": 4, "lqr.horizon": 6},
    "lane-swap": {"num-nodes": 2, "driving.sessions-train": 3, "driving.sessions-test": 1},
    "social-methods": {"social.source": "simulated", "social.world-scenes": 20},
}


@pytest.mark.parametrize("recipe", WRITTEN)
def test_the_files_of_each_node_are_those_of_a_deployed_node(recipe, tmp_path):
    found = RecipeNodes.read(Path(recipe), WRITTEN[recipe] | {"cache-dir": str(tmp_path / "worlds")})
    (of_recipe,) = found.of_values.values()
    folders = write_nodes(found, tmp_path / "samples")
    assert [folder.name for folder in folders] == [node.key for node in of_recipe.nodes]
    for folder, node in zip(folders, of_recipe.nodes, strict=True):
        assert of_recipe.task.load_own(folder).count("train") == node.count("train")
    with pytest.raises(ValueError, match=r"--write: .* exists; choose another folder"):
        write_nodes(found, tmp_path / "samples")


def test_nodes_that_share_files_are_not_written(places, tmp_path):
    with pytest.raises(ValueError, match="--write: the files of the task vpr do not belong to single nodes"):
        write_nodes(RecipeNodes.read(Path("fedvpr"), places), tmp_path)
    varied = RecipeNodes.read(Path("fedvpr"), places | {"num-nodes": 3}, [Vary("vpr.test-share", (0.2, 0.4))])
    with pytest.raises(ValueError, match=r"vpr\.test-share has several values; choose one with --set"):
        write_nodes(varied, tmp_path)
    assert not list(tmp_path.iterdir())
