"""Private state between rounds: which version comes back, and what damage does."""

import logging
import os
from pathlib import Path
from stat import S_ISDIR

import numpy as np
import pytest
from fedapps.clients.state import Attempts, ContextState, DiskState, StoredState
from flwr.app import RecordDict
from full_disk import full_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import same_bits

from fedapps.base.atomic import UnwritableError


@pytest.fixture(params=["disk", "context"])
def state(request, tmp_path):
    return DiskState(tmp_path / "node") if request.param == "disk" else ContextState(RecordDict())


def of(version):
    return {"w": np.array([version], np.float32)}


def version_in(arrays):
    return None if arrays is None else int(arrays["w"][0])


def test_the_newest_version_before_a_round_comes_back(state):
    assert state.load(before=1) is None
    for server_round in (1, 2, 5):
        state.save(server_round, of(server_round), durable_round=0)
    loaded = {before: version_in(state.load(before)) for before in range(1, 8)}
    assert loaded == {1: None, 2: 1, 3: 2, 4: 2, 5: 2, 6: 5, 7: 5}


def test_versions_that_no_server_can_ask_for_are_forgotten(state):
    for server_round in (1, 2, 3, 4):
        state.save(server_round, of(server_round), durable_round=0)
    state.save(5, of(5), durable_round=3)  # the server may repeat round 4, which starts from version 3
    assert version_in(state.load(4)) == 3
    assert version_in(state.load(3)) is None
    assert version_in(state.load(5)) == 4


def test_the_version_of_the_best_round_is_kept(state):
    for server_round in (1, 3, 4, 5, 6):
        best = 0 if server_round == 1 else 3
        state.save(server_round, of(server_round), durable_round=server_round - 1, best_round=best)
    assert [version_in(state.load(before)) for before in (4, 5, 7)] == [3, 3, 6]
    state.save(7, of(7), durable_round=6, best_round=5)
    assert [version_in(state.load(before)) for before in (4, 6, 8)] == [None, 5, 7]


def test_the_state_of_a_run_is_only_read(tmp_path):
    first, second = Attempts.read("0:a1"), Attempts.read("0:a1 2:b2")
    for server_round in (1, 2, 3):
        DiskState(tmp_path).save(server_round, of(server_round), 0, first)
    DiskState(tmp_path).save(4, of(4), 0, second)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    stored = StoredState(tmp_path)
    assert [version_in(stored.load(9, attempts)) for attempts in (first, second)] == [3, 4]
    assert [stored.newest(round_, second) for round_ in (1, 4, 5)] == [None, 2, 4]
    with pytest.raises(ValueError, match="only read"):
        stored.save(5, of(5), 0)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "round-000004.safetensors").write_bytes(b"half")
    assert version_in(stored.load(4, second)) == 2
    with pytest.raises(ValueError, match=r"round-000004.safetensors is damaged"):
        stored.load(5, second)


@pytest.mark.parametrize("make", [lambda path: DiskState(path), lambda path: ContextState(RecordDict())])
@settings(max_examples=40, deadline=None)
@given(saves=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=8))
def test_whatever_the_order_of_rounds_all_that_may_be_asked_for_is_there(make, tmp_path_factory, saves):
    """The server's durable round trails the round by at least one; it may go back to any round after it."""
    state = make(tmp_path_factory.mktemp("node") / "state")
    written, durable = {}, 0
    for index, (server_round, lag) in enumerate(saves):
        server_round = max(server_round, durable + 1)  # no server goes back further than it can
        durable = max(durable, server_round - 1 - lag)
        written[server_round] = index
        state.save(server_round, of(index), durable)
    for before in range(durable + 1, 12):
        older = [server_round for server_round in written if server_round < before]
        assert version_in(state.load(before)) == (written[max(older)] if older else None)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5, np.float32),
        np.array(7),
        np.array([True, False]),
        np.zeros((0, 3), np.float64),
        np.array([1, 2], np.uint8),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([-0.0, np.nan, np.inf], np.float32),
    ],
    ids=["0-d", "0-d integer", "bool", "empty", "uint8", "not contiguous", "not finite"],
)
def test_arrays_come_back_bit_for_bit(state, array):
    state.save(1, {"x": array, "y.z": np.ones(2)}, 0)
    state.save_extra("extra", {"x": array})
    assert same_bits(state.load(2), {"x": np.asarray(array, order="C"), "y.z": np.ones(2)})
    assert same_bits(state.load_extra("extra"), {"x": np.asarray(array, order="C")})


def test_a_node_without_private_arrays_may_keep_none(state):
    state.save(1, {}, 0)
    assert state.load(2) == {}


def test_extras_are_kept_apart_from_versions(state):
    assert state.load_extra("traces") is None
    state.save_extra("traces", of(7))
    state.save_extra("traces", of(8))
    assert version_in(state.load_extra("traces")) == 8
    assert state.load(before=10) is None


def test_what_was_loaded_can_be_changed_without_changing_the_state(state):
    state.save(1, of(1), 0)
    state.load(2)["w"][0] = 99
    assert version_in(state.load(2)) == 1


def test_the_disk_outlives_the_object(tmp_path):
    DiskState(tmp_path / "node").save(1, of(1), 0)
    assert version_in(DiskState(tmp_path / "node").load(2)) == 1


