"""What all tests of the app share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from fedapps.app import server_app


def _undrawn(folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text("not drawn")
    return path


@pytest.fixture(scope="session", autouse=True)
def reports() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Context in which runs draw their reports. Elsewhere they do not: it takes longer than all the rest."""
    drawn = server_app.write_report
    with pytest.MonkeyPatch.context() as outside:
        outside.setattr(server_app, "write_report", _undrawn)

        @contextmanager
        def context() -> Iterator[None]:
            with pytest.MonkeyPatch.context() as inside:
                inside.setattr(server_app, "write_report", drawn)
                yield

        yield context
