"""The script of the report in a browser: a click on the title of a column sorts the rows."""

import re
from html import unescape
from pathlib import Path

import pytest
from browser_pages import dom_of, in_a_browser
from markupsafe import Markup

from fedapps.base.report.numbers import format_bytes, format_duration, format_number
from fedapps.base.report.sections import part, render
from fedapps.base.report.tables import Table, text_columns
from fedapps.report.sections import FOLDER

SCRIPT = render(FOLDER, "script.js.md")

MINUS = "\N{MINUS SIGN}"
ROWS = [
    ("local", Markup("\N{BLACK STAR} .90 <small>\N{PLUS-MINUS SIGN} .01</small>"), "2,000"),
    ("fedavg", "1.5e-3", "300"), ("node-10", "", "45"), ("node-9", f"{MINUS}0.25", "1,000"),
]  # fmt: skip


@pytest.fixture
def page(tmp_path: Path):
    """A function that clicks on columns; the first cells of the rows after it, and the state of the titles."""

    def click(*columns: int, rows=ROWS) -> tuple[list[str], list[str]]:
        markup = part("table", Table(text_columns(["method", "accuracy", "bytes"]), rows), "a table")
        clicks = "".join(f'document.querySelectorAll("th button")[{column}].click();' for column in columns)
        dom = dom_of(f'<!DOCTYPE html><meta charset="utf-8">{markup}<script>{SCRIPT}{clicks}</script>', tmp_path)
        names = re.findall(r"<tr><td>(.*?)</td>", dom)
        return [unescape(name) for name in names], re.findall(r'aria-sort="(\w+)"', dom)

    return click


@in_a_browser
@pytest.mark.parametrize(
    ("columns", "names", "state"),
    [
        ((), ["local", "fedavg", "node-10", "node-9"], []),
        ((0,), ["fedavg", "local", "node-9", "node-10"], ["ascending"]),
        ((1,), ["node-9", "fedavg", "local", "node-10"], ["ascending"]),  # empty cells are last
        ((1, 1), ["local", "fedavg", "node-9", "node-10"], ["descending"]),
        ((1, 2), ["node-10", "fedavg", "node-9", "local"], ["ascending"]),
    ],
)
def test_a_click_sorts_the_rows(page, columns, names, state):
    assert page(*columns) == (names, state)


@in_a_browser
@pytest.mark.parametrize("format_value", [format_bytes, format_duration, format_number])
def test_formatted_numbers_are_sorted_by_value(page, format_value):
    values = {"e": 5e9, "c": 18_000, "a": 2e-6, "d": 14.1e6, "b": 59.0}
    rows = [(name, format_value(value), "0") for name, value in values.items()]
    assert page(1, rows=rows)[0] == ["a", "b", "c", "d", "e"]


@in_a_browser
def test_negative_and_infinite_numbers_have_their_places(page):
    rows = [(name, name, "0") for name in ("\N{INFINITY}", "0.1", f"{MINUS}1.000e{MINUS}05", f"{MINUS}2", "3")]
    assert page(1, rows=rows)[0] == [f"{MINUS}2", f"{MINUS}1.000e{MINUS}05", "0.1", "3", "\N{INFINITY}"]
