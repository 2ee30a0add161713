"""The report page: the headline, self-contained markup, unfinished runs and missing values."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser_pages import in_a_browser, violations
from hypothesis import given
from hypothesis import strategies as st
from report_pages import (
    add_to_summary,
    headline,
    node_line,
    page,
    round_line,
    section,
    section_names,
    write_finished_run,
    write_lines,
    write_registry,
)

from fedapps.report import read_run, write_report
from fedapps.report.comparison_tables import SIGNIFICANT, about_tests, needed_seeds, smallest_p
from fedapps.runs.run_folder import STARTED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_finished_run(tmp_path)


class Page(HTMLParser):
    """Checks that tags close in order, and keeps ids and addresses."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self._keep(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _keep(self, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]


def test_the_page_starts_with_the_result_and_is_self_contained(folder: Path) -> None:
    text = page(folder)
    gain = "50\N{NO-BREAK SPACE}% below training alone (local: 0.04000)"
    assert headline(text) == f"apfl: test ELBO loss 0.02000, {gain}; better on 2 of 2 nodes."
    assert section_names(text) == ["result", "curves", "nodes", "traffic", "config"]
    assert text.count("★ 0.02000") == 1
    found = Page(text)
    assert len(found.ids) == len(set(found.ids))
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert text.count("<script") == 1
    assert "@import" not in text
    assert "swap &lt;1&gt;" in text
    assert "swap <1>" not in text


def test_every_figure_has_an_alternative_text(folder: Path) -> None:
    text = page(folder)
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) == 5
    assert all(re.search(r'(aria-label|alt)="[^"]{20,}"', figure) for figure in figures)


def test_a_method_has_the_same_colour_in_every_figure(folder: Path) -> None:
    text = page(folder)
    colour = re.search(r'background:(#\w+)"></i>apfl', text)[1]  # type: ignore[index]
    for figure in re.findall(r"<figure>.*?</figure>", text, re.DOTALL):
        assert colour.lower() in figure.lower()


def test_the_report_is_deterministic(folder: Path) -> None:
    assert page(folder) == page(folder)
    assert sorted(path.name for path in folder.glob("report*")) == ["report.html"]


def test_one_method_without_nodes(folder: Path) -> None:
    write_lines(folder / "metrics.jsonl", [round_line("sfl", 1)])
    for name in ("nodes.jsonl", "summary.json", "config.toml"):
        (folder / name).unlink()
    (folder / "config.toml").write_text("")
    text = page(folder)
    assert section_names(text) == ["result", "traffic"]  # a curve takes two rounds
    assert "against traffic" not in text
    assert "★" not in text
    assert "has not finished" in text


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_long_name_leaves_room_for_the_bars_beside_it(folder: Path) -> None:
    label = "fedavg(run.epochs=2,logit-adjustment=1,run.learning-rate=0.0001019)"
    write_lines(folder / "metrics.jsonl", [round_line(label, 1)])
    traffic = section(page(folder), "traffic")
    assert label in "".join(re.findall(r">([^<>\n]+)</t(?:ext|span)>", traffic))


def test_an_interrupted_run_is_marked_and_its_incomplete_line_is_skipped(folder: Path) -> None:
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"method": "apfl", "rou')
    text = page(folder)
    assert "has not finished" in text
    assert "The last line of metrics.jsonl is incomplete" in text
    assert "so far." in text
    assert len(read_run(folder).rounds) == 9


