"""No output fails for its characters, whatever the console's encoding, and no file depends on the locale's."""

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.base.errors import accept_all_text, text_environment
from fedapps.base.processes import flower_environment
from fedapps.cli.commands import main

ROOT = Path(__file__).parents[3]
ENCODINGS = ["ascii", "cp437", "cp1252", "latin-1", "utf-8"]


@pytest.fixture
def console(monkeypatch):
    """Replace standard output and error by streams of an encoding; returns what was written to standard output."""
    monkeypatch.setenv("PYTHONIOENCODING", "")

    def replaced(encoding):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding, write_through=True))
        return written

    return replaced


def test_an_ascii_console_gets_what_reads_alike(console):
    written = console("ascii")
    accept_all_text()
    print("τ = 0.5 ± 0.1 → 中 caf\udce9")
    assert written.getvalue().decode("ascii") == "tau = 0.5 +- 0.1 -> \\u4e2d caf\\udce9\n"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_character_that_the_console_has_is_shown_as_it_is(console, encoding):
    written = console(encoding)
    accept_all_text()
    print("±")
    assert written.getvalue() == ("+-" if encoding == "ascii" else "±").encode(encoding) + b"\n"


@given(st.sampled_from(ENCODINGS), st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_printed(encoding, text):
    stream = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    before, sys.stdout = sys.stdout, stream
    try:
        accept_all_text()
        print(text)
    finally:
        sys.stdout = before
    assert stream.buffer.getvalue().endswith(b"\n")


@pytest.mark.subprocesses
@pytest.mark.parametrize("given", ["ascii", "ascii:strict", ""])
def test_processes_that_are_started_keep_the_encoding_and_cannot_fail(given):
    environment = {**os.environ, **text_environment({"PYTHONIOENCODING": given})}
    assert environment["PYTHONIOENCODING"] == f"{given.partition(':')[0]}:backslashreplace"
    said = subprocess.run(
        [sys.executable, "-c", "print('\\u4e2d')"], env={**environment, "LC_ALL": "C"}, capture_output=True, check=True
    )
    assert said.stdout.strip() in (b"\\u4e2d", "中".encode())
    assert flower_environment(Path())["PYTHONIOENCODING"].endswith(":backslashreplace")


def test_a_command_ends_well_on_an_ascii_console(console, monkeypatch):
    written = console("ascii")
    monkeypatch.setattr("fedapps.cli.listing.list_names", lambda arguments: print("0.5 ± 0.1") or 0)
    assert main(["list"]) == 0
    assert written.getvalue() == b"0.5 +- 0.1\n"


def opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes a text file without saying in which encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    return (name == "read_text" and not call.args) or (name == "write_text" and len(call.args) < 2)


def test_every_text_file_of_the_package_has_an_encoding():
    folders = ("fedapps", "strategies", "clients", "tasks", "sim")
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "_text(" in path.read_text("utf-8")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and opens_text(node)
    ]
    assert not calls
