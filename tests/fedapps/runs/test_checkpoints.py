"""Checkpoints: bit-exact, limited in number, atomic; damaged files are reported."""

import re

import numpy as np
import pytest
from fedapps.strategies import Snapshot
from full_disk import full_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toys import same_bits

from fedapps.base.atomic import UnwritableError
from fedapps.runs.checkpoints import DiskCheckpoints, read_snapshot

FACTS = {"best": {"round": 2, "value": None}, "history": {"1": {"loss": 0.1, "name": "ü"}}}


def snapshot(server_round, value=0.0):
    return Snapshot(server_round, {"w": np.full((2, 3), value, np.float32)}, FACTS)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_round_trip_is_bit_exact(tmp_path):
    arrays = {
        "float32": np.array([[1.5, -0.0], [np.inf, 1e-40]], np.float32),
        "float64": np.linspace(0, 1, 7),
        "scalar": np.array(3.25),
        "count": np.array(2**62 + 1),
        "flags": np.array([True, False]),
        "flag": np.array(True),
        "empty": np.zeros((0, 4), np.float32),
        "columns": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "slice": np.arange(10.0)[::3],
    }
    DiskCheckpoints(tmp_path).save(Snapshot(7, arrays, FACTS), best=False)
    back = DiskCheckpoints(tmp_path).latest()
    assert DiskCheckpoints(tmp_path).last().round == back.round
    assert (back.round, back.facts) == (7, FACTS)
    assert same_bits(back.arrays, arrays)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    hnp.arrays(st.sampled_from([np.float32, np.float64, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, min_side=0)),
    max_size=3,
), st.integers(1, 999_999))  # fmt: skip
def test_arrays_of_any_shape_and_dtype_are_restored(tmp_path, arrays, server_round):
    folder = tmp_path / f"{np.random.default_rng().integers(1 << 62)}"
    DiskCheckpoints(folder).save(Snapshot(server_round, arrays, {}), best=False)
    back = DiskCheckpoints(folder).latest()
    assert back.round == server_round
    assert same_bits(back.arrays, arrays)


def test_the_last_two_and_the_best_snapshots_are_kept(tmp_path):
    checkpoints = DiskCheckpoints(tmp_path / "deep" / "folder")
    oldest = [checkpoints.save(snapshot(r, r), best=r == 2) for r in range(1, 6)]
    assert oldest == [1, 1, 2, 3, 4]
    assert names(checkpoints.folder) == ["best.safetensors", "round-000004.safetensors", "round-000005.safetensors"]
    assert checkpoints.latest().round == 5
    best = read_snapshot(checkpoints.folder / "best.safetensors")
    assert best.round == 2
    assert best.arrays["w"][0, 0] == 2


def test_without_snapshots_the_latest_is_none(tmp_path):
    assert DiskCheckpoints(tmp_path).latest() is DiskCheckpoints(tmp_path).last() is None
    assert DiskCheckpoints(tmp_path / "missing").latest() is None
    (tmp_path / "best.safetensors").write_text("not a round")
    (tmp_path / ".round-000009.safetensors.123").write_text("unfinished")
    assert DiskCheckpoints(tmp_path).latest() is None


@pytest.mark.parametrize("kept", [0, 4, 40, -1])
def test_a_damaged_newest_file_is_left_out_and_named(tmp_path, kept, caplog):
    checkpoints = DiskCheckpoints(tmp_path)
    for server_round in (1, 2):
        checkpoints.save(snapshot(server_round), best=False)
    newest = tmp_path / "round-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:kept])
    assert not checkpoints.last_is_whole()
    with pytest.raises(ValueError, match=r"round-000002\.safetensors is damaged .*: choose round 1, or resume the run"):
        checkpoints.last()
    assert checkpoints.latest().round == 1
    assert re.search(r"round-000002\.safetensors is damaged .*left out, and the run goes on after round 1", caplog.text)
    assert names(tmp_path) == ["round-000001.safetensors", "round-000002.safetensors"]


def test_where_no_file_is_whole_all_are_named(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(2)}, tmp_path / "round-000001.safetensors")
    (tmp_path / "round-000002.safetensors").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"round-000002\.safetensors is damaged.*round-000001\.safetensors.*no state is left"
    ):
        DiskCheckpoints(tmp_path).latest()


