"""Files that are whole or not there, and names from data and messages as names of files and folders."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from fedapps.clients.state import DiskState
from full_disk import ROOM, full_disk
from hypothesis import example, given
from hypothesis import strategies as st

from fedapps.base import atomic
from fedapps.base.atomic import (
    UnwritableError,
    entries,
    naming_errors,
    path_name,
    remove_folder,
    remove_leftovers,
    temporary_name,
    whole_file,
    whole_folder,
    write_whole,
)

names = entries


def anything_may_go(folder):
    return []


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
        with whole_folder(path, anything_may_go) as unfinished:
            (unfinished / "inner").mkdir()
            (unfinished / "inner" / content).write_text(content)
            assert unfinished.parent == path.parent
        assert [found.name for found in path.rglob("*")] == ["inner", content]
    assert names(path.parent) == ["folder"]


@pytest.mark.parametrize("whole", [whole_file, partial(whole_folder, foreign=anything_may_go)])
def test_an_error_leaves_what_was_there(tmp_path, whole):
    with whole(tmp_path / "it") as written:
        if whole is not whole_file:
            (written / "old").touch()
        else:
            written.write(b"old")
    before = names(tmp_path / "it") if whole is not whole_file else (tmp_path / "it").read_bytes()

    def fail():
        with whole(tmp_path / "it") as written:
            if whole is not whole_file:
                (written / "new").touch()
            raise KeyError("new")

    with pytest.raises(KeyError):
        fail()
    assert (names(tmp_path / "it") if whole is not whole_file else (tmp_path / "it").read_bytes()) == before
    assert names(tmp_path) == ["it"]


def test_where_the_folder_is_a_file_the_error_names_both(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnwritableError, match=r"file/inner cannot be written \(.*exists\)"):
        write_whole(tmp_path / "file" / "inner", b"y")


def test_an_error_without_words_of_the_system_keeps_its_own(tmp_path):
    with pytest.raises(UnwritableError, match=r"cannot be written \(odd\)"), naming_errors(tmp_path):
        raise OSError("odd")


# -- what is not ours ------------------------------------------------------------------------------------------------

USERS = [".ssh.20240131", ".bashrc.20240101", ".profile.999999", ".emacs.d.20230101", ".a.fedapps", ".b.fedapps-2"]


def test_an_output_leaves_all_other_files_of_its_folder(tmp_path):
    for name in USERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text("secret")
    marked = left_by(temporary_name(tmp_path / "labels.csv"), pid=NO_PROCESS)
    for write in (write_whole, remove_leftovers):
        write(*[tmp_path / "labels.csv", b"x"] if write is write_whole else [tmp_path])
        assert all((tmp_path / name / "key").read_text() == "secret" for name in USERS)
        assert marked.exists() == (write is write_whole), "only the owner of a folder has its leftovers removed"
    with whole_folder(tmp_path / "model"):
        pass
    assert names(tmp_path) == sorted([*USERS, "labels.csv", "model"])


NO_PROCESS = 1 << 30


def left_by(path, **changes):
    """A file with the mark of another owner."""
    known = re.fullmatch(r"(?P<name>.*)-(?P<host>\w{16})-(?P<pid>\d+)-(?P<start>\d+)-(?P<number>\w{8})", path.name)
    owner = path.with_name("-".join(str(part) for part in (known.groupdict() | changes).values()))
    owner.write_bytes(b"half")
    return owner


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({}, True),
        ({"pid": NO_PROCESS}, False),
        ({"start": 1}, False),  # another process has got the number
        ({"pid": NO_PROCESS, "host": "0" * 16}, True),  # of another host, or of another container
        ({"pid": NO_PROCESS, "start": ""}, True),  # where the system does not tell when processes start
    ],
)
def test_a_leftover_goes_only_if_its_process_was_here_and_has_ended(tmp_path, changes, stays):
    path = left_by(temporary_name(tmp_path / "x.safetensors"), **changes)
    remove_leftovers(tmp_path)
    assert path.exists() == stays


@pytest.mark.parametrize("differs", ["gethostname", "machine"])
def test_what_a_process_of_another_host_or_container_writes_stays(tmp_path, monkeypatch, differs):
    """Containers on one host have the same boot and differ in the numbers of their processes."""
    with monkeypatch.context() as there:
        there.setattr(atomic if differs == "machine" else atomic.socket, differs, lambda: "another")
        atomic._host.cache_clear()
        path = left_by(temporary_name(tmp_path / "model"), pid=NO_PROCESS)
    atomic._host.cache_clear()
    remove_leftovers(tmp_path)
    assert path.exists()


@pytest.mark.subprocesses
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from fedapps.base.atomic import *\n"
        "for n in 'ab':\n with whole_folder(Path(sys.argv[1], n)) as new:\n"
        "  (new / 'inner').mkdir(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (left,) = names(tmp_path)
    assert left.startswith(".a.fedapps-")
    with whole_folder(tmp_path / "b") as living:
        remove_leftovers(tmp_path)
        assert names(tmp_path) == [living.name]


def test_a_folder_is_removed_whole(tmp_path, monkeypatch):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    remove_folder(tmp_path / "missing")
    monkeypatch.setattr("shutil.rmtree", lambda path: None)  # killed before the first file is gone
    remove_folder(tmp_path / "folder")
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".folder.fedapps-")
    assert (leftover / "inner").exists()


def test_a_folder_that_cannot_be_read_for_leftovers_is_named():
    with pytest.raises(UnwritableError, match=r"^x{256} cannot be written"):
        remove_leftovers(Path("x" * 256))


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 127 + "x")
    write_whole(path, b"content")
    assert path.read_bytes() == b"content"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(path, b"rows")
    assert os.read(reader, 10) == b"rows"
    os.close(reader)
    assert path.is_fifo()


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path):
    """A run folder from elsewhere can have links."""
    (tmp_path / "own").write_bytes(b"own")
    (tmp_path / "report.html").symlink_to("own")
    write_whole(tmp_path / "report.html", b"report")
    assert (tmp_path / "own").read_bytes() == b"own"
    assert (tmp_path / "report.html").read_bytes() == b"report"


@pytest.mark.parametrize("target", ["full", "file", "link"])
def test_a_folder_with_other_content_is_refused_before_anything_is_written(tmp_path, target):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    messages = {"full": "not empty: .* it has thesis.tex", "file": "is no folder: choose", "link": "is a link: choose"}
    with pytest.raises(ValueError, match=messages[target]), whole_folder(tmp_path / target):
        pytest.fail("work has started")
    assert names(tmp_path) == ["empty", "file", "full", "link"]
    assert (tmp_path / "full" / "thesis.tex").read_text() == "years of work"


def test_a_file_that_arrives_during_the_work_stays(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()

    def work():
        with whole_folder(path):
            (path / "thesis.tex").write_text("years of work")

    with pytest.raises(ValueError, match=r"folder is not empty: .* thesis.tex"):
        work()
    assert names(path) == ["thesis.tex"]
    assert names(tmp_path) == ["folder"]


def test_the_working_folder_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with whole_folder(Path()) as unfinished:
        (unfinished / "new").touch()
    assert names(tmp_path) == ["new"]


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
