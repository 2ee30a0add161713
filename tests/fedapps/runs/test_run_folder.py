"""Run folders: created once, resumed only with the same config, readable after a crash."""

import json
import tomllib
from dataclasses import replace

import pytest
from fedapps.strategies import NodeReport, Refusal, RoundReport
from full_disk import full_disk

from fedapps.base import atomic
from fedapps.base.atomic import UnwritableError, temporary_name
from fedapps.config.parsing import parse
from fedapps.runs.owner import FolderInUseError
from fedapps.runs.run_folder import STARTED, RunFolder, begun
from fedapps.runs.tables import refused_nodes

LQR = {"task": "lqr", "collect-after": 0, "name": "one"}


def config(tmp_path, **changes):
    given = {key.replace("_", "-"): value for key, value in changes.items()}
    return parse({**LQR, "output-dir": str(tmp_path), **given})


def report(server_round):
    return RoundReport(
        server_round,
        seconds=1.5,
        replies=1,
        evaluate={"loss": 0.5},
        refused=[Refusal("b", "train", "NaN")],
        nodes=[NodeReport("a", "evaluate", 3.0, {"loss": 0.5, "list": [1.0, 2.0]}, {"city": "rome"}, bytes_up=7)],
    )


def record(folder, *rounds, method="sfl"):
    for server_round in rounds:
        folder.record(method, "given data", report(server_round))


@pytest.fixture
def folder(tmp_path):
    """A run that has begun."""
    return RunFolder.open(config(tmp_path), 1)


def rounds(folder, name, method):
    return [row["round"] for row in folder.lines(name) if row["method"] == method]


# -- opening ---------------------------------------------------------------------------------------------------


def test_a_new_run_keeps_its_config(tmp_path):
    given = config(tmp_path, seed=4)
    folder = RunFolder.open(given, 1)
    assert folder.path == tmp_path / "one"
    assert tomllib.loads((folder.path / "config.toml").read_text()) == given.flat()
    assert folder.label.startswith("one-")
    assert (folder.path / "label").read_text() == folder.label


def test_a_folder_is_begun_again_only_if_a_killed_run_left_nothing_but_its_label(tmp_path):
    folder = RunFolder.open(config(tmp_path), 1).path
    assert begun(folder)
    (folder / "config.toml").unlink()
    assert not begun(folder)
    assert not folder.exists()
    assert not begun(folder)


def test_a_users_folder_with_the_name_of_a_run_stays(tmp_path):
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"pretrain has thesis.tex and no config.toml, so it is no run to resume"):
        begun(tmp_path / "pretrain")
    assert (tmp_path / "pretrain" / "thesis.tex").read_text() == "years of work"


def test_who_owns_a_run_folder_has_the_leftovers_of_killed_processes_removed(folder, monkeypatch):
    checkpoints = folder.path / "checkpoints" / "fedavg"
    checkpoints.mkdir(parents=True)
    left = [temporary_name(path / "x") for path in (folder.path, checkpoints)]
    for path in left:
        path.touch()
    with folder.owned():
        assert all(path.exists() for path in left), "their process runs"
    monkeypatch.setattr(atomic, "still_runs", lambda pid, started: False)
    with folder.owned():
        assert not any(path.exists() for path in left)


def test_a_run_without_a_name_is_named_after_its_task_and_id(tmp_path):
    given = config(tmp_path, name="")
    folder = RunFolder.open(given, 123)
    assert folder.path == given.run.folder(123) == tmp_path / "lqr-123"
    assert tomllib.loads((folder.path / "config.toml").read_text())["name"] == "lqr-123"


def test_the_default_output_dir_is_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse(LQR).run.folder(1) == tmp_path / "fedapps" / "runs" / "one"


def test_an_existing_folder_is_refused_and_not_changed(tmp_path):
    RunFolder.open(config(tmp_path), 1).record("sfl", "given data", report(1))
    before = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    with pytest.raises(ValueError, match=r"one exists: choose another name, remove the folder, or set resume"):
        RunFolder.open(config(tmp_path, seed=9), 2)
    assert {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()} == before


