import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from extension_packages import install_examples

from fedapps.registry import methods, tasks


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the packages of ``examples/``."""
    return install_examples(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def plugins(installed: Path) -> Iterator[Path]:
    """This process sees the packages of ``examples/``."""
    sys.path.insert(0, str(installed))
    importlib.invalidate_caches()
    yield installed
    sys.path.remove(str(installed))
    for cached in (methods.canonical, tasks.task_class):
        cached.cache_clear()
