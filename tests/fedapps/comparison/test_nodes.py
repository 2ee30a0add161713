"""The table and the figure of a recipe's nodes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.lqr.task import LqrTask
from scipy.stats import binom, t, wilcoxon
from striped_places import write_places

from fedapps.base.report.numbers import Estimate
from fedapps.cli.commands import main
from fedapps.comparison.compare import compare_recipe
from fedapps.comparison.matrix import Vary
from fedapps.comparison.nodes import NodesOfConfig, RecipeNodes, node_counts, nodes_figure, nodes_text, write_nodes
from fedapps.comparison.papers import Claim
from fedapps.comparison.significance import held_out_row, held_out_table, sign_flip_p
from fedapps.config.parsing import ConfigError
from fedapps.config.recipe_files import RECIPES
from fedapps.report.comparison_tables import comparison_text
from fedapps.runs.comparisons import Comparison

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


# What a comparison says of held-out nodes: means, and paired differences with their intervals.


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


@pytest.mark.slow
def test_a_comparison_with_held_out_nodes(tmp_path, monkeypatch, capsys):
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


# Two names for one method: a comparison calls them different no more often than its nominal rate.


REPETITIONS, PAIRS, LEVEL = 200, 70, 0.05
CLAIM = Claim("one is better than other", ["any"], "accuracy", "one", ["other"])
SETTINGS = [(seeds, share) for seeds in (5, 10) for share in (0.01, 0.05, 0.2)]


def most(level):
    """The largest number of errors at this level, exceeded by chance in one of 1000 simulations."""
    return binom.ppf(0.999, REPETITIONS, level)


def draw(seeds, share, effect=0.0):
    """The values of two methods, each [repetitions, seeds, pairs]. ``effect`` is added to the first method."""
    rng = np.random.default_rng((seeds, round(1000 * share)))
    between = rng.normal(0, np.sqrt(share), (2, REPETITIONS, seeds, 1))
    within = rng.normal(0, np.sqrt(1 - share), (2, REPETITIONS, seeds, PAIRS))
    one, other = between + within
    return one + effect, other


def verdicts(one, other):
    pairs = zip(one.mean(axis=2), other.mean(axis=2), strict=True)
    found = [CLAIM.against({"one": {"accuracy": a.tolist()}, "other": {"accuracy": b.tolist()}}) for a, b in pairs]
    return [facts.verdict for facts in found]


@pytest.mark.parametrize(("seeds", "share"), SETTINGS)
def test_p_values_and_verdicts_keep_their_nominal_rate(seeds, share):
    one, other = draw(seeds, share)
    p = sign_flip_p((one - other).mean(axis=2))
    for level in (LEVEL, 1 / 16, 1 / 4):
        assert np.sum(p <= level) <= most(level)
    assert np.sum(p <= 1 / 4) > REPETITIONS / 8  # of half the nominal rate at least: the test is not merely cautious
    assert REPETITIONS - verdicts(one, other).count("within noise") <= most(LEVEL)


@pytest.mark.parametrize(("seeds", "share"), SETTINGS)
def test_a_test_over_sessions_does_not(seeds, share):
    one, other = draw(seeds, share)
    p = wilcoxon((one - other).reshape(REPETITIONS, -1), axis=1).pvalue
    assert np.sum(p <= LEVEL) > most(LEVEL)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_a_large_effect_is_found_with_ten_seeds(share):
    one, other = draw(10, share, effect=1.5)
    assert np.mean(sign_flip_p((one - other).mean(axis=2)) <= LEVEL) > 0.95
    assert verdicts(one, other).count("holds") > 0.95 * REPETITIONS
    assert verdicts(other, one).count("fails") > 0.95 * REPETITIONS
