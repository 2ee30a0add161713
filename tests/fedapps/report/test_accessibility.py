"""The report in a browser against the rules of axe-core: contrast, names of figures and tables, headings."""

from pathlib import Path

import pytest
from browser_pages import in_a_browser, violations
from report_pages import page, write_finished_run, write_registry

from fedapps.report import write_report


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_core_finds_nothing_to_object_to(tmp_path: Path, scheme: str) -> None:
    write_registry(tmp_path / "champions")
    of_registry = write_report(tmp_path / "champions").read_text()
    sections = of_registry.partition("</header>")[2].partition("<footer>")[0].replace("<details>", "<details open>")
    report = page(write_finished_run(tmp_path)).replace("<footer>", f"{sections}<footer>")
    assert violations(report, tmp_path, scheme) == []
