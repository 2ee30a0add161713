"""Pages in a headless browser: the document that a page has become after its scripts have run."""

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def in_a_browser(test):
    """Mark a test that needs a browser."""
    reason = "no browser: install chromium to test the scripts of pages"
    return pytest.mark.subprocesses(pytest.mark.skipif(BROWSER is None, reason=reason)(test))


def dom_of(page: str, folder: Path) -> str:
    """The document of an HTML page, after its scripts; ``folder`` is for the page and the browser's profile."""
    file = folder / "page.html"
    file.write_text(page)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command = [str(BROWSER), *options, "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
