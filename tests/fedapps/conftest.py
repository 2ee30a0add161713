"""What all tests of the app share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from fedapps.app import server_app


def _undrawn(folder: Path) -> Path:
    path = folder / "report.html"
    path.touch()
    return path


@pytest.fixture(scope="session", autouse=True)
def reports() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """The reports of runs are empty, because they take longer than all the rest, but in the context that this makes."""
    drawn = server_app.write_report
    with pytest.MonkeyPatch.context() as outside:
        outside.setattr(server_app, "write_report", _undrawn)

        @contextmanager
        def context() -> Iterator[None]:
            with pytest.MonkeyPatch.context() as inside:
                inside.setattr(server_app, "write_report", drawn)
                yield

        yield context
