"""A short year of a fleet: what happens to it, and that robots keep and use what they should."""

import pytest

from benchmarks.fleet_year import MARGIN, Year, without_reports
from fedapps.runs.champions import Registry


@pytest.mark.slow
def test_a_year_loses_nothing_and_every_robot_uses_the_model_that_it_should(tmp_path):
    year = Year(tmp_path, 6, robots=6)
    with without_reports():
        rows = [*year.rows()]
    assert [row["happened"] for row in rows] == [
        "one joins", "poisoned", "one leaves", "one has an empty disk", "poisoned, held back still", "all went back",
    ]  # fmt: skip
    assert [row["promoted"] for row in rows] == [True, False, True, True, True, True]
    assert [row["fall"] > MARGIN for row in rows] == [False, False, False, False, False, True]
    assert sum(row["off"] for row in rows) >= 4
    assert {(row["lost"], row["misled"]) for row in rows} == {(0, 0)}
    assert rows[-1]["node_bytes"] < 1.1 * rows[-3]["node_bytes"]  # runs are removed
    registry = Registry.read(year.registry)
    assert registry.champion == 5  # the fourth model was the poisoned one
    assert [one.generation for one in registry.generations] == [3, 5]
