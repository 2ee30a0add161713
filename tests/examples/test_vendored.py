"""The script that copies ``strategies/`` into an app."""

import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "vendored"


@pytest.mark.subprocesses
def test_a_newer_copy_replaces_the_older_one(tmp_path):
    shutil.copy(EXAMPLE / "vendor.sh", tmp_path)
    (tmp_path / "vendored_app").mkdir()
    source = tmp_path / "new-release"
    source.mkdir()
    for older, newer in (("a.py", "b.py"), ("b.py", "c.py")):
        (source / older).unlink(missing_ok=True)
        (source / newer).touch()
        subprocess.run(["sh", tmp_path / "vendor.sh", source], check=True)
        assert [path.name for path in (tmp_path / "vendored_app" / "strategies").iterdir()] == [newer]
