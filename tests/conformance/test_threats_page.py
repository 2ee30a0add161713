"""The threat model names tests that exist, and marks what has none."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threats.md").read_text()
TABLES = [part for part in PAGE.split("\n## ") if part.count("\n|") > 2]
ROWS = [line.strip("| \n").split(" | ") for part in TABLES for line in part.splitlines() if line.startswith("| ")]


def test_there_is_a_table_for_each_actor():
    assert [part.partition("\n")[0] for part in TABLES] == [
        "The server", "A node", "The network", "A provider of data", "A writer of a model folder"
    ]  # fmt: skip
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_row_names_a_test_that_exists_or_says_that_it_is_not_covered(row):
    if row[-1] == "test":
        return
    named = re.findall(r"`((?:\w+/)*)(?:test_)?(\w+)(?:\.py)?`", row[-1])
    assert named or "**not covered**" in " ".join(row).lower()
    for folder, name in named:
        assert len(list((ROOT / "tests").rglob(f"{folder}test_{name}.py"))) == 1, name


def test_links_lead_somewhere():
    for page in ("threats.md", "privacy.md", "faults.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / page).read_text()):
            assert target.startswith("https://") or (ROOT / "docs" / target).exists(), (page, target)
