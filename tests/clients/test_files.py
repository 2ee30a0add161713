import os
import subprocess
import sys

import pytest
from fedapps.clients.files import UnwritableError, told, write_whole
from full_disk import ROOM, full_disk


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
