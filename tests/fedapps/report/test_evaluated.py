"""Rounds that are evaluated on other nodes than the round before, and the mean over the nodes of every evaluation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import node_line, page, round_line, section, write_finished_run, write_lines

from fedapps.report.evaluated import NodeChange, PairedCurve, pair
from fedapps.runs.records import NodeRecord, RoundRecord

Rounds = Mapping[int, Mapping[str, float]]


def paired(
    rounds: Rounds, means: Mapping[int, float], weights: Mapping[str, float] | None = None
) -> PairedCurve | None:
    """The paired curve of the metric ``x``, of which each round has these values by node, and these recorded means."""
    records = [RoundRecord(method="m", round=r, evaluate={"test.x": mean}) for r, mean in means.items()]
    nodes = [
        NodeRecord(
            method="m", round=r, node=n, phase="evaluate", metrics={"test.x": x}, num_examples=(weights or {}).get(n, 1)
        )
        for r, of_round in rounds.items()
        for n, x in of_round.items()
    ]
    return pair("test.x", records, nodes)


def test_a_lost_node_moves_the_mean_but_not_the_paired_curve_by_hand():
    """Means (.05 + .03 + .09) / 3, (.04 + .02 + .08) / 3 and (.03 + .07) / 2; the paired ones are of a and c."""
    rounds = {2: {"a": 0.05, "b": 0.03, "c": 0.09}, 4: {"a": 0.04, "b": 0.02, "c": 0.08}, 6: {"a": 0.03, "c": 0.07}}
    found = paired(rounds, {2: 0.17 / 3, 4: 0.14 / 3, 6: 0.05})
    assert found is not None
    assert found.changes == (NodeChange(6, left=("b",), joined=()),)
    assert (found.rounds, found.nodes) == ((2, 4, 6), 2)
    assert found.values == pytest.approx((0.07, 0.06, 0.05))
    assert found.sentence == (
        "the evaluated nodes change in round 6 (without b). Dotted: the mean over the 2 nodes of every evaluation."
    )


def test_a_node_that_comes_back_changes_the_nodes_twice():
    found = paired({1: {"a": 1, "b": 3}, 2: {"a": 1}, 3: {"a": 1, "b": 3}}, {1: 2, 2: 1, 3: 2})
    assert found is not None
    assert [change.round for change in found.changes] == [2, 3]
    assert "round 2 (without b) and round 3 (with b). Dotted: the mean over 1 node of every" in found.sentence


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ({1: 3.0, 2: 10 / 3}, 10 / 3),  # (1 + 3 + 2 * 4) / 4 and (2 + 2 * 4) / 3
        ({1: 8 / 3, 2: 3.0}, 3.0),
        ({1: 12 ** (1 / 3), 2: 8**0.5}, 8**0.5),
    ],
    ids=["weighted", "uniform", "geometric"],
)
def test_the_paired_mean_is_of_the_kind_of_the_recorded_one(means: Mapping[int, float], expected: float) -> None:
    found = paired({1: {"a": 1.0, "b": 3.0, "c": 4.0}, 2: {"b": 2.0, "c": 4.0}}, means, {"a": 1.0, "b": 1.0, "c": 2.0})
    assert found is not None
    assert found.values[-1] == pytest.approx(expected)


def test_no_paired_curve_without_a_common_node_or_with_another_kind_of_mean():
    swapped = paired({1: {"a": 1}, 2: {"b": 1}}, {1: 1, 2: 1})
    assert swapped is not None
    assert (swapped.rounds, swapped.nodes) == ((), 0)
    assert "No node is in every evaluation" in swapped.sentence
    pooled = paired({1: {"a": 1, "b": 3}, 2: {"a": 1}}, {1: 2.5, 2: 1})
    assert pooled is not None
    assert (pooled.rounds, pooled.nodes) == ((), 1)
    assert "kind of the mean is unknown" in pooled.sentence


def test_a_value_that_is_not_finite_was_left_out_of_the_mean():
    found = paired({1: {"a": 1, "b": 3}, 2: {"a": 1, "b": float("nan")}}, {1: 2, 2: 1})
    assert found is not None
    assert found.changes[0].left == ("b",)


def test_many_changes_are_counted():
    rounds = {r: {"a": 1, "b": 3} if r % 2 else {"a": 1} for r in range(1, 8)}
    found = paired(rounds, {r: 2 if r % 2 else 1 for r in rounds})
    assert found is not None
    assert found.sentence.startswith("the evaluated nodes change 6 times, first in round 2. ")


VALUES = st.floats(0.1, 10)


@given(
    st.lists(
        st.fixed_dictionaries({"a": VALUES, "b": VALUES}, optional={"c": VALUES, "d": VALUES}), min_size=1, max_size=6
    )
)
def test_the_paired_curve_is_the_mean_over_the_common_nodes(rounds):
    """It is the recorded curve exactly where all rounds have the same nodes, and then nothing is marked."""
    by_round = dict(enumerate(rounds, start=1))
    means = {r: sum(of.values()) / len(of) for r, of in by_round.items()}
    found, common = paired(by_round, means), set.intersection(*map(set, rounds))
    assert (found is None) == all(of.keys() == rounds[0].keys() for of in rounds)
    if found is not None:
        assert found.nodes == len(common)
        assert found.values == pytest.approx([sum(of[n] for n in common) / len(common) for of in rounds])
        changed = [r for r in list(by_round)[1:] if by_round[r].keys() != by_round[r - 1].keys()]
        assert [change.round for change in found.changes] == changed


def lost(method: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of a run of three rounds on the nodes a and b; the last round has lost b."""
    values = {1: {"a": 0.06, "b": 0.02}, 2: {"a": 0.05, "b": 0.01}, 3: {"a": 0.04}}
    means = {r: sum(of.values()) / len(of) for r, of in values.items()}
    nodes = [node_line(method, n, x) | {"round": r} for r, of in values.items() for n, x in of.items()]
    return [round_line(method, r, evaluate={"test.elbo": mean}) for r, mean in means.items()], nodes


def test_a_report_marks_the_round_and_draws_the_paired_curve(tmp_path: Path) -> None:
    rounds, nodes = lost("fedavg")
    (tmp_path / "config.toml").write_text('name = "x"\ntask = "driving"\nmethods = "fedavg"\n')
    write_lines(tmp_path / "metrics.jsonl", rounds)
    write_lines(tmp_path / "nodes.jsonl", nodes)
    curves = section(page(tmp_path), "curves")
    assert "before. The evaluated nodes change in round 3 (without b). Dotted: the mean over 1 node of ev" in curves
    assert "round 3: 0.04000" in curves
    assert "round 3, same nodes: 0.04000" in curves
    assert "round 1, same nodes: 0.06000" in curves
    write_lines(tmp_path / "nodes.jsonl", [line for line in nodes if line["node"] == "a"])
    assert "same nodes" not in section(page(tmp_path), "curves")


def test_a_report_warns_if_methods_were_last_evaluated_on_different_nodes(tmp_path: Path) -> None:
    write_finished_run(tmp_path)
    assert "different nodes" not in page(tmp_path)
    nodes = [node_line(m, n, 0.1) for m, n in (("local", "a"), ("local", "b"), ("sfl", "b"), ("apfl", "a"))]
    write_lines(tmp_path / "nodes.jsonl", nodes)
    assert "cannot be compared: local of 2 nodes, sfl of 1 node, apfl of 1 node.</p>" in page(tmp_path)
    with (tmp_path / "config.toml").open("a") as config:
        config.write("fraction-evaluate = 0.5\n")
    assert "different nodes" not in page(tmp_path), "which nodes evaluate is drawn in each round"
