"""Ratios and medians of pairs, by hand."""

from typing import Any

import pytest

from benchmarks.paired import Pair, RunTime, report


def took(*later: float, peak: float = 100.0) -> RunTime:
    rounds = [{"seconds": seconds, "nodes": 2.0, "fetch": 1.0} for seconds in (9.0, *later)]
    return RunTime.read({"rounds": rounds, "peak_megabytes": peak})


def test_the_first_round_is_separate_and_the_others_are_averaged() -> None:
    assert took(4.0, 6.0) == RunTime(first=9.0, later=5.0, nodes=2.0, fetch=1.0, peak=100.0)
    assert took(4.0, 6.0).server == 2.0


def test_one_round_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        took()


def test_ratios_are_computed_within_pairs() -> None:
    """The ratio of the medians would be 5 / 5 = 1, although ours is faster in two of three pairs."""
    pairs = [
        Pair(took(theirs), took(ours, peak=80.0), apart)
        for theirs, ours, apart in [(4.0, 5.0, 1e-7), (5.0, 4.0, 2e-7), (10.0, 8.0, 0.0)]
    ]
    assert [pair.ratio() for pair in pairs] == [1.25, 0.8, 0.8]
    table = report(0.5, pairs).splitlines()
    assert table[0] == "0.5 MB"
    assert cells(table[3]) == ["9", "5", "2", "1", "2", "100"]
    assert cells(table[4]) == ["9", "5", "2", "1", "2", "80"]
    assert table[5].startswith("later rounds, ours / Flower's: 0.800 (0.800 to 1.250 in 3 pairs)")
    assert "at most 2e-07" in table[5]


def cells(line: str) -> list[Any]:
    return line.split()[-6:]
