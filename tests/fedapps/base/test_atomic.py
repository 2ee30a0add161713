"""Files that are whole or not there, and names from data and messages as names of files and folders."""

import os
import subprocess
import sys

import pytest
from fedapps.clients.state import DiskState
from full_disk import ROOM, full_disk
from hypothesis import example, given
from hypothesis import strategies as st

from fedapps.base.atomic import UnwritableError, path_name, told, whole_file, whole_folder, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_takes_the_place_of_another(tmp_path, sync):
    path = tmp_path / "deep" / "file"
    for content in (b"first", b"", bytes(range(256))):
        write_whole(path, content, sync=sync)
        assert path.read_bytes() == content
    assert names(path.parent) == ["file"]


def test_where_the_disk_is_full_the_old_file_stays(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old")
    with full_disk(), pytest.raises(UnwritableError, match=r"file cannot be written \(File too large\); .*make room"):
        write_whole(path, bytes(ROOM + 1))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_folder_takes_the_place_of_another(tmp_path):
    path = tmp_path / "deep" / "folder"
    for content in ("first", "second"):
        with whole_folder(path) as unfinished:
            (unfinished / "inner").mkdir()
            (unfinished / "inner" / content).write_text(content)
            assert unfinished.parent == path.parent
        assert [found.name for found in path.rglob("*")] == ["inner", content]
    assert names(path.parent) == ["folder"]


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_an_error_leaves_what_was_there(tmp_path, whole):
    with whole(tmp_path / "it") as written:
        if whole is whole_folder:
            (written / "old").touch()
        else:
            written.write(b"old")
    before = names(tmp_path / "it") if whole is whole_folder else (tmp_path / "it").read_bytes()

    def fail():
        with whole(tmp_path / "it") as written:
            if whole is whole_folder:
                (written / "new").touch()
            raise KeyError("new")

    with pytest.raises(KeyError):
        fail()
    assert (names(tmp_path / "it") if whole is whole_folder else (tmp_path / "it").read_bytes()) == before
    assert names(tmp_path) == ["it"]


def test_folders_of_killed_processes_are_removed(tmp_path):
    killed = subprocess.Popen(["true"])
    killed.wait()
    (tmp_path / f".model.new.{killed.pid}" / "inner").mkdir(parents=True)
    write_whole(tmp_path / "file", b"")
    assert names(tmp_path) == ["file"]


def test_where_the_folder_is_a_file_the_error_names_both(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnwritableError, match=r"file/inner cannot be written \(.*exists\)"):
        write_whole(tmp_path / "file" / "inner", b"y")


def test_an_error_without_words_of_the_system_keeps_its_own(tmp_path):
    with pytest.raises(UnwritableError, match=r"cannot be written \(odd\)"), told(tmp_path):
        raise OSError("odd")


@pytest.mark.subprocesses
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    (tmp_path / f".a.safetensors.{killed.pid}").write_bytes(b"half")
    kept = [f".b.safetensors.{os.getpid()}", ".hidden", ".other.tmp", ".c.99999999999999999999999"]
    for name in kept:
        (tmp_path / name).write_bytes(b"half")
    write_whole(tmp_path / "a.safetensors", b"whole")
    assert names(tmp_path) == sorted([*kept, "a.safetensors"])


HOSTILE = ["../../../escaped/car", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\nb", "\x00", ".node.77", "%2F", "/"]


@pytest.mark.parametrize(
    "name",
    ["driver-00", "house 12", "robot-01#2", "fedprox(mu=0.1)", "three-cars-1a2b3c4d", "São Paulo", "v1.5", "żółw", "~"],
)
def test_ordinary_names_stay_as_they_are(name):
    assert path_name(name) == name


def test_quoted_by_hand():
    assert path_name("../../escaped/car") == "%2E.%2F..%2Fescaped%2Fcar"
    assert path_name("50%") == "50%25"
    assert path_name("a\nb") == "a%0Ab"
    assert path_name("") == "%-"
    assert path_name("ü" * 100).startswith("ü" * 90 + "%-")


@given(st.one_of(st.text(max_size=400), st.sampled_from(HOSTILE), st.text("./\\%~-\x00", max_size=12)))
@example("../../../escaped/car")
@example("\ud800")
def test_whatever_the_key_the_path_stays_inside_its_folder(tmp_path_factory, name):
    parent = (tmp_path_factory.getbasetemp() / "parent").resolve()
    child = parent / path_name(name)
    assert child.resolve().parent == parent
    assert child.name == path_name(name)
    assert 0 < len(os.fsencode(child.name)) <= 215
    assert child.name.isprintable()


_KEYS = st.one_of(st.text(max_size=300), st.sampled_from(HOSTILE), st.text("./\\%25EF~-\x00a", max_size=8))


@given(_KEYS, _KEYS)
@example("%-", "")
@example("/", "%2F")
@example("x" * 181, "x" * 182)
def test_different_keys_have_different_paths(one, other):
    assert (path_name(one) == path_name(other)) == (one == other)


def test_a_key_of_path_steps_is_kept_inside_the_state_folder(tmp_path):
    root = tmp_path / "state"
    state = DiskState.of(root, "run", "fedavg", "../../../escaped/car")
    state.save(1, {}, 0)
    state.save_extra("traces", {})
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 2
    assert all(path.is_relative_to(root / "run" / "fedavg") for path in written)
