"""The report in a browser against the rules of axe-core: contrast, names of figures and tables, headings."""

from pathlib import Path

import pytest
from browser_pages import in_a_browser, violations
from report_pages import page, write_finished_run


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_core_finds_nothing_to_object_to(tmp_path: Path, scheme: str) -> None:
    assert violations(page(write_finished_run(tmp_path)), tmp_path, scheme) == []
