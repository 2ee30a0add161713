import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from fedapps.sim import flower_internals
from hypothesis import is_hypothesis_test, settings

#: How many times as many examples of each property `make fuzz` draws.
MORE = int(os.environ.get("MORE", "50"))

# The gate draws the same examples in every run, so that it fails for what was changed and not by chance. `make fuzz`
# draws new ones. A machine that is busy may take as long as it likes over one.
settings.register_profile("gate", max_examples=50, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("fuzz", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("gate")


def pytest_configure(config: pytest.Config) -> None:
    """Give Ray, torch and other libraries a temporary folder that is removed at the end; pytest keeps its own."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="tests-")  # a short name, because Ray's sockets are in it
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = folder

    def remove() -> None:
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(remove)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--hypothesis-profile fuzz``, many more examples than a test's own settings say."""
    if settings.get_current_profile_name() != "fuzz":
        return
    tests = {item.obj for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}
    for test in tests:
        test = getattr(test, "__func__", test)
        own = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(own, max_examples=MORE * own.max_examples)


class _Marks:
    """The test that is running, if it has no mark that says that it starts processes."""

    unmarked: str | None = None


def _refuse_unmarked_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if _Marks.unmarked and event == "subprocess.Popen" and arguments[0] == sys.executable:
        raise RuntimeError(f"{_Marks.unmarked} starts Python: mark it with `subprocesses`")


sys.addaudithook(_refuse_unmarked_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    marked = any(item.get_closest_marker(name) for name in ("processes", "subprocesses"))
    _Marks.unmarked = None if marked else item.nodeid
    try:
        return (yield)
    finally:
        _Marks.unmarked = None


@pytest.fixture(scope="module")
def flower_identity():
    """Messages can be made outside a Flower process."""
    with flower_internals.flower_identity():
        yield


@pytest.fixture
def warnings():
    """What Flower's log warns of."""
    records: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def without_fsync():
    """Nobody waits for the disk: no file of a test has to survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
