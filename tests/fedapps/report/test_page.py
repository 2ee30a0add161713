"""The report page: the headline, self-contained markup, unfinished runs and missing values."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_pages import headline, node_line, page, round_line, section, section_names, write_finished_run, write_lines

from fedapps.report import read_run


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
    assert section_names(text) == ["result", "curves", "traffic"]
    assert "★ 0" not in text
    assert "has not finished" in text


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
    order = ["test ELBO loss", "test error 1.5s", "More curves", "test KL", "validation ELBO", "training: loss"]
    places = [curves.index(f">{title}") for title in [*order, "test windows", "training: steps"]]
    assert places == sorted(places)
    assert "test constant" not in curves
