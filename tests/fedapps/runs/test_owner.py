"""Who owns a folder: one process at a time, with and without locks of the file system, on this and other hosts."""

import errno
import json
import os
import subprocess
import sys
import time

import pytest

from fedapps.base.atomic import UnwritableError
from fedapps.runs import owner as module
from fedapps.runs.owner import OWNER_FILE, FolderInUseError, Owner, await_free, check_free, owned

OTHER_HOST = {
    "host": "node-7", "machine": "other", "pid": 4711, "born": "1", "started": "2026-11-25 10:00:00 +0000",
    "token": "ab",
}  # fmt: skip


@pytest.fixture(params=["locks", "no locks"])
def anywhere(request, monkeypatch):
    """A file system with locks, and one where the system refuses them."""
    if request.param == "no locks":
        monkeypatch.setattr(module, "fcntl", None)


def other_owner(folder, age=0.0, **changes):
    path = folder / OWNER_FILE
    path.write_text(json.dumps(OTHER_HOST | changes))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


@pytest.mark.usefixtures("anywhere")
def test_the_second_is_refused_with_the_owner_and_a_remedy(tmp_path):
    here = f"{tmp_path} is in use by process {os.getpid()} on .*, since .*: wait for its end, or end it"
    with owned(tmp_path):
        for again in (owned(tmp_path).__enter__, lambda: check_free(tmp_path)):
            with pytest.raises(FolderInUseError, match=here):
                again()
        assert Owner.read(tmp_path / OWNER_FILE).pid == os.getpid()
    assert not list(tmp_path.iterdir())
    check_free(tmp_path)
    with owned(tmp_path):
        pass


@pytest.mark.usefixtures("anywhere")
def test_a_folder_is_free_again_when_its_owner_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), owned(tmp_path / "new"):
        raise ZeroDivisionError
    check_free(tmp_path / "new")
    check_free(tmp_path / "missing")


@pytest.mark.subprocesses
@pytest.mark.usefixtures("anywhere")
def test_a_process_that_was_killed_is_taken_over_from(tmp_path):
    code = (
        "import sys; from fedapps.runs.owner import *; c = owned(Path(sys.argv[1])); c.__enter__(); print(flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()", str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        running.stdout.readline()
        with pytest.raises(FolderInUseError, match=f"process {running.pid} on"):
            check_free(tmp_path)
        running.kill()
        running.wait()
    with owned(tmp_path):
        assert Owner.read(tmp_path / OWNER_FILE).pid == os.getpid()


@pytest.mark.usefixtures("anywhere")
def test_an_owner_on_another_host_lives_while_its_heart_beats(tmp_path):
    other_owner(tmp_path, age=90)
    last = (
        r"process 4711 on node-7, since 2026-11-25 10:00:00 \+0000.*last sign of life was (89|9\d) s ago: 120 s after"
    )
    with pytest.raises(FolderInUseError, match=last), owned(tmp_path):
        pass
    other_owner(tmp_path, age=121)
    check_free(tmp_path)
    with owned(tmp_path):
        assert Owner.read(tmp_path / OWNER_FILE).pid == os.getpid()


@pytest.mark.usefixtures("anywhere")
def test_a_clock_that_jumped_back_frees_no_folder(tmp_path):
    path = other_owner(tmp_path, age=-3600)
    with pytest.raises(FolderInUseError, match=r"node-7.* last sign of life was 0 s ago"):
        check_free(tmp_path)
    assert path.stat().st_mtime <= time.time(), "from now on it has to live"


def test_a_folder_whose_owner_cannot_be_written_is_free_when_the_disk_has_room(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UnwritableError, match="No space left"):
        owned(tmp_path).__enter__()
    monkeypatch.undo()
    with owned(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "[]", '{"host": 1}', "{" * 10, "[" * 100_000, "1" * 5000])
def test_an_owner_that_was_being_written_lives_for_a_while(tmp_path, content):
    path = tmp_path / OWNER_FILE
    path.write_text(content)
    with pytest.raises(FolderInUseError, match="in use by another process: wait"):
        check_free(tmp_path)
    os.utime(path, (0, 0))
    check_free(tmp_path)


def test_a_number_that_another_process_has_got_is_not_the_owner(tmp_path):
    me = Owner.this_process()
    other_owner(tmp_path, machine=me.machine, pid=me.pid, born=f"{me.born}0")
    check_free(tmp_path)
    other_owner(tmp_path, machine=me.machine, pid=me.pid, born=me.born)
    with pytest.raises(FolderInUseError):
        check_free(tmp_path)


def test_an_owner_that_was_taken_over_from_is_stopped(tmp_path):
    with owned(tmp_path) as ownership:
        ownership.check()
        path = other_owner(tmp_path)
        with pytest.raises(FolderInUseError, match="process 4711 on node-7"):
            ownership.check()
    assert path.exists()  # that of the new owner


def test_its_heart_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    with owned(tmp_path):
        path = tmp_path / OWNER_FILE
        os.utime(path, (0, 0))
        while not path.stat().st_mtime:
            time.sleep(0.01)


def test_two_that_find_the_same_dead_owner_do_not_both_take_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "fcntl", None)
    other_owner(tmp_path, age=1000)
    dead = Owner.read(tmp_path / OWNER_FILE)
    with owned(tmp_path):
        monkeypatch.setattr(module, "_check_owner", lambda path: dead)  # what the slower of the two has seen
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"), owned(tmp_path):
            pass
        assert Owner.read(tmp_path / OWNER_FILE).pid == os.getpid()


def test_a_run_that_lost_its_host_begins_on_another_one_when_the_heart_has_stopped(tmp_path, monkeypatch):
    path = other_owner(tmp_path)
    now = [0.0]

    def pause(seconds):
        now[0] += seconds
        if now[0] > 115:
            os.utime(path, (0, 0))

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", pause)
    await_free(tmp_path)
    assert 115 < now[0] < 120
    other_owner(tmp_path, age=-3600)  # it lives
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    with pytest.raises(FolderInUseError, match="node-7"):
        await_free(tmp_path)


def test_a_share_on_which_no_rename_replaces_a_file_is_refused_before_work(tmp_path, monkeypatch):
    def replace(self, target):
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr("pathlib.Path.replace", replace)
    with pytest.raises(UnwritableError, match=r"renaming a file over another one fails \(File exists\).*output-dir"):
        owned(tmp_path).__enter__()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableError, match=r"owner\.json cannot be written"), owned(tmp_path / "file"):
        pass