def test_a_full_disk_leaves_the_previous_snapshot(tmp_path):
    checkpoints = DiskCheckpoints(tmp_path)
    checkpoints.save(snapshot(1, 1.0), best=True)
    before = names(tmp_path)
    big = Snapshot(2, {"w": np.zeros(5000)}, FACTS)
    with full_disk(), pytest.raises(UnwritableError, match=r"round-000002\.safetensors cannot be written"):
        checkpoints.save(big, best=True)
    assert names(tmp_path) == before
    assert checkpoints.latest().arrays["w"][0, 0] == 1
    assert read_snapshot(tmp_path / "best.safetensors").round == 1


# -- the history -------------------------------------------------------------------------------------------------


def with_history(server_round, rounds):
    history = {"train_metrics_clientapp": {r: {"loss": 1 / r} for r in range(1, rounds + 1)}}
    return Snapshot(server_round, {"w": np.zeros(2)}, {}, history=history)


def test_a_snapshot_has_the_history_up_to_its_round(tmp_path):
    checkpoints = DiskCheckpoints(tmp_path)
    for last in (1, 2, 3):
        checkpoints.save(with_history(last, last), best=last == 2)
    assert DiskCheckpoints(tmp_path).latest().history == with_history(3, 3).history
    assert read_snapshot(tmp_path / "best.safetensors").history == with_history(2, 2).history


def test_a_later_snapshot_is_no_larger_and_adds_one_line(tmp_path):
    checkpoints, sizes = DiskCheckpoints(tmp_path), []
    for last in range(10, 60):
        checkpoints.save(with_history(last, last), best=False)
        sizes.append((tmp_path / f"round-{last:06d}.safetensors").stat().st_size)
    assert set(sizes) == {sizes[0]}
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 59


def test_a_resumed_run_replaces_the_rounds_that_it_repeats(tmp_path):
    first = DiskCheckpoints(tmp_path)
    for last in (1, 2, 3):
        first.save(with_history(last, last), best=False)
    (tmp_path / "round-000003.safetensors").unlink()
    with (tmp_path / "history.jsonl").open("a") as lines:
        lines.write('[4, {"train_metrics_clientapp": {"lo')  # the power failed
    second = DiskCheckpoints(tmp_path)
    assert second.latest().history == with_history(2, 2).history
    again = {"train_metrics_clientapp": {1: {"loss": 1.0}, 2: {"loss": 0.5}, 3: {"loss": 9.0}}}
    second.save(Snapshot(3, {}, {}, history=again), best=False)
    assert DiskCheckpoints(tmp_path).latest().history == again


@pytest.mark.parametrize(
    "damage", [b"nonsense", b"\xff\xfe", b"[" * 100_000, b"[1]", b'["1", {}]', b'[1, {"loss": 2}]']
)
def test_a_damaged_line_of_the_history_costs_that_line_only(tmp_path, damage, caplog):
    checkpoints = DiskCheckpoints(tmp_path)
    for last in (1, 2, 3):
        checkpoints.save(with_history(last, last), best=False)
    path = tmp_path / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damage + b"\n" + b"".join(lines[1:]))
    resumed = DiskCheckpoints(tmp_path)
    latest = resumed.latest()
    assert latest.round == 3
    assert latest.history == {"train_metrics_clientapp": {2: {"loss": 1 / 2}, 3: {"loss": 1 / 3}}}
    assert f"{path}, line 1: damaged and left out" in caplog.text
    resumed.save(Snapshot(4, {}, {}, history=latest.history), best=False)
    assert (tmp_path / "history.jsonl.damaged-1").read_bytes().startswith(damage)
    assert DiskCheckpoints(tmp_path).latest().history == latest.history


@pytest.mark.parametrize(("durable", "synced"), [(True, 7), (False, 0)])
def test_only_a_run_that_must_survive_a_power_failure_waits_for_the_disk(tmp_path, monkeypatch, durable, synced):
    calls = []
    monkeypatch.setattr("os.fsync", calls.append)
    checkpoints = DiskCheckpoints(tmp_path, durable=durable)
    for server_round in (1, 2):
        checkpoints.save(with_history(server_round, server_round), best=False)
    assert len(calls) == synced
    assert checkpoints.latest().round == 2
