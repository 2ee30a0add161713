"""A package that cannot be used stops the runs that name it, and no others."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedapps.config.keys import all_keys, described
from fedapps.config.parsing import ConfigError, parse
from fedapps.registry.methods import method_lines, queries
from fedapps.registry.tasks import task_lines
from fedapps.report.page import sections


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Path]:
    """Entry points of a package whose module raises, and of one that names something else."""
    metadata = tmp_path / "damaged-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[fedapps.methods]\nbroken = damaged_module:Broken\nmisnamed = pathlib:Path\n"
        "[fedapps.tasks]\nbroken-task = damaged_module:Broken\nhalf = half_module:Half\n"
        "[fedapps.sections]\nbroken-section = pathlib:Path\n"
    )
    (tmp_path / "damaged_module.py").write_text("raise RuntimeError('out of order')\n")
    (tmp_path / "half_module.py").write_text(
        "from fedapps.tasks.base import Task\nclass Half(Task):\n    name = 'half'\n    build_model = None\n"
    )
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.path.remove(str(tmp_path))


@pytest.mark.usefixtures("damaged")
def test_a_run_that_names_it_says_whose_fault_it_is() -> None:
    with pytest.raises(ConfigError, match=r"entry point 'broken' = 'damaged_module:Broken'.*out of order.*correct the"):
        parse({"methods": "broken"})
    with pytest.raises(ConfigError, match=r"entry point 'misnamed'.*must name a subclass of fedapps.methods.base"):
        parse({"methods": "misnamed"})
    with pytest.raises(ConfigError, match=r"entry point 'broken' = "):
        parse({"broken.key": 1})
    with pytest.raises(ConfigError, match=r"entry point 'broken-task' = 'damaged_module:Broken'.*out of order"):
        parse({"task": "broken-task"})
    with pytest.raises(ConfigError, match=r"entry point 'half'.*the class lacks evaluate, load_all, load_node, loss"):
        parse({"task": "half"})
    with pytest.raises(ValueError, match=re.escape("entry point 'broken-section' = 'pathlib:Path'")):
        sections()


@pytest.mark.usefixtures("damaged")
def test_other_runs_do_not_notice_it() -> None:
    assert parse({}).methods
    assert "adaptive" in queries()
    assert "fedprox.mu" in all_keys()
    assert "method fedprox" in described()


@pytest.mark.usefixtures("damaged")
def test_the_list_of_names_says_what_is_wrong() -> None:
    assert "cannot be used: entry point 'broken'" in method_lines()["broken"]
    assert "cannot be used: entry point 'broken-task'" in task_lines()["broken-task"]