@pytest.mark.parametrize(("durable", "synced"), [(True, 3), (False, 0)])
def test_label_and_config_of_a_durable_run_are_on_the_disk_before_it_begins(tmp_path, monkeypatch, durable, synced):
    calls = []
    monkeypatch.setattr("os.fsync", calls.append)
    RunFolder.open(config(tmp_path), 1, durable=durable)
    assert len(calls) == synced, "the label, the config, and the folder of both"


@pytest.mark.parametrize(("durable", "synced"), [(True, 6), (False, 0)])
def test_what_replaces_a_file_of_a_durable_run_is_on_the_disk_before_the_file_is_gone(
    tmp_path, monkeypatch, durable, synced
):
    folder, calls = RunFolder.open(config(tmp_path), 1, durable=durable), []
    record(folder, 1)
    monkeypatch.setattr("os.fsync", calls.append)
    folder.finish(config(tmp_path), "sfl", {"rounds": 1})
    folder.drop_after("sfl", 1)
    assert len(calls) == synced, "the summary and both records, each with the folder"


def test_two_runs_of_one_name_have_different_labels(tmp_path):
    labels = {RunFolder.open(config(tmp_path / place), 1).label for place in ("a", "b")}
    assert len(labels) == 2


def test_resuming_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no run in .*one: set name and output-dir"):
        RunFolder.open(config(tmp_path, resume=True), 1)
    assert not (tmp_path / "one").exists()


def test_a_resumed_run_keeps_its_label(tmp_path):
    first = RunFolder.open(config(tmp_path), 1)
    record(first, 1)
    again = RunFolder.open(
        config(tmp_path, resume=True, timeout=5.0, node_wait=1.0, cache_dir="/elsewhere", device="cpu"), 2
    )
    assert again == first
    assert rounds(again, "metrics.jsonl", "sfl") == [1]


def test_a_key_that_is_newer_than_the_run_had_its_default(folder, tmp_path):
    kept = folder.path / "config.toml"
    kept.write_text("".join(line for line in kept.open() if not line.startswith("fedprox.mu")))
    assert RunFolder.open(config(tmp_path, resume=True), 2).path == folder.path
    with pytest.raises(ValueError, match=r"clip-norm: was 0\.0, is 7\.0"):
        RunFolder.open(config(tmp_path, resume=True, clip_norm=7.0), 2)


def test_resuming_with_another_config_lists_what_changed(tmp_path):
    RunFolder.open(config(tmp_path), 1)
    other = parse({**LQR, "output-dir": str(tmp_path), "resume": True, "seed": 3, "rounds": 5, "lqr.horizon": 4})
    message = "has a different config; resume it with the same config, or choose another name"
    with pytest.raises(ValueError, match=message) as caught:
        RunFolder.open(other, 2)
    assert str(caught.value).split("\n  ")[1:] == [
        "lqr.horizon: was 30, is 4",
        "rounds: was 10, is 5",
        "seed: was 0, is 3",
    ]


def test_resuming_with_another_task_lists_its_options_too(tmp_path):
    RunFolder.open(config(tmp_path), 1)
    with pytest.raises(ValueError, match=r"lqr\.horizon: was 30, is None"):
        RunFolder.open(parse({"name": "one", "output-dir": str(tmp_path), "resume": True}), 2)


def test_an_unwritable_folder_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"output-dir: .*file/one cannot be written \(.*\): choose another folder"):
        RunFolder.open(config(tmp_path / "file"), 1)


def test_a_crash_before_the_config_is_written_leaves_no_run_to_resume(tmp_path, monkeypatch):
    def fail(path, content, *, sync):
        raise OSError("disk full")

    monkeypatch.setattr("fedapps.runs.run_folder.write_whole", fail)
    with pytest.raises(ValueError, match="disk full"):
        RunFolder.open(config(tmp_path), 1)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="there is no run in"):
        RunFolder.open(config(tmp_path, resume=True), 1)


