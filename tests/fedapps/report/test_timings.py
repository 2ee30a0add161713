"""Where the time goes: bars of phases where a run has recorded them, and no section where it has not."""

from pathlib import Path

from report_pages import node_line, page, round_line, section, write_finished_run, write_lines

from fedapps.report import read_run
from fedapps.report.sections.details import timings


def write_timed(folder: Path) -> Path:
    write_finished_run(folder)
    server = [{"wait": 3.0, "fold": 1.0, "decode": 0.001}, {"wait": 5.0, "fold": 1.0, "decode": 0.001}]
    lines = [round_line("sfl", number, timings=found) for number, found in enumerate(server, start=1)]
    write_lines(folder / "metrics.jsonl", [*lines, round_line("local", 1)])
    node = {"train": 2.0, "model": 0.5, "unknown": 9.0}
    write_lines(folder / "nodes.jsonl", [node_line("sfl", "a", 0.1) | {"phase": "train", "timings": node}])
    return folder


def test_means_of_the_phases_are_shown_and_small_phases_count_as_other(tmp_path):
    shown = section(page(write_timed(tmp_path)), "timings")
    assert "server, per round; totals: sfl 5 s" in shown
    assert "nodes, per reply; totals: sfl, train 2.5 s" in shown
    for name in ("wait", "fold", "train", "model", "other"):
        assert f">{name}</text>" in shown, name
    assert ">decode</text>" not in shown
    assert "unknown" not in shown


def test_without_timings_there_is_no_section(tmp_path):
    assert timings(read_run(write_finished_run(tmp_path))) is None