def test_unfinished_methods_are_listed(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    del summary["methods"]["apfl"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "Not finished: apfl. The report shows the results so far." in page(folder)


def test_a_run_without_results(folder: Path) -> None:
    (folder / "summary.json").unlink()
    (folder / "nodes.jsonl").unlink()
    (folder / "metrics.jsonl").write_text("")
    text = page(folder)
    assert "No round has finished yet" in text
    assert "No results yet: apfl, local, sfl." in text


def test_missing_and_nan_metrics(folder: Path) -> None:
    nan = float("nan")
    lines = [round_line("sfl", r, evaluate={"test.elbo": nan if r == 2 else 0.1}) for r in (1, 2, 3)]
    write_lines(folder / "metrics.jsonl", [*lines, round_line("apfl", 1, evaluate={"test.elbo": None})])
    write_lines(folder / "nodes.jsonl", [node_line("sfl", "a", nan)])
    (folder / "summary.json").unlink()
    text = page(folder)
    assert "nodes" not in section_names(text)
    assert ">NaN<" in text
    assert "<b>sfl</b> 0.1000, <b>apfl</b> NaN" in text


def test_the_curves_start_with_what_matters_and_end_with_the_number_of_steps(folder: Path) -> None:
    evaluate = {"test.kl": 0.5, "validation.elbo": 0.2, "test.error_1.5s": 0.3, "test.elbo": 0.1, "test.windows": 3.0}
    measured = [{name: value / r for name, value in evaluate.items()} for r in (1, 2)]
    lines = [
        round_line("sfl", r, train={"steps": 40 * r, "loss": 1 / r}, evaluate=measured[r - 1] | {"test.constant": 7.0})
        for r in (1, 2)
    ]
    write_lines(folder / "metrics.jsonl", lines)
    curves = section(page(folder), "curves")
    order = ["test ELBO loss", "test error 1.5s", "More curves", "validation ELBO", "training: loss"]
    places = [curves.index(f">{title}") for title in [*order, "test KL", "test windows", "training: steps"]]
    assert places == sorted(places)
    assert "test constant" not in curves


# The report in a browser against the rules of axe-core: contrast, names of figures and tables, headings.


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_core_finds_nothing_to_object_to(tmp_path: Path, scheme: str) -> None:
    write_registry(tmp_path / "champions")
    of_registry = write_report(tmp_path / "champions").read_text()
    sections = of_registry.partition("</header>")[2].partition("<footer>")[0].replace("<details>", "<details open>")
    sections = sections.replace('id="nodes"', 'id="nodes-of-the-fleet"')  # the report of a run has one, too
    report = page(write_finished_run(tmp_path)).replace("<footer>", f"{sections}<footer>")
    assert violations(report, tmp_path, scheme) == []


# The sentences beside p-values and verdicts.


def test_the_smallest_p_by_hand():
    assert [smallest_p(seeds) for seeds in (1, 2, 5, 10, 16)] == [1, 1 / 2, 1 / 16, 1 / 512, 1 / 32768]
    # of 65536 drawn patterns and the observed one, the observed one alone, on both sides
    assert [smallest_p(seeds) for seeds in (17, 30)] == [2 / 65537] * 2


@pytest.mark.parametrize(("tests", "seeds"), [(1, 10), (25, 10), (26, 11), (53, 12)])
def test_the_needed_seeds_by_hand(tests, seeds):
    # 25 / 512 = .0488, 26 / 512 = .0508, 53 / 1024 = .0518
    assert needed_seeds(tests) == seeds


@given(st.integers(1, 1638))
def test_the_needed_seeds_are_enough(tests):
    assert tests * smallest_p(needed_seeds(tests)) <= SIGNIFICANT


def test_advice_is_given_only_where_the_seeds_are_too_few():
    assert "use 10 seeds" in about_tests(5, 1)
    assert "0.041 after Holm's correction over 21 pairs of methods" in about_tests(10, 21)
    assert "use" not in about_tests(10, 21)
    assert "use 11 seeds" in about_tests(10, 36)


# Where the time goes: bars of phases where a run has recorded them, and no section where it has not.


def test_means_of_the_phases_are_shown_and_small_phases_count_as_other(folder: Path) -> None:
    server = [{"wait": 3.0, "fold": 1.0, "decode": 0.001}, {"wait": 5.0, "fold": 1.0, "decode": 0.001}]
    lines = [round_line("sfl", number, timings=found) for number, found in enumerate(server, start=1)]
    write_lines(folder / "metrics.jsonl", [*lines, round_line("local", 1)])
    node = {"train": 2.0, "model": 0.5, "unknown": 9.0}
    write_lines(folder / "nodes.jsonl", [node_line("sfl", "a", 0.1) | {"phase": "train", "timings": node}])
    shown = section(page(folder), "timings")
    assert "server, per round; totals: sfl 5 s" in shown
    assert "nodes, per reply; totals: sfl, train 2.5 s" in shown
    for name in ("wait", "fold", "train", "model", "other"):
        assert f">{name}</text>" in shown, name
    assert ">decode</text>" not in shown
    assert "unknown" not in shown


# Sections of the report of one run: refused replies, privacy and learned rates.


def test_nodes_that_may_not_work_are_counted_apart(folder: Path) -> None:
    lines = [round_line("sfl", r, ineligible={"driver-03": "it drives"} if r != 2 else {}) for r in (1, 2, 3)]
    write_lines(folder / "metrics.jsonl", lines)
    text = page(folder)
    assert "Nodes that did not work" in text
    assert "<td>driver-03</td><td>it drives</td><td>1, 3</td>" in text
    assert "refused and not aggregated" not in text


def test_rounds_are_those_of_the_run_as_its_bytes_are(folder: Path) -> None:
    lines = [round_line(m, r) for m in ("local", "sfl", "apfl") for r in (3, 4, 5)]
    write_lines(folder / "metrics.jsonl", lines)
    (folder / STARTED).write_text(json.dumps({"rounds": dict.fromkeys(("local", "sfl", "apfl"), 2), "lineage": []}))
    (folder / "summary.json").unlink()
    text = page(folder)
    assert "3 rounds" in text
    assert "5 rounds" not in text
    assert section(text, "result").count(">3</td>") == 3


def test_refused_replies_are_counted(folder: Path) -> None:
    refused = [{"node": "driver-03", "phase": "train", "reason": "loss is <nan>"}]
    reason = "Traceback (most recent call last):\n  |   File <x>\n  | ValueError: no data"
    crash = {"node": "driver-04", "phase": "train", "reason": reason}
    lines = [round_line("sfl", r, refused=refused if r in (1, 2, 3, 5) else [crash] * (r == 6)) for r in range(1, 7)]
    lines.append(round_line("sfl", 101, refused=[crash | {"node": "driver-05"}]))
    write_lines(folder / "metrics.jsonl", lines)
    text = page(folder)
    assert "6 replies were refused" in text
    assert "<li><p>loss is &lt;nan&gt;</p><small><b>driver-03</b>, sfl, rounds 1–3, 5: 4×</small></li>" in text
    assert "<li><p>ValueError: no data</p><small><b>driver-04</b>, sfl, round 6: 1×</small><details>" in text
    assert "<b>driver-05</b>, sfl, round 101: 1×</small>" in text
    assert "File &lt;x&gt;" in text


def test_metrics_that_were_left_out_are_counted_and_named(folder: Path) -> None:
    left_out = [{"node": "driver-03", "phase": "evaluate", "metric": "test.auc", "value": "nan"}]
    write_lines(folder / "metrics.jsonl", [round_line("sfl", r, left_out=left_out) for r in (1, 2)])
    text = page(folder)
    assert "2 values were left out of the means" in text
    assert "<td>test.auc</td><td>1–2</td>" in text
    assert "refused and not aggregated" not in text


def test_a_guarantee_of_privacy_is_shown_with_its_neighbouring_relation(folder: Path) -> None:
    assert "epsilon" not in page(folder)
    add_to_summary(folder, "sfl", privacy="epsilon = 6.57; neighbouring runs differ in <one node>")
    assert '<p class="note">sfl: epsilon = 6.57; neighbouring runs differ in &lt;one node&gt;.</p>' in page(folder)


def test_learned_rates(folder: Path) -> None:
    rates = {"encoder.weight": 0.001, "decoder.bias": 1.0}
    write_lines(folder / "metrics.jsonl", [round_line("apfl", r, strategy={"rates": rates}) for r in (1, 2)])
    text = page(folder)
    assert "rates" in section_names(text)
    assert "decoder.bias has the highest rate and encoder.weight the lowest" in text


def test_at_most_40_tensors_are_shown(folder: Path) -> None:
    rates = {f"layer-{place:02d}": place / 59 for place in range(60)}
    write_lines(folder / "metrics.jsonl", [round_line("apfl", 1, strategy={"rates": rates})])
    text = page(folder)
    assert "the 40 tensors with the highest rates of 60" in text
    assert ">layer-20<" in text
    assert ">layer-19<" not in text
