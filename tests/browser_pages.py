"""Pages in a headless browser: the document that a page has become after its scripts have run."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from axe_core_python.base import AXE_SCRIPT

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def in_a_browser(test):
    """Mark a test that needs a browser."""
    reason = "no browser: install chromium to test the scripts of pages"
    return pytest.mark.subprocesses(pytest.mark.skipif(BROWSER is None, reason=reason)(test))


# Runs all rules of axe-core, and adds the violated ones to the page as JSON.
_AXE = """
axe.run(document, {resultTypes: ["violations"]}).then(found => {
    const told = document.createElement("pre");
    told.id = "axe";
    told.textContent = JSON.stringify(found.violations.map(rule => [rule.id, rule.nodes.map(node => node.html)]));
    document.body.append(told);
});
"""


def dom_of(page: str, folder: Path, *options: str) -> str:
    """The document of an HTML page, after its scripts; ``folder`` is for the page and the browser's profile."""
    file = folder / "page.html"
    file.write_text(page)
    always = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command = [str(BROWSER), *always, *options, "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def violations(page: str, folder: Path, scheme: str) -> list[list[object]]:
    """The rules of axe-core that a page violates in the ``scheme`` "light" or "dark", each with its elements."""
    audited = page.replace("</body>", f"<script>{AXE_SCRIPT}</script><script>{_AXE}</script></body>")
    colours = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    dom = dom_of(audited, folder, colours, "--virtual-time-budget=20000")
    told = re.search(r'<pre id="axe">(.*?)</pre>', dom, re.DOTALL)
    assert told, "axe-core has not ended"
    found: list[list[object]] = json.loads(unescape(told[1]))
    return found
