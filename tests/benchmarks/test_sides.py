"""Peak memory of work in a process of its own."""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from benchmarks.sides import peak_megabytes, resident_megabytes

pytestmark = [pytest.mark.subprocesses, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def filled(before: int, during: int) -> Callable[[], object]:
    """Work that fills ``during`` megabytes and frees them, after ``before`` megabytes that stay."""
    kept = np.ones(before * 1_000_000, np.uint8)
    return lambda: (kept, np.ones(during * 1_000_000, np.uint8))[0].size


def broken() -> Callable[[], object]:
    raise ValueError("no data")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "during"), [(0, 100), (100, 50), (50, 0)])
def test_only_what_the_work_itself_takes_counts(before: int, during: int) -> None:
    assert peak_megabytes(partial(filled, before, during)) == pytest.approx(during, abs=5)


def test_a_process_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="its error is above"):
        peak_megabytes(broken)
    assert "no data" in capfd.readouterr().err


def test_a_process_with_numpy_has_a_resident_set() -> None:
    resident = resident_megabytes()
    assert resident is not None
    assert resident > 10
