"""The headline of a run: what the nodes gain together over each alone, and on how many of them."""

import json
from pathlib import Path

import pytest
from report_pages import comparison, estimate, headline, node_line, page, paired_test, round_line, section, write_lines

from fedapps.base.report.metrics import describe
from fedapps.registry.methods import METHODS
from fedapps.report import read_run
from fedapps.report.sections.headline import gain_of, role_of

SPACE = "\N{NO-BREAK SPACE}"


def write_run(folder: Path, nodes: dict[str, list[float]], metric: str = "test.elbo") -> Path:
    """A finished run of one round, with these values of each method's nodes and their means as results."""
    means = {method: sum(values) / len(values) for method, values in nodes.items()}
    (folder / "config.toml").write_text(f'methods = "{",".join(nodes)}"\n')
    write_lines(folder / "metrics.jsonl", [round_line(m, 1, evaluate={metric: mean}) for m, mean in means.items()])
    lines = [
        node_line(method, str(place), 0.0) | {"round": 1, "metrics": {metric: value}}
        for method, values in nodes.items()
        for place, value in enumerate(values)
    ]
    write_lines(folder / "nodes.jsonl", lines)
    summary = {method: {"rounds": 1, "final": {metric: mean}, "seconds": 1.0} for method, mean in means.items()}
    (folder / "summary.json").write_text(json.dumps({"methods": summary}))
    return folder


@pytest.mark.parametrize(
    ("nodes", "metric", "expected"),
    [
        (  # (.25 - .4) / .4 = -37.5 %; lower on nodes 0, 1 and 3
            {"local": [0.4, 0.4, 0.1, 0.7], "fedavg": [0.5, 0.5, 0.5, 0.5], "apfl": [0.2, 0.3, 0.2, 0.3]},
            "test.elbo",
            f"apfl: test ELBO loss 0.2500, 38{SPACE}% below training alone (local: 0.4000); better on 3 of 4 nodes.",
        ),
        (  # for an accuracy, higher is better; centralized trains in no federation
            {"local": [0.5, 0.75], "centralized": [1.0, 1.0], "fedavg": [0.75, 0.75]},
            "test.accuracy",
            f"fedavg: test accuracy 0.7500, 20{SPACE}% above training alone (local: 0.6250); better on 1 of 2 nodes.",
        ),
        (
            {"local": [0.25, 0.25], "spfl": [0.5, 0.5], "apfl": [0.75, 0.25]},
            "test.elbo",
            f"The federation gains nothing here. spfl: test ELBO loss 0.5000, 100{SPACE}% above training alone (local: "
            "0.2500); better on 0 of 2 nodes.",
        ),
        (
            {"local": [0.25, 0.75], "fedavg": [0.5, 0.5]},
            "test.elbo",
            "The federation gains nothing here. fedavg: test ELBO loss 0.5000, the same as training alone (local: "
            "0.5000); better on 1 of 2 nodes.",
        ),
        (  # zero has no share
            {"local": [0.0, 0.0], "fedavg": [0.5, 0.5]},
            "test.accuracy",
            "fedavg: test accuracy 0.5000, above training alone (local: 0); better on 2 of 2 nodes.",
        ),
        (  # one node has no spread
            {"local": [0.5], "fedavg": [0.25]},
            "test.elbo",
            f"fedavg: test ELBO loss 0.2500, 50{SPACE}% below training alone (local: 0.5000).",
        ),
        # Without a baseline, a federated method or a direction, the methods are compared with each other.
        (
            {"fedavg": [0.5], "apfl": [0.25]},
            "test.elbo",
            f"apfl has the lowest test ELBO loss: 0.2500, 50{SPACE}% below fedavg (0.5000).",
        ),
        (
            {"local": [0.5], "centralized": [0.25]},
            "test.elbo",
            f"centralized has the lowest test ELBO loss: 0.2500, 50{SPACE}% below local (0.5000).",
        ),
        ({"fedavg": [0.5]}, "test.elbo", "Test ELBO loss: fedavg 0.5000."),
        ({"local": [0.5], "fedavg": [0.25]}, "test.words", "Test words: local 0.5000, fedavg 0.2500."),
    ],
)
def test_the_headline_is_the_gain_over_training_alone(
    tmp_path: Path, nodes: dict[str, list[float]], metric: str, expected: str
) -> None:
    assert headline(page(write_run(tmp_path, nodes, metric))) == expected


