"""Tests of paired ratios, of the order in which the two sides run, and of the peak memory of a process."""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from benchmarks.sides import alternate, compare, peak_megabytes, resident_megabytes

pytestmark = [pytest.mark.subprocesses, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def test_ratios_are_those_of_pairs_not_of_medians() -> None:
    """Pairs 1/2, 4/2 and 6/10: the ratios are .5, 2 and .6, and 4/2 that of the medians."""
    (row,) = compare(
        "run [s]", {"fedapps": [1, 4, 6], "peer": [2, 2, 10]}, "fedapps", "", {"fedapps": 1.0, "peer": 2.0}
    )
    assert (row.side, row.ours, row.reference) == ("peer", 4, 2)
    assert (row.ratio, row.least, row.most) == pytest.approx((0.6, 0.5, 2))


def test_the_order_of_the_sides_alternates() -> None:
    order: list[str] = []
    sides = {name: partial(order.append, name) for name in ("a", "b")}
    assert {name: len(values) for name, values in alternate(sides, 3).items()} == {"a": 3, "b": 3}
    assert "".join(order) == "abbaab"


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
