"""The ledger of releases: never fewer than what left, whatever happened to the file."""

import json
from collections import Counter

import pytest
from full_disk import full_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedapps.base.atomic import UnwritableError
from fedapps.runs.lines import ReleaseLedger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "releases.jsonl"


def test_every_release_is_a_line_also_after_a_restart(path):
    ReleaseLedger(path, "sfl").add(1, "5f0c")
    ReleaseLedger(path, "other").add(1, "5f0c")
    again = ReleaseLedger(path, "sfl")
    again.add(1, "77e0")
    again.add(2, "77e0")
    assert again.by_round() == {1: 2, 2: 1}
    assert ReleaseLedger(path, "other").by_round() == {1: 1}
    assert ReleaseLedger(path, "third").by_round() == {}
    assert json.loads(path.read_text().splitlines()[-1]) == {
        "method": "sfl", "round": 2, "attempt": "77e0", "number": 3
    }  # fmt: skip


@pytest.mark.parametrize("torn", ['{"method": "sf', '{"method": "sfl", "round": 2, "attempt": "77", "number": 2}'])
def test_a_line_that_was_being_written_counts(path, torn):
    ReleaseLedger(path, "sfl").add(1, "5f0c")
    with path.open("a") as file:
        file.write(torn)
    ledger = ReleaseLedger(path, "sfl")
    assert sum(ledger.by_round().values()) == 2
    ledger.add(2, "77e0")
    assert sum(ReleaseLedger(path, "sfl").by_round().values()) == 3


@pytest.mark.parametrize("damage", [b"\0" * 50, b"", b"[1]\n", b'{"method": "sfl", "round": "1", "number": 1}\n'])
def test_lines_that_are_damaged_or_missing_count_for_the_round_with_the_most(path, damage):
    ledger = ReleaseLedger(path, "sfl")
    for server_round in (1, 2, 3, 3):
        ledger.add(server_round, "5f0c")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damage + b"".join(lines[2:]))
    assert ReleaseLedger(path, "sfl").by_round() == {3: 4}


NASTY = [b"", b"null", b"[" * 100_000, b"1" * 5000, b'{"method": "sfl", "round": NaN, "number": 1}', b"\xff", b"\0"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    releases=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    damage=st.dictionaries(st.integers(0, 5), st.one_of(st.sampled_from(NASTY), st.binary(max_size=30)), max_size=5),
)
def test_whatever_happens_to_lines_but_the_last_no_release_is_lost(tmp_path, releases, damage):
    path = tmp_path / "fuzzed.jsonl"
    path.unlink(missing_ok=True)
    ledger = ReleaseLedger(path, "sfl")
    for server_round in releases:
        ledger.add(server_round, "5f0c")
    lines = path.read_bytes().split(b"\n")
    damaged = [damage.get(place, line) for place, line in enumerate(lines[:-2])]
    path.write_bytes(b"\n".join([*damaged, *lines[-2:]]))
    found = ReleaseLedger(path, "sfl")
    assert sum(found.by_round().values()) >= len(releases)
    assert damage or found.by_round() == dict(sorted(Counter(releases).items()))
    found.add(5, "77e0")
    assert sum(ReleaseLedger(path, "sfl").by_round().values()) > len(releases)


def test_a_full_disk_stops_the_run_before_anything_leaves(path):
    ledger = ReleaseLedger(path, "sfl")
    with full_disk(), pytest.raises(UnwritableError, match=r"releases\.jsonl cannot be written"):
        ledger.add(1, "5f0c" * 10_000)


def test_a_ledger_of_fewer_releases_than_rounds_is_refused(path):
    ledger = ReleaseLedger(path, "sfl")
    ledger.add(1, "5f0c")
    ledger.check(1)
    with pytest.raises(ValueError, match="has 1 releases of sfl, which trained 2 rounds: restore the file"):
        ledger.check(2)
