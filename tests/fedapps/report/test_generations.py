"""The generations of a registry: its decisions read back, the rules of drift and silence, and the report."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import write_registry

from fedapps.cli.commands import main
from fedapps.report import ReportError, write_report
from fedapps.report.generations import Decision, Pair, judged, read_fleet
from fedapps.report.paper import write_formats
from fedapps.runs.champions import Candidate, Registry, decide

WEEK = datetime(2026, 1, 5, tzinfo=UTC)
ROLLBACK = {"metric": "test.loss", "promote": False, "reason": "a person has taken the model back"}


def compared(champions: dict[str, float], **more: Any) -> Decision:
    """A comparison in which the challenger is as good as the champion and is not promoted."""
    of = {"champion": Candidate(1, "week-1", "fedavg", 2), "challenger": Candidate(2, "week-2", "fedavg", 4)}
    nodes = {node: Pair(champion=value, challenger=value) for node, value in champions.items()}
    return Decision(**{"date": WEEK, "metric": "test.loss", "promote": False, "reason": "", "nodes": nodes} | of | more)


def drifted(values: list[float], **more: Any) -> list[bool]:
    """For each of the comparisons, whether a node with these values drifts in it."""
    decisions = [compared({"a": value}, **more) for value in values]
    return [bool(one.drifted) for one in judged(dict(enumerate(decisions, start=1)))[0]]


def test_a_node_drifts_beyond_the_prediction_interval_of_its_own_values() -> None:
    # 1, 2, 3: mean 2, sd 1; t(2, 99.5 %) = 9.925, so 2 +- 9.925 sqrt(4/3) = from -9.460 to 13.460
    assert drifted([1, 2, 3, 13.47]) == [False, False, False, True]
    assert drifted([1, 2, 3, 13.45]) == [False] * 4
    assert drifted([1, 2, 3, -99.0]) == [False] * 4, "a lower loss is no drift"
    assert drifted([1, 2, 3, -9.47], mode="max") == [False, False, False, True]
    assert drifted([1, 2, 3, float("nan")]) == [False, False, False, True]
    assert drifted([1, 2, 99.0]) == [False] * 3, "two values before are too few"
    assert drifted([2, 2, 2, 99.0]) == [False] * 4, "equal values tell no spread"
    _, (node,) = judged(dict(enumerate([compared({"a": value}) for value in (1, 2, 3, 14)])))
    assert node.interval == (pytest.approx(-9.460, abs=1e-3), pytest.approx(13.460, abs=1e-3))
    assert (node.value, node.state) == (14, "drift")


def test_only_the_last_ten_values_in_the_same_metric_count() -> None:
    assert drifted([1e6, *(1.0, 2.0) * 5, 9.0]) == [*[False] * 11, True]
    assert drifted([1e6, *(1.0, 2.0) * 4, 9.0]) == [False] * 10, "one of the ten is far away"
    other = [compared({"a": 99.0}, metric="test.error")]
    generations, _ = judged(dict(enumerate([compared({"a": value}) for value in (1, 2, 3)] + other)))
    assert not any(one.drifted for one in generations)


def test_a_node_is_silent_that_took_part_and_no_longer_answers() -> None:
    first = Decision(date=WEEK, metric="m", promote=True, reason="", challenger=Candidate(1, "w", "m", 1))
    decisions = [
        first,
        compared({"a": 1, "b": 1, "c": 1}),
        compared({"a": 1}, refused={"b": "no shape"}, ineligible={"c": "not on its charger"}),
        compared({"a": 1, "new": 1}, ineligible={"c": "not on its charger"}),
        compared({"a": 1, "c": 1}),
        compared({"a": 1, "b": 1, "c": 1}),
    ]
    generations, nodes = judged(dict(enumerate(decisions, start=1)))
    assert [list(one.silent) for one in generations] == [[], [], [], ["b"], ["new"], []]
    assert {of.node: (of.state, of.last.number) for of in nodes} == {
        "new": ("silent", 4), "a": ("", 6), "b": ("", 6), "c": ("", 6),
    }  # fmt: skip
    states = {of.node: of.state for of in judged(dict(enumerate(decisions[:3])))[1]}
    assert states == {"a": "", "b": "refused: no shape", "c": "may not work: not on its charger"}


def test_the_line_of_the_champion_has_the_groups_and_the_worst_tenth() -> None:
    decision = compared({"a": 1.0, "b": 3.0, "c": 8.0}, members={"city oslo": ["a", "b"], "city rome": ["c"], "x": []})
    assert decision.line() == {"all nodes": 4.0, "worst tenth": 8.0, "city oslo": 2.0, "city rome": 8.0}
    assert compared({"a": 1.0, "b": 3.0}, mode="max").line()["worst tenth"] == 1.0


def test_the_report_shows_decisions_lines_drift_and_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = write_registry(tmp_path / "champions").rolled_back()
    registry.record({**ROLLBACK, "rollback": {"before": 4, "after": 3, "nodes": []}})
    registry.write()
    assert main(["report", str(registry.folder)]) == 0
    path = registry.folder / "report.html"
    assert capsys.readouterr().out.strip() == str(path)
    text = path.read_text()
    for words in (
        "week-6 promoted", '<td class="long">champion kept, not week-5: the interval of the gain begins at',
        "all nodes back from generation 4 to 3", "generation 3 in use: week-4, fedavg, round 8", "drifting: car-3",
        "silent: car-5", 'data-series="city oslo"', 'data-series="worst tenth"', "test loss (lower is better)",
    ):  # fmt: skip
        assert words in text
    with pytest.raises(ReportError, match=r"must be html for .*champions, a registry of champions"):
        write_formats(registry.folder, ["tex"])


def test_the_report_of_a_first_champion_has_no_figure(tmp_path: Path) -> None:
    write_registry(tmp_path, weeks=1)
    text = write_report(tmp_path).read_text()
    assert "week-1 promoted" in text
    assert "<figure>" not in text


VALUES = st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf")])
WEEKS = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.tuples(VALUES, VALUES), max_size=4), st.booleans()), max_size=5
)


@settings(max_examples=20, deadline=None)
@given(WEEKS)
def test_any_sequence_of_decisions_reads_back(weeks: list[tuple[dict[str, tuple[float, float]], bool]]) -> None:
    with TemporaryDirectory() as folder:
        registry, written = Registry(Path(folder)), list[dict[str, Any]]()
        for number, (nodes, back) in enumerate(weeks, start=1):
            challenger = registry.challenger(Path(f"/runs/{number}"), "fedavg", number)
            facts = {"metric": "test.loss", "challenger": vars(challenger), "promote": True, "reason": "", "nodes": {}}
            if registry.champion:
                values = [{node: pair[index] for node, pair in nodes.items()} for index in (0, 1)]
                made = decide(*values, {"all": list(nodes)}, mode="max", margin=1.0, group_margin=1e9)
                facts |= {"champion": vars(registry.of(registry.champion)), **made}
            written.append(facts)
            registry.record(facts)
            registry = registry.promoted(challenger) if facts["promote"] else registry
            if back and len(registry.generations) == 2 and registry.champion == registry.generations[1].generation:
                rollback = {"before": registry.champion, "after": registry.generations[0].generation, "nodes": []}
                registry = registry.rolled_back()
                written.append({**ROLLBACK, "rollback": rollback})
                registry.record(written[-1])
        registry.write()
        fleet = read_fleet(Path(folder))
        assert fleet.registry == registry
        assert [one.number for one in fleet.generations] == list(range(1, len(written) + 1))
        for one, facts in zip(fleet.generations, written, strict=True):
            stored = json.loads(json.dumps(facts))  # as text, because NaN differs from itself
            pairs = {node: {k: v for k, v in of.items() if k != "gain"} for node, of in stored.get("nodes", {}).items()}
            read = asdict(one.decision)
            assert str(read["nodes"]) == str(pairs)
            for name in ("promote", "reason", "metric", "champion", "challenger", "rollback"):
                assert read[name] == stored.get(name)
        assert len(fleet.table().rows) == len(written)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda text: text[:40], "not JSON"),
        (lambda text: text.replace('"metric"', '"other"'), "'metric' is missing"),
        (lambda text: text.replace('"promote": false', '"promote": "no"'), "'promote' is 'no'"),
        (lambda text: text.replace('"champion": {\n', '"former": {\n', 1), "must have a rollback, a challenger"),
        (lambda text: text.replace('"mode": "min"', '"mode": "least"'), "'mode' is 'least'"),
        (lambda text: "[]", "must be a JSON object"),
    ],
)
def test_a_damaged_decision_is_named(tmp_path: Path, damage: Any, problem: str) -> None:
    write_registry(tmp_path, weeks=3)
    path = tmp_path / "decisions" / "000003.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ReportError, match=rf"decisions/000003.json.*{problem}"):
        read_fleet(tmp_path)


def test_a_copy_of_a_decision_is_none(tmp_path: Path) -> None:
    registry = write_registry(tmp_path, weeks=2)
    (tmp_path / "decisions" / "000002 copy.json").write_text("{}")
    assert [one.number for one in read_fleet(tmp_path).generations] == [1, 2]
    assert registry.record(ROLLBACK).name == "000003.json"


def test_damaged_files_end_the_command_with_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_registry(tmp_path, weeks=2)
    (tmp_path / "decisions" / "000002.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
    assert "decisions/000002.json" in capsys.readouterr().err