# -- lines -----------------------------------------------------------------------------------------------------


def test_a_round_adds_one_line_and_one_line_per_node(folder):
    record(folder, 1)
    assert folder.lines("metrics.jsonl") == [
        {
            "method": "sfl", "stage": "given data", "round": 1, "seconds": 1.5, "bytes_down": 0, "bytes_up": 0,
            "train_messages": 0, "train_replies": 0, "train_bytes_down": 0, "train_bytes_up": 0,
            "replies": 1, "train": {}, "evaluate": {"loss": 0.5}, "strategy": {},
            "refused": [{"node": "b", "phase": "train", "reason": "NaN", "answered": True}], "left_out": [],
        }
    ]  # fmt: skip
    assert folder.lines("nodes.jsonl") == [
        {
            "method": "sfl", "round": 1, "node": "a", "phase": "evaluate", "num_examples": 3.0,
            "metrics": {"loss": 0.5, "list": [1.0, 2.0]}, "groups": {"city": "rome"}, "bytes_up": 7,
        }
    ]  # fmt: skip


def test_timings_are_part_of_a_line_only_where_there_are_any(folder):
    given = report(1)
    node = replace(given.nodes[0], timings={"train": 0.5})
    folder.record("sfl", "given data", replace(given, timings={"wait": 1.25}, nodes=[node, *given.nodes]))
    assert [line["timings"] for line in folder.lines("metrics.jsonl")] == [{"wait": 1.25}]
    assert [line.get("timings") for line in folder.lines("nodes.jsonl")] == [{"train": 0.5}, None]


def test_there_are_no_lines_before_the_first_round(folder):
    assert folder.lines("metrics.jsonl") == []
    folder.drop_after("sfl", 0)
    assert not (folder.path / "metrics.jsonl").exists()


@pytest.mark.parametrize("torn", ['{"method": "sfl", "ro', '{"method": "sfl", "round": 3}'])
def test_an_incomplete_last_line_is_ignored(folder, torn):
    record(folder, 1, 2)
    with (folder.path / "metrics.jsonl").open("a") as lines:
        lines.write(torn)
    assert rounds(folder, "metrics.jsonl", "sfl") == [1, 2]
    folder.drop_after("sfl", 2)
    record(folder, 3)
    assert rounds(folder, "metrics.jsonl", "sfl") == [1, 2, 3]


def test_rounds_after_the_checkpoint_are_dropped_for_this_method_only(folder):
    record(folder, 1, 2, method="local")
    record(folder, 1, 2, 3)
    folder.drop_after("sfl", 1)
    for name in ("metrics.jsonl", "nodes.jsonl"):
        assert rounds(folder, name, "local") == [1, 2]
        assert rounds(folder, name, "sfl") == [1]


