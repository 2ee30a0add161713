"""The ledger of a node: what it counts, what it refuses, and what damage does to it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fedapps.clients.rules import NodeRules, RulesError
from fedapps.strategies import epsilon

from fedapps.app.node_ledger import LEDGER, NodeLedger, Spent
from fedapps.base.atomic import UnwritableError


def rules(**keys):
    return NodeRules(dp="local", **keys)


def test_updates_with_different_noise_are_one_budget():
    """μ² = 2²/1² + 2²/2² = 5: as one update with noise 2/√5."""
    assert Spent().epsilon(1e-5) == 0
    assert Spent().plus(1.0).plus(2.0).epsilon(1e-5) == pytest.approx(epsilon(2 / 5**0.5, 1, 1e-5, sensitivity=2.0))
    assert Spent().plus(3.0, 7).epsilon(1e-5) == pytest.approx(epsilon(3.0, 7, 1e-5, sensitivity=2.0))
    assert Spent().plus(0.0).epsilon(1e-5) == float("inf")


def test_a_line_is_written_for_each_update_until_the_budget_is_spent(tmp_path):
    ledger = NodeLedger(tmp_path / "state", rules(max_releases=2))
    ledger.add(1.5, run="a", method="m", round=1)
    NodeLedger(tmp_path / "state", rules()).add(2.5, run="b", method="m", round=1)
    rows = [json.loads(line) for line in (tmp_path / "state" / LEDGER).read_text().splitlines()]
    assert [(row["run"], row["noise"], row["number"]) for row in rows] == [("a", 1.5, 1), ("b", 2.5, 2)]
    ledger.check(1.0, 0)
    with pytest.raises(RulesError, match="max-releases = 2: 2 updates have left this node"):
        ledger.add(1.5)
    assert ledger.spent().count == 2


def test_damaged_and_missing_lines_count_with_the_least_noise_that_is_allowed(tmp_path):
    ledger = NodeLedger(tmp_path, rules(dp_noise=2.0))
    (tmp_path / LEDGER).write_bytes(b'{"noise": 4.0, "number": 1}\n{"noise": 4.0, "nu')
    assert ledger.spent() == Spent().plus(4.0).plus(2.0)
    ledger.add(4.0)
    assert ledger.spent() == Spent().plus(4.0, 1).plus(4.0).plus(2.0)
    (tmp_path / LEDGER).write_bytes(b'{"noise": 4.0, "number": 1000000000000}\n\n[1]\n"x"\n{"noise": "1"}\n')
    assert ledger.spent().count == 10**12 + 3
    lines = [json.dumps({"noise": 4.0, "number": number}).encode() for number in range(1, 7)]
    (tmp_path / LEDGER).write_bytes(b"\n".join([*lines[:2], b"\0" * 9, *lines[3:5], b"garbage"]) + b"\n")
    assert ledger.spent().count == 6, "a missing one and a damaged one"
    for noise, number in (("Infinity", 1), (10**400, 1), (4.0, 2**63)):
        (tmp_path / LEDGER).write_text(f'{{"noise": {noise}, "number": {number}}}\n')
        assert ledger.spent() == Spent().plus(2.0)
    (tmp_path / LEDGER).write_bytes(b'{"noise": 1e308, "number": 1}\n')
    assert ledger.spent() == Spent(1, 0.0)
    assert ledger.spent().epsilon(1e-5) == 0.0
    (tmp_path / LEDGER).write_bytes(b'{"noise": NaN, "number": 1}\n')
    assert ledger.spent().epsilon(1e-5) == float("inf")


def test_a_ledger_that_cannot_be_read_is_named():
    with pytest.raises(UnwritableError, match=f"^x{{256}}/{LEDGER} cannot be written"):
        NodeLedger(Path("x" * 256), NodeRules()).spent()


def test_workers_of_one_node_take_turns(tmp_path):
    def add_many(_):
        for _ in range(10):
            NodeLedger(tmp_path, rules()).add(1.0)

    with ThreadPoolExecutor(3) as workers:
        list(workers.map(add_many, range(3)))
    numbers = [json.loads(line)["number"] for line in (tmp_path / LEDGER).read_text().splitlines()]
    assert numbers == list(range(1, 31))