def test_a_method_that_diverged_is_left_out(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"local": [0.5, 0.5], "fedavg": [0.25, 0.25], "apfl": [0.1, 0.1]}))
    values = {"local": 0.5, "fedavg": 0.25, "apfl": float("nan")}
    gain = gain_of(run, describe("test.elbo"), values)
    assert gain is not None
    assert (gain.method, gain.nodes, gain.sign) == ("fedavg", (2, 2), 1)
    assert gain_of(run, describe("test.elbo"), values | {"local": float("inf")}) is None


def test_a_comparison_counts_nodes_and_seeds(tmp_path: Path) -> None:
    found = {"local": [0.5, 0.5, 0.5], "fedavg": [0.9, 0.8, 0.4]}
    rows = [
        {"method": method, "seed": seed, "metrics": {"accuracy": value}}
        for method, values in found.items()
        for seed, value in enumerate(values)
    ]
    table = {"local": {"accuracy": estimate(0.5)}, "fedavg": {"accuracy": estimate(0.7, 0.2)}}
    gap = {"seeds": 3, "mean": -0.2, "low": -0.8, "high": 0.4, "p": 0.5, "p_holm": 0.5}
    test = paired_test("test.accuracy", "local", "fedavg", (5, 2), **gap)
    content = comparison(rows, tests=[test]) | {"table": table}
    (tmp_path / "compare.json").write_text(json.dumps(content))
    text = page(tmp_path)
    assert headline(text) == (
        f"fedavg: accuracy 0.7000, 40{SPACE}% above training alone (local: 0.5000), the mean of 3 seeds; better on 5 "
        "of 7 nodes and in 2 of 3 seeds."
    )
    assert f"The difference is −0.4000 to 0.8000 (95{SPACE}% interval). It is not significant" in text


def test_methods_without_a_federation_are_known(tmp_path: Path) -> None:
    roles = {name: kind().role for name, kind in METHODS.own.items()}
    assert {name for name, role in roles.items() if role == "alone"} == {"local", "stl"}
    assert {name for name, role in roles.items() if role == "reference"} == {"centralized", "untrained"}
    run = read_run(write_run(tmp_path, {"fedavg": [0.5]}))
    assert role_of(run, "local-ewc") == role_of(run, "ewc(local=true)") == role_of(run, "env-based") == "alone"
    assert role_of(run, "fedavg-ewc") == role_of(run, "fed-lan") == "federated"
    assert role_of(run, "of-another-package") == "reference"


def test_the_dots_show_the_metric_in_which_nodes_differ(tmp_path: Path) -> None:
    """Under fedavg, all nodes have the same model and so the same result on a common test."""
    common = {"test.global_accuracy": 0.5}
    own = [{"test.local_accuracy": 0.25}, {"test.local_accuracy": 0.75}]
    (tmp_path / "config.toml").write_text('task = "text"\nmethods = "fedavg"\n')
    write_lines(tmp_path / "metrics.jsonl", [round_line("fedavg", 3, evaluate={**common, "test.local_accuracy": 0.5})])
    lines = [node_line("fedavg", str(place), 0.0) | {"metrics": common | found} for place, found in enumerate(own)]
    write_lines(tmp_path / "nodes.jsonl", lines)
    assert "Dot plot of test local accuracy by node" in section(page(tmp_path), "nodes")
    lines = [node_line("fedavg", str(place), 0.0) | {"metrics": common} for place in range(2)]
    write_lines(tmp_path / "nodes.jsonl", lines)
    assert section(page(tmp_path), "nodes") == ""
