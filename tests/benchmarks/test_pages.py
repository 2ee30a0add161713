"""Results and the pages made of them: estimates, verdicts, numbers as text, and whether the pages are up to date."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import t

from benchmarks.claims import claim, verdict
from benchmarks.experiments import experiments
from benchmarks.numbers import (
    at_values,
    command,
    effect,
    gap,
    held_out,
    in_order,
    quotient,
    shown,
    span,
    survived,
    table,
    wilcoxon,
)  # fmt: skip
from benchmarks.pages import ROOT, pages, stale
from benchmarks.results import FOLDER, Estimate, Result, result
from fedapps.comparison.papers import paper_exhibits

TWO = Result(
    "two",
    "python -m two",
    methods={
        "a": {"loss": Estimate.of([1.0, 2.0, 3.0]), "old": Estimate(1.0, 4, 0.25)},
        "b": {"loss": Estimate.of([2.0, 2.0, 5.0]), "old": Estimate(3.0, 4, 0.75), "bare": Estimate(1.0, 4)},
    },
    differences=[{"metric": "said", "a": "a", "b": "b", "mean": 1.0, "low": 0.5, "high": 2.0, "seeds": 5, "p": 0.0625}],
)


def test_no_page_is_stale() -> None:
    assert stale() == [], "run: make results"


def test_every_result_is_that_of_an_experiment_as_the_table_has_it() -> None:
    for path in FOLDER.glob("*.json"):
        found = Result.read(path)
        assert found.experiment == path.stem
        assert found.command == experiments()[path.stem].shown
        assert found.text() == path.read_text(), "written in another form"


def test_short_pages_stay_short() -> None:
    sizes = {path: len(text.encode()) for path, text in pages().items() if path.parent == ROOT / "docs" / "results"}
    assert sizes.pop(ROOT / "docs" / "results" / "methods.md") <= 10_000
    assert max(sizes.values()) <= 9000
    assert sum(sizes.values()) <= 36_000


@pytest.mark.parametrize(
    ("paper", "page", "tables", "figures"),
    [
        ("apfl", "driving", ("I", "II", "III"), 9),
        ("elastic_transfer", "social", range(1, 5), 5),
        ("fedvln", "houses", range(1, 10), 7),
        ("fedvpr", "places", range(1, 11), 5),
        ("fedvocab", "text", range(1, 10), 5),
    ],
)
def test_a_page_answers_every_table_and_figure_of_its_paper(
    paper: str, page: str, tables: Sequence[object], figures: int
) -> None:
    expected = {f"Table {number}" for number in tables} | {f"Figure {number}" for number in range(1, figures + 1)}
    listed = [name for exhibit in paper_exhibits(paper) for name in exhibit.of]
    assert sorted(listed) == sorted(expected)
    text = pages()[ROOT / "docs" / "results" / f"{page}.md"]
    rows = text.partition("## The paper's tables and figures\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(paper_exhibits(paper))
    for row, exhibit in zip(rows, paper_exhibits(paper), strict=True):
        first, _, last = row.strip("| ").split(" |")
        assert all(name.split()[1] in first for name in exhibit.of)
        assert last.strip(" |"), f"{first} is silent"
        assert exhibit.missing or exhibit.compared
        assert {*exhibit.experiments, *exhibit.rerun} <= experiments().keys()
        assert not exhibit.rerun or " h)" in last


def test_clusters_that_were_not_averaged_in_the_last_round_are_not_what_the_paper_tests() -> None:
    stored, page = result("fedvpr-intervals").of, pages()[ROOT / "docs" / "results" / "places.md"]
    for rounds in (5, 10, 15, 20, 25):
        mean = stored(f"h-fl at {rounds}", "shared.test.recall_at_1").mean
        assert (mean == stored(f"h-fl at {rounds}", "recall_at_1").mean) == (25 % rounds == 0)
        assert f" {rounds} {shown(mean, 2)} ± " in page.partition("| rounds between averages |")[2]


def test_the_minutes_of_an_experiment_are_those_that_its_result_has_measured() -> None:
    assert experiments()["quickstart"].minutes == result("quickstart").minutes == 9.4


def test_a_method_is_found_by_its_alias() -> None:
    stored = {"fedvln(share=none,seen-fraction=0)": 0.5, "fedvln(seen-fraction=0)": 0.75}
    found = Result("e", "", methods={label: {"sr": Estimate.of([value])} for label, value in stored.items()})
    assert found.of("env-based", "sr").mean == 0.5
    assert found.difference("sr", "fed-lan", "env-based").mean == 0.25
    varied = Result("e", "", methods={"fedavg at 0.1": {"sr": Estimate.of([0.25])}})
    assert varied.of("sfl at 0.1", "sr").mean == 0.25
    with pytest.raises(KeyError, match="no 'sr' of 'fedvln'"):
        found.of("fed-lan-seen", "sr")


def test_a_row_of_held_out_nodes_has_three_models_and_two_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a: shared": [4.0, 4.0], "a: adapted": [1.0, 1.0], "a: local": [2.0, 2.0]}
    methods = {label: {"loss": Estimate.of(of)} for label, of in values.items()}
    monkeypatch.setattr("benchmarks.numbers.result", lambda name: Result(name, "", methods=methods))
    row = held_out({"two/a": "robots"}, "loss", 1)
    assert row == "| robots | 4.0 | 1.0 | 2.0 | −3.0 (−3.0 to −3.0) | −1.0 (−1.0 to −1.0) |"


def test_differences_are_paired_where_the_values_are_known_and_else_as_wide_as_they_can_be() -> None:
    paired = TWO.difference("loss", "a", "b")
    assert paired.mean == -1
    assert paired.high == pytest.approx(-1 + t.ppf(0.975, 2) / 3**0.5)
    assert not paired.widest
    widest = TWO.difference("old", "b", "a")
    assert (widest.mean, widest.widest) == (2, True)
    assert widest.half == pytest.approx(t.ppf(0.975, 3) * 1.0 / 2)
    other_way = TWO.difference("said", "b", "a")
    assert (other_way.mean, other_way.low, other_way.high, other_way.p) == (-1, -2, -0.5, 0.0625)
    with pytest.raises(KeyError, match=r"results/two.json has no 'gone' of 'a', but loss, old"):
        TWO.difference("gone", "a", "b")


def test_a_reference_without_random_draws_has_its_value_under_every_seed() -> None:
    values = {"a": [1.0, 2.0, 3.0], "floor": [4.0]}
    known = Result("x", "", methods={name: {"loss": Estimate.of(of)} for name, of in values.items()})
    gap = known.difference("loss", "a", "floor")
    assert (gap.mean, gap.seeds, gap.widest) == (-2, 3, False)
    assert gap.half == pytest.approx(t.ppf(0.975, 2) / 3**0.5)


def test_the_mean_of_results_is_taken_seed_by_seed() -> None:
    one, other = (
        Result("places", "", methods={"a": {"loss": Estimate.of(values), "one": Estimate(3.0, 2)}, **more})
        for values, more in (([1.0, 2.0], {"b": {"loss": Estimate.of([1.0])}}), ([3.0, 6.0], {}))
    )
    both = one.mean_with([other])
    assert both.methods.keys() == {"a"}
    assert both.methods["a"] == {"loss": Estimate.of([2.0, 4.0])}  # values of "one" are not known
    assert one.mean_with([one]).methods["b"]["loss"].mean == 1.0


def test_methods_of_two_results_are_compared_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"one": [4.0, 9.0], "other": [2.0, 3.0]}
    monkeypatch.setattr(
        "benchmarks.numbers.result", lambda name: Result(name, "", methods={"a": {"time": Estimate.of(found[name])}})
    )
    assert quotient("time", "one", "a", "other", "a") == "2.6 [2.0, 3.0]"
    assert gap("one", "a", "time", "time") == "+.000 (.000 to .000)"


@pytest.mark.parametrize(
    ("better", "by", "said"),
    [
        (Estimate(1.0, 3, low=0.5, high=1.5), 0.4, "holds"),
        (Estimate(1.0, 3, low=0.5, high=1.5), 0.6, "within noise"),
        (Estimate(1.0, 3, low=0.5, high=1.5), 1.6, "does not hold"),
        (Estimate(1.0, 3, low=0.5, high=1.5, widest=True), 0.6, "not tested"),
        (Estimate(1.0, 3, low=0.5, high=1.5, widest=True), 0.4, "holds"),
        (Estimate(1.0), 0.0, "not tested: one seed"),
        (Estimate(1.0, 10), 2.0, "not tested (not so in the mean)"),
    ],
)
def test_verdicts_follow_from_intervals(better: Estimate, by: float, said: str) -> None:
    assert verdict(better, by) == said


def test_methods_stand_by_their_means_the_best_first(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"a": 0.3, "b": 0.1, "c": 0.2}
    methods = {label: {"loss": Estimate.of([value])} for label, value in losses.items()}
    monkeypatch.setattr("benchmarks.numbers.result", lambda name: Result(name, "", methods=methods))
    assert in_order("one", "loss", {"a": "A", "b": "B", "c": "C"}) == "`B`, `C`, `A`"


def test_the_signed_rank_test_of_five_pairs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": [2.0, 4.0, 6.0, 8.0, 10.0], "b": [1.0, 2.0, 3.0, 4.0, 5.0], "c": [3.0, 2.0, 3.0, 4.0, 5.0]}
    methods = {label: {"cost": Estimate.of(of)} for label, of in values.items()}
    monkeypatch.setattr("benchmarks.numbers.result", lambda name: Result(name, "", methods=methods))
    assert wilcoxon("one", "cost", "a", "b", 4) == ".0625"  # all signs alike: 2 of 2^5
    assert wilcoxon("one", "cost", "a", "c", 3) == ".125"  # the smallest rank has another sign: 4 of 2^5
    assert wilcoxon("one", "cost", "a", "a", 1) == "1.0"


def test_the_effect_of_an_option_is_its_mean_change_over_the_settings_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = {("0.5", "1"): 4.0, ("0.5", "0"): 2.0, ("0", "1"): 3.0, ("0", "0"): 1.5}
    methods = {f"m(a={a},b={b})": {"loss": Estimate.of([loss])} for (a, b), loss in losses.items()}
    monkeypatch.setattr("benchmarks.numbers.result", lambda name: Result(name, "c", methods=methods))
    published = {label: {"loss": 10 * of["loss"].mean} for label, of in methods.items()}
    monkeypatch.setattr("benchmarks.numbers.paper_of", lambda recipe, labels: published)
    grid = {"a": ["0.5", "0"], "b": ["1", "0"]}
    half = t.ppf(0.975, 1) * 0.25  # of 1 and .5 the standard deviation is .5 / √2
    assert (
        effect("x", "loss", "m", "a", grid, 2) == f"+.75 ({shown(0.75 - half, 2)} to {shown(0.75 + half, 2)}) [+7.50]"
    )
    assert effect("x", "loss", "m", "b", grid, 2).startswith("+1.75 (")
    assert span("x", "loss", "m", grid, 1) == "1.5 [15.0] to 4.0 [40.0]"


def test_the_papers_numbers_stand_at_its_own_values_beside_a_method_with_any_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recalls = {"fedavg at 2": 0.4, "fedavg at 7": 0.3, "fedvc(draws=without-replacement) at 2": 0.5}
    methods = {label: {"recall_at_1": Estimate.of([recall])} for label, recall in recalls.items()}
    monkeypatch.setattr("benchmarks.numbers.result", lambda name: Result(name, "c", "fedvpr-steps", methods=methods))
    theirs = {"2": "125"}
    assert at_values("x", "recall_at_1", "steps", "fedavg", theirs) == "2 .400 [.666], 7 .300"
    options = "fedvc(draws=without-replacement)"
    assert at_values("x", "recall_at_1", "steps", options, theirs) == "2 .500 [.623]"
    assert at_values("x", "recall_at_1") == f"fedavg 2 .400, fedavg 7 .300, {options} 2 .500"


def test_a_condition_says_how_many_runs_reached_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    all_end, one_ends = {"ended": Estimate.of([1, 1])}, {"ended": Estimate.of([1, 0]), "loss": Estimate.of([0.5])}
    monkeypatch.setattr(
        "benchmarks.numbers.result", lambda name: Result(name, "", methods={"a": all_end, "b": one_ends})
    )
    assert [survived("x", method, "loss") for method in "ab"] == ["ends", ".50 (1 of 2)"]


def test_numbers_as_the_pages_show_them() -> None:
    assert [shown(0.25), shown(-0.25), shown(-0.0001), shown(1810517, 0), shown(2, 1, sign=True)] == [
        ".250", "−.250", ".000", "1,810,517", "+2.0",
    ]  # fmt: skip


def test_a_table_has_ours_and_the_papers_number_and_a_claim_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"apfl": {"total_loss": Estimate(0.02, 2, 0.01)}, "spfl": {"total_loss": Estimate(0.03, 2)}}
    difference = {
        "metric": "total_loss",
        "a": "apfl",
        "b": "spfl",
        "mean": -0.01,
        "low": -0.02,
        "high": -0.005,
        "seeds": 2,
    }
    known = Result("lqr", "", recipe="lqr", methods=losses, differences=[difference | {"seeds": 2}])
    for module in ("numbers", "claims"):
        monkeypatch.setattr(f"benchmarks.{module}.result", lambda name: known)
    shown = table("lqr", ["apfl", "spfl", "local"], {"total_loss:2": "loss"}, head="by").splitlines()
    head, _, apfl, spfl, not_run = shown
    assert head == "| by | loss |"
    assert apfl == "| `apfl` | .02 ± .09 [.02] |"
    assert spfl == "| `spfl` | .03 [.02] |"
    assert not_run == "| `local` | [.02] |"
    row = claim("APFL is better", "lqr", "total_loss", "apfl", "spfl", digits=5)
    assert row == "| APFL is better | −.00004 | −.01000 (−.02000 to −.00500) | 2 | holds |"
    with pytest.raises(KeyError, match="no experiment gone"):
        command("gone")


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(TWO.text())
    again = Result.read(path)
    assert again.text() == TWO.text()
    assert again.of("b", "old").sd == 0.75
    assert result("lqr").experiment == "lqr"
