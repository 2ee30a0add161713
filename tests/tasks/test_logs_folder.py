"""Imports into folders: each log once, what is new alone, and drafts of mappings."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.logs import folder as module
from fedapps.tasks.logs.folder import LEDGER, LogImport, import_logs
from fedapps.tasks.logs.mapping import draft
from fedapps.tasks.logs.readers import open_log
from fedapps.tasks.lqr.logs import LqrImport
from fedapps.tasks.lqr.world import read_rollouts, robot_files
from robot_logs import ROS1, Messages, write_bag

from fedapps.base.options import option_fields
from fedapps.cli.commands import main
from fedapps.registry.tasks import usable_tasks

MAPPING = """[settings]
step = 1.0
gap = 1.5
control-weight = 2.0
[signals.robot]
topic = "*"
time = { column = "t", unit = "s" }
x = { column = "x", unit = "m" }
[signals.command]
topic = "*"
time = { column = "t", unit = "s" }
speed = { column = "v", unit = "m/s" }
"""


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    path = tmp_path / "mapping.toml"
    path.write_text(MAPPING)
    return path


def log_of(path: Path, start: float, rows: int = 4) -> Path:
    path.write_text("t,x,v\n" + "".join(f"{start + row},{start + row},1\n" for row in range(rows)))
    return path


def states(output: Path) -> list[float]:
    tables = read_rollouts(robot_files(output)).tables
    return sorted(float(y) for table in tables.values() for y in table[:, 0])


def done(paths: list[Path], mapping: Path, output: Path) -> list[str]:
    """The lines about logs that were imported; all must be."""
    results = list(import_logs(LqrImport, paths, mapping, output))
    assert all(complete for complete, _ in results)
    return [line for _, line in results]


def test_a_log_is_imported_once_and_new_ones_are_added(tmp_path: Path, mapping: Path) -> None:
    output = tmp_path / "out"
    first, second = log_of(tmp_path / "a.csv", 0), log_of(tmp_path / "b.csv", 100)
    assert done([first], mapping, output) == [f"{first}: 1 sessions with 3 rows"]
    before = (output / "robot-robot.csv").read_bytes()
    moved = tmp_path / "moved.csv"
    shutil.copy(first, moved)
    assert done([first, moved], mapping, output) == [f"{first}: imported before", f"{moved}: imported before"]
    assert (output / "robot-robot.csv").read_bytes() == before
    done([first, second], mapping, output)
    assert states(output) == [0, 1, 2, 100, 101, 102]


def test_a_log_that_has_grown_or_gets_another_mapping_replaces_what_came_from_it(tmp_path: Path, mapping: Path) -> None:
    output, path = tmp_path / "out", tmp_path / "a.csv"
    done([log_of(path, 0), log_of(tmp_path / "b.csv", 100)], mapping, output)
    done([log_of(path, 0, rows=6)], mapping, output)
    assert states(output) == [0, 1, 2, 3, 4, 100, 101, 102]
    mapping.write_text(MAPPING.replace("control-weight", "goal = 10.0\ncontrol-weight"))
    done([path], mapping, output)
    assert states(output) == [-10, -9, -8, -7, -6, 100, 101, 102]
    assert done([path], mapping, output) == [f"{path}: imported before"]


def test_another_log_under_the_same_path_is_added(tmp_path: Path, mapping: Path) -> None:
    output, path = tmp_path / "out", tmp_path / "drive.csv"
    done([log_of(path, 0, rows=6)], mapping, output)
    done([log_of(path, 100)], mapping, output)
    done([log_of(path, 100, rows=5)], mapping, output)  # has grown
    assert states(output) == [0, 1, 2, 3, 4, 100, 101, 102, 103]
    done([log_of(path, 100, rows=3)], mapping, output)  # is shorter than the one that begins in the same way
    assert states(output) == [0, 1, 2, 3, 4, 100, 100, 101, 101, 102, 103]


def test_an_entry_of_a_ledger_without_the_beginning_of_its_log_is_the_same_log(tmp_path: Path, mapping: Path) -> None:
    output, path = tmp_path / "out", tmp_path / "drive.csv"
    done([log_of(path, 0)], mapping, output)
    entry = json.loads((output / LEDGER).read_text())
    assert entry.pop("beginning") == {"drive": [30, open_log(path).head("drive", 30)]}
    (output / LEDGER).write_text(json.dumps(entry) + "\n")
    done([log_of(path, 0, rows=6)], mapping, output)
    assert states(output) == [0, 1, 2, 3, 4]


def test_a_mapping_with_another_name_of_the_node_leaves_no_rows_under_the_old_one(
    tmp_path: Path, mapping: Path
) -> None:
    output, paths = tmp_path / "out", [log_of(tmp_path / "a.csv", 0), log_of(tmp_path / "b.csv", 100)]
    done(paths, mapping, output)
    mapping.write_text(MAPPING.replace("step = 1.0", 'step = 1.0\nnode = "7"'))
    done(paths[:1], mapping, output)
    assert states(output) == [0, 1, 2, 100, 101, 102]
    done(paths[1:], mapping, output)
    assert [path.name for path in robot_files(output)] == ["robot-7.csv"]


def test_a_log_whose_replacement_fails_is_not_taken_for_imported(tmp_path: Path, mapping: Path) -> None:
    output, path = tmp_path / "out", log_of(tmp_path / "a.csv", 0)
    done([path], mapping, output)
    mapping.write_text(MAPPING.replace("gap = 1.5", "gap = 0.5"))
    ((complete, line),) = import_logs(LqrImport, [path], mapping, output)
    assert not complete
    assert "no session of 3 steps" in line
    mapping.write_text(MAPPING)
    assert done([path], mapping, output) == [f"{path}: 1 sessions with 3 rows"]
    assert states(output) == [0, 1, 2]


def test_an_import_that_was_killed_is_repeated_without_double_rows(
    tmp_path: Path, mapping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, path = tmp_path / "out", log_of(tmp_path / "a.csv", 0)

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "append_line", killed)
    with pytest.raises(KeyboardInterrupt):
        done([path], mapping, output)
    assert states(output) == [0, 1, 2]
    monkeypatch.undo()
    done([path], mapping, output)
    assert states(output) == [0, 1, 2]


@pytest.mark.parametrize("damaged", [b'{"log": "log-a", "pa', b"\0" * 200, b"\xff\xfe", b"[1]", b'{"log": "log-a"}\n'])
def test_a_log_whose_line_is_damaged_is_imported_again_without_double_rows(
    tmp_path: Path, mapping: Path, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    output, first, second = tmp_path / "out", log_of(tmp_path / "a.csv", 0), log_of(tmp_path / "b.csv", 100)
    done([first, second], mapping, output)
    line = (output / LEDGER).read_bytes().splitlines(keepends=True)[0]
    (output / LEDGER).write_bytes(line + damaged)
    assert done([first, second], mapping, output) == [f"{first}: imported before", f"{second}: 1 sessions with 3 rows"]
    assert caplog.messages == [f"{output / LEDGER}, line 2: damaged; its log is imported again if no other line has it"]
    assert done([second], mapping, output) == [f"{second}: imported before"]
    assert states(output) == [0, 1, 2, 100, 101, 102]


def test_a_log_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path, mapping: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("t,x,v\n0,0,fast\n")
    results = list(import_logs(LqrImport, [bad, log_of(tmp_path / "a.csv", 0)], mapping, tmp_path / "out"))
    assert [complete for complete, _ in results] == [False, True]
    assert results[0][1].startswith(f"{bad}, line 2, column v: 'fast'; expected a finite number")
    (line,) = (tmp_path / "out" / LEDGER).read_text().splitlines()
    assert json.loads(line)["path"] == str(tmp_path / "a.csv")


def test_a_file_of_the_user_in_the_output_folder_stays_as_it_is(tmp_path: Path, mapping: Path) -> None:
    log, output = log_of(tmp_path / "a.csv", 0), tmp_path / "out"
    done([log], mapping, output)
    (output / "notes.csv").write_bytes("Datum;Straße\n".encode("latin-1"))
    log_of(log, 0, rows=6)
    done([log], mapping, output)
    assert (output / "notes.csv").read_bytes() == "Datum;Straße\n".encode("latin-1")
    assert states(output) == [0, 1, 2, 3, 4]


def test_the_draft_of_a_table_fits_tables_of_other_names(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.csv", 0)
    drafted = tomllib.loads(draft(LqrImport.advice, LqrImport.signals, LqrImport.Settings, log))
    assert drafted["signals"]["robot"]["topic"] == "*"


def test_gaps_and_jumps_are_told(tmp_path: Path, mapping: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,x,v\n" + "".join(f"{t},{t},1\n" for t in (0, 1, 2, 3, 10, 11, 12, 5, 6, 7)))
    (line,) = done([path], mapping, tmp_path / "out")
    assert line == f"{path}: 3 sessions with 7 rows; 2 gaps of up to 7 s; the clock went back 1 times"


def test_a_folder_with_other_files_of_the_same_name_is_refused(tmp_path: Path, mapping: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "robot-robot.csv").write_text("y,v\n1,2\n")
    ((complete, line),) = import_logs(LqrImport, [log_of(tmp_path / "a.csv", 0)], mapping, tmp_path / "out")
    assert not complete
    assert line.endswith("robot-robot.csv: another header than that of an import; choose another output folder")


def test_settings_are_checked(tmp_path: Path, mapping: Path) -> None:
    mapping.write_text(MAPPING.replace("step = 1.0", "stepp = 1.0\ntest-share = 2"))
    with pytest.raises(DataError, match=r"(?s)2 errors:.*did you mean 'settings\.step'.*test-share = 2\.0: must be"):
        list(import_logs(LqrImport, [], mapping, tmp_path / "out"))


@pytest.mark.parametrize("name", [name for name, task in usable_tasks().items() if task.log_import])
def test_the_draft_of_each_task_is_a_mapping_that_only_lacks_what_the_log_lacks(tmp_path: Path, name: str) -> None:
    from pkgutil import resolve_name

    importer: type[LogImport] = resolve_name(usable_tasks()[name].log_import)
    ros = Messages(ROS1)
    bag = write_bag(
        tmp_path / "a.bag",
        [
            ("/odom", 1.0, ros.odometry(1.0, 0)),
            ("/people", 1.0, ros.people(1.0, {})),
            ("/people", 2.0, ros.people(1.0, {"a": (1, 2)})),
        ],
    )
    text = draft(importer.advice, importer.signals, importer.Settings, bag)
    content = tomllib.loads(text)
    assert content["settings"].keys() == set(option_fields(importer.Settings))
    assert content["signals"].keys() == importer.signals.keys()
    assert "# topic /odom: nav_msgs/msg/Odometry, such as\n#   header.seq = 0\n" in text
    for signal in content["signals"].values():
        if signal["topic"] == "/odom":
            assert signal["time"] == {"column": "header.stamp", "unit": "s"}
            assert signal.get("frame", "odom") == "odom"
        if signal.get("each"):
            assert (signal["topic"], signal["each"], signal["id"]) == ("/people", "people", "name")


def test_the_command_drafts_and_imports(tmp_path: Path, mapping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, output = str(log_of(tmp_path / "a.csv", 0)), str(tmp_path / "out")
    assert main(["import", log, "--task", "lqr", "--show"]) == 0
    assert 'x = { column = "x", unit = "m" }' in capsys.readouterr().out
    assert main(["import", log, "--task", "lqr"]) == 2
    assert "--mapping and --output must be given; --show prints the draft" in capsys.readouterr().err
    assert main(["import", log, "--task", "text", "--show"]) == 2
    assert "--task text: must be one of driving, images, lqr, social, vpr" in capsys.readouterr().err
    command = ["import", "--task", "lqr", "--mapping", str(mapping), "--output", output]
    assert main([*command, log]) == 0
    assert capsys.readouterr().out == f"{log}: 1 sessions with 3 rows\n"
    assert main([*command, log, str(tmp_path / "none")]) == 1
    out, err = capsys.readouterr()
    assert out == f"{log}: imported before\n"
    assert err.startswith(f"fedapps: {tmp_path / 'none'}: no such file or folder")
