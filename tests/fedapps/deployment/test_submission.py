"""The copy of an app that is submitted."""

from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fedapps.deployment.submission import copy_app

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