@pytest.mark.parametrize("damage", [b"", b"no safetensors", None], ids=["empty", "rubbish", "cut off"])
def test_a_damaged_file_is_put_aside_and_the_older_version_used(tmp_path, caplog, damage):
    state = DiskState(tmp_path)
    state.save(1, of(1), 0)
    state.save(2, of(2), 0)
    path = tmp_path / "round-000002.safetensors"
    path.write_bytes(path.read_bytes()[:-2] if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        assert version_in(state.load(3)) == 1
    assert "round-000002.safetensors is damaged" in caplog.text
    assert not path.exists()
    assert (tmp_path / "round-000002.safetensors.corrupt").exists()
    caplog.clear()
    assert version_in(state.load(3)) == 1  # and nobody is warned twice
    assert not caplog.records


def test_a_full_disk_leaves_the_old_version(tmp_path):
    state = DiskState(tmp_path)
    state.save(1, of(1), 0)
    state.save_extra("traces", of(5))

    big = {"w": np.zeros(5000)}
    with full_disk():
        for attempt in (lambda: state.save(1, big, 0), lambda: state.save_extra("traces", big)):
            with pytest.raises(UnwritableError, match="make room on the disk"):
                attempt()
    assert version_in(state.load(2)) == 1
    assert version_in(state.load_extra("traces")) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000001.safetensors", "traces.safetensors"]


def test_a_write_that_fails_forgets_nothing(tmp_path):
    state = DiskState(tmp_path)
    for server_round in (1, 2):
        state.save(server_round, of(server_round), 0)
    with full_disk(), pytest.raises(UnwritableError):
        state.save(3, {"w": np.zeros(5000)}, durable_round=2)
    assert version_in(state.load(2)) == 1


@pytest.mark.parametrize("durable", [True, False])
def test_versions_that_must_survive_a_power_failure_are_on_the_disk_before_older_ones_are_deleted(
    tmp_path, monkeypatch, durable
):
    events, unlink = [], Path.unlink

    def noting(path, missing_ok=False):
        events.extend(["delete"] if path.suffix == ".safetensors" else [])
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr("os.fsync", lambda file: events.append("folder" if S_ISDIR(os.fstat(file).st_mode) else "file"))
    monkeypatch.setattr(Path, "unlink", noting)
    state = DiskState(tmp_path, durable=durable)
    state.save_extra("traces", of(5))
    state.save(1, of(1), 0)
    state.save(2, of(2), durable_round=1)
    state.save(3, of(3), durable_round=2)
    assert events == [*(["file", "folder"] * 4 if durable else []), "delete"]


def test_a_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(tmp_path):
    state = DiskState(tmp_path)
    (tmp_path / "round-000001.safetensors").mkdir()
    with pytest.raises(OSError, match="No such device"):
        state.load(2)
    assert (tmp_path / "round-000001.safetensors").exists()


def test_siblings_are_the_nodes_of_the_same_run(tmp_path):
    for key in ("b", "a"):
        DiskState(tmp_path / "run" / key).save_extra("collected-1", of(ord(key)))
    DiskState(tmp_path / "another run" / "c").save_extra("collected-1", of(0))
    siblings = DiskState(tmp_path / "run" / "a").siblings()
    assert [version_in(sibling.load_extra("collected-1")) for sibling in siblings] == [ord("a"), ord("b")]


def test_a_context_has_no_siblings():
    with pytest.raises(ValueError, match="state-backend = 'disk'"):
        ContextState(RecordDict()).siblings()


def test_a_context_keeps_its_state_in_flowers_records():
    records = RecordDict()
    ContextState(records).save(3, of(3), 0)
    assert list(records) == ["private.round-000003"]
    assert version_in(ContextState(records).load(4)) == 3


def test_versions_of_rounds_that_the_server_went_back_behind_are_gone(state):
    """The server goes back from round 5 to 3; a node that missed the second round 4 does not read the first one."""
    first, second = Attempts.read("0:a1"), Attempts.read("0:a1 3:b2")
    for server_round in (1, 2, 3, 4, 5):
        state.save(server_round, of(server_round), durable_round=0, attempts=first)
    assert version_in(state.load(5, second)) == 3
    assert version_in(state.load(9)) == 3, "and they are deleted"
    state.save(5, of(55), durable_round=3, attempts=second)
    assert version_in(state.load(6, second)) == 55


def test_the_version_of_a_lost_attempt_does_not_count_though_its_round_is_reached_again(state):
    first, third = Attempts.read("0:a1"), Attempts.read("0:a1 3:c3")
    state.save(3, of(3), durable_round=0, attempts=first)
    state.save(4, of(4), durable_round=0, attempts=Attempts.read("0:a1 3:b2"))  # it left no snapshot
    assert version_in(state.load(6, third)) == 3


def test_a_run_that_starts_again_without_a_snapshot_has_no_versions(state):
    state.save(1, of(1), durable_round=0, attempts=Attempts.read("0:a1"))
    assert state.load(2, Attempts.read("0:b2")) is None


def test_versions_without_an_attempt_count_up_to_where_attempts_begin(state):
    for server_round in (1, 2, 3):
        state.save(server_round, of(server_round), durable_round=0)
    assert version_in(state.load(9, Attempts.read("0: 2:b2"))) == 2


def test_a_damaged_version_is_put_aside_and_not_deleted(tmp_path):
    state, attempts = DiskState(tmp_path), Attempts.read("0:a1")
    state.save(1, of(1), 0, attempts)
    (tmp_path / "round-000001.safetensors").write_bytes(b"rubbish")
    assert state.load(2, attempts) is None
    assert (tmp_path / "round-000001.safetensors.corrupt").exists()


@pytest.mark.parametrize("text", ["x", "0:a 0:b", "3:a 0:b", "0:../..", "-1:a", "0"])
def test_malformed_attempts_are_an_error(text):
    with pytest.raises(ValueError, match="config attempts = "):
        Attempts.read(text)