def test_damaged_lines_are_named_and_left_out_by_a_resumed_run_only(folder, caplog):
    record(folder, 1, 2, 3)
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\0\xff\n" + whole[1] + b"[" * 100_000 + b"\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1, 3: damaged; resume the run"):
        folder.lines("metrics.jsonl")
    folder.leave_out_damage()
    assert rounds(folder, "metrics.jsonl", "sfl") == [2]
    assert f"{path}, line 1, 3: damaged and left out; metrics.jsonl.damaged-1 is a copy" in caplog.text
    assert (folder.path / "metrics.jsonl.damaged-1").read_bytes().startswith(b"\0\xff\n")
    assert rounds(folder, "nodes.jsonl", "sfl") == [1, 2, 3]


def test_rounds_without_a_line_are_named_from_the_first_round_of_the_run(folder, caplog):
    record(folder, 4, method="local")
    record(folder, 3, 5)
    folder.warn_of_gaps("sfl", 6)
    leave_out = "bytes, seconds and curves leave them out"
    assert f"{folder.path / 'metrics.jsonl'} lacks round 1, 2, 4, 6 of sfl: {leave_out}" in caplog.text
    caplog.clear()
    (folder.path / STARTED).write_text('{"rounds": {"sfl": 4}}')  # a run with start
    folder.warn_of_gaps("sfl", 5)
    assert not caplog.text


def test_a_round_that_the_disk_had_no_room_for_is_repeated(folder):
    record(folder, 1)
    long = replace(report(2), evaluate={f"metric {number}": 0.5 for number in range(2000)})
    with full_disk(), pytest.raises(UnwritableError, match=r"metrics\.jsonl cannot be written"):
        folder.record("sfl", "given data", long)
    assert rounds(folder, "metrics.jsonl", "sfl") == [1]
    folder.leave_out_damage()
    folder.drop_after("sfl", 1)
    folder.record("sfl", "given data", long)
    assert [rounds(folder, name, "sfl") for name in ("metrics.jsonl", "nodes.jsonl")] == [[1, 2], [1, 2]]
    assert not list(folder.path.glob("*.damaged-*"))


def test_a_round_that_two_processes_recorded_is_refused(folder):
    record(folder, 1, 2, 2)
    with pytest.raises(ValueError, match=r"metrics\.jsonl: round 2 of sfl is recorded more than once.*another name"):
        folder.lines("metrics.jsonl")


def test_while_a_process_owns_the_folder_no_other_begins(folder, tmp_path):
    with folder.owned():
        with pytest.raises(FolderInUseError, match="is in use by process"):
            RunFolder.check(config(tmp_path, resume=True), 2)
        (folder.path / "owner.json").write_text("{}")  # another host took it over
        with pytest.raises(FolderInUseError):
            record(folder, 1)
    assert not (folder.path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("summary.json", "{", r"summary\.json is damaged .*resume the run"),
        ("summary.json", "[1]", r"summary\.json is damaged"),
        ("config.toml", "a = \xff", r"config\.toml is damaged .*restore"),
        ("label", "", "label is missing or empty"),
        ("label", "one-\xff", "label is missing or empty, or no text in UTF-8"),
    ],
)
def test_a_damaged_file_is_named(folder, tmp_path, file, content, message):
    (folder.path / file).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        RunFolder.open(config(tmp_path, resume=True), 2).summary()


# -- summary ---------------------------------------------------------------------------------------------------


def test_the_summary_has_every_finished_method(tmp_path):
    given = config(tmp_path, seed=6)
    folder = RunFolder.open(given, 1)
    assert folder.summary() == {}
    assert not folder.finished("sfl")
    folder.finish(given, "sfl", {"rounds": 2})
    folder.finish(given, "apfl", {"rounds": 3})
    assert json.loads((folder.path / "summary.json").read_text()) == {
        "name": "one",
        "task": "lqr",
        "seed": 6,
        "methods": {"sfl": {"rounds": 2}, "apfl": {"rounds": 3}},
    }
    assert folder.finished("sfl")
    assert not folder.finished("local")
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


# Nodes of which a run has used nothing.


def refusal(node, phase="train", reason="no data", answered=True):
    return {"node": node, "phase": phase, "reason": reason, "answered": answered}


def test_a_node_counts_whose_every_reply_was_refused():
    rounds = [
        {"refused": [refusal("bad"), refusal("once"), refusal("late", answered=False), refusal("blind", "evaluate")]},
        {
            "refused": [
                refusal("bad", reason="NaN\nat line 3"),
                refusal("bad", "evaluate"),
                refusal("late", answered=False),
            ]
        },
    ]
    nodes = [{"node": "once", "phase": "train"}, {"node": "blind", "phase": "train"}]
    assert refused_nodes(rounds, nodes) == {
        "bad": "training refused 2 times: NaN",
        "blind": "evaluation refused 1 times: no data",
    }


def test_a_node_that_was_absent_and_then_refused_counts():
    rounds = [{"refused": [refusal("a", answered=False)]}, {"refused": [refusal("a")]}]
    assert refused_nodes(rounds, []) == {"a": "training refused 1 times: no data"}
