"""The copy of an app that is submitted."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from fedapps.sim import flower_internals
from flwr.cli.build import build_fab_from_disk

from fedapps.deployment.submission import copy_app, submission

PYPROJECT = """
[project]
name = "small"
version = "1.0.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "small"
{included}

[tool.flwr.app.components]
serverapp = "small.server:app"
clientapp = "small.client:app"
"""
FILES = [
    "LICENSE", "README.md", ".hidden/kept.py", ".venv/lib/module.py", "lib/a.py", "runs/one/summary.json",
    "small/__init__.py", "small/__pycache__/server.py", "small/build/inner.py", "small/client.py", "small/lib/inner.py",
    "small/notes.txt", "small/secret.py", "small/server.py", "small/table.json", "small/test_server.py",
    "small/weights.bin", "venv-2/lib/module.py",
]  # fmt: skip
IGNORED = "runs/\nvenv-2/\nsecret.py\n# comment\n"


@pytest.mark.parametrize("included", ["", 'fab-include = ["/small/**/*.py"]'], ids=["all", "fab-include"])
def test_the_copy_makes_the_same_bundle_as_the_app(tmp_path: Path, included: str) -> None:
    app, copy = tmp_path / "app", tmp_path / "copy"
    for name in FILES:
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(f'"{name}"\n')
    (app / "pyproject.toml").write_text(PYPROJECT.format(included=included))
    (app / ".gitignore").write_text(IGNORED)
    (app / "linked.py").symlink_to(app / "small" / "server.py")
    copy_app(app, copy)
    assert build_fab_from_disk(copy) == build_fab_from_disk(app)
    left = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "LICENSE", "small/server.py"} <= left
    assert not [name for name in left if "venv" in name or name.startswith("runs") or name == "linked.py"]


def test_the_modules_of_the_app_that_was_used_last_are_imported_and_those_of_others_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert flower_internals.last_app() is None
    for number, name in enumerate(("a.small.1.old", "a.small.2.new")):
        (tmp_path / "apps" / name).mkdir(parents=True)
        (tmp_path / "apps" / name / "small_app.py").write_text(f"NUMBER = {number}\n")
        record = tmp_path / "apps" / f".{name}.imported"
        record.write_text('["small_app"]')
        os.utime(record, (number, number))
    last = flower_internals.last_app()
    assert last
    folder, import_app = last
    assert folder.name == "a.small.2.new"
    import_app()
    assert sys.modules["small_app"].NUMBER == 1
    flower_internals._forget_other_apps(folder)
    assert "small_app" in sys.modules
    flower_internals._forget_other_apps(folder.with_name("a.small.1.old"))
    assert "small_app" not in sys.modules
    assert str(folder) not in sys.path


def test_each_process_of_an_app_adds_what_it_has_imported_to_the_modules_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "app")  # type: ignore[no-untyped-call]
    (tmp_path / "app").mkdir()
    for name in ("part_of_app", "later_part_of_app"):
        (tmp_path / "app" / f"{name}.py").touch()
        before = set(sys.modules)
        import_module(name)
        flower_internals._write_imported(tmp_path / "app", before)
    assert json.loads((tmp_path / ".app.imported").read_bytes()) == ["part_of_app", "later_part_of_app"]
    for name in ("part_of_app", "later_part_of_app"):
        del sys.modules[name]


def test_without_the_patterns_of_flower_the_app_itself_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("flwr.common.constant.FAB_INCLUDE_PATTERNS")
    command = submission(tmp_path / "app", tmp_path, {"rounds": 1})
    assert command[1:3] == ["run", str(tmp_path / "app")]
    line = "lacks flwr.common.constant:FAB_INCLUDE_PATTERNS: flwr run gets the app's own folder, and takes longer"
    assert line in capsys.readouterr().out
