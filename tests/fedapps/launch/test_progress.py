"""How far a run is follows from its folder, and estimates count only what was done meanwhile."""

import io
import json
import logging

import pytest
from rich.console import Console

from fedapps.launch import progress
from fedapps.launch.progress import Bar, RunProgress, bar_of, drawn, one_bar, to_go


def finish(folder, *rounds):
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.writelines(json.dumps({"method": "fedavg", "round": number}) + "\n" for number in rounds)


def test_rounds_count_once_they_are_written_to_their_ends(tmp_path):
    run = RunProgress("fedavg", tmp_path / "later", 4)
    assert (run.done(), run.fraction(), run.to_go()) == (0, 0.0, "")
    run.path.mkdir()
    finish(run.path, 1, 2)
    with (run.path / "metrics.jsonl").open("a") as lines:
        lines.write('{"method": "fed')
    assert run.done() == 2
    with (run.path / "metrics.jsonl").open("a") as lines:
        lines.write('avg"}\n')
    assert (run.done(), run.position()) == (3, "round 4 of 4")


def test_what_an_earlier_process_has_done_does_not_make_this_one_look_faster(tmp_path, clock):
    finish(tmp_path, 1, 2, 3, 4)
    run = RunProgress("fedavg", tmp_path, 10)
    clock[0] = 60.0
    assert (run.fraction(), run.worked(), run.to_go()) == (0.4, 0.0, "")
    finish(tmp_path, 5, 6)
    assert run.to_go() == "about 2 min 00 s to go"  # 30 s a round, 4 rounds


def test_a_run_that_drops_rounds_when_it_resumes_is_counted_anew(tmp_path):
    finish(tmp_path, 1, 2, 3)
    run = RunProgress("fedavg", tmp_path, 10)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    assert (run.done(), run.worked()) == (1, 0.0)


@pytest.mark.parametrize(
    ("seconds", "worked", "left", "text"),
    [(10, 0, 5, ""), (10, 1, 0, "about 0 s to go"), (3600, 2, 4, "about 2 h 00 min to go")],
)
def test_an_estimate_is_the_time_so_far_times_what_is_left(seconds, worked, left, text):
    assert to_go(seconds, worked, left) == text


def test_a_narrow_terminal_cuts_labels_and_nothing_else(tmp_path):
    screen = Console(file=io.StringIO(), width=72, force_terminal=False)
    screen.print(
        drawn([Bar("fedvocab(adapt-rate=0.1, stateless=true), seed 3", 0.5, "round 3 of 4", "about 5 s to go")])
    )
    (line,) = screen.file.getvalue().splitlines()
    assert line.startswith("fedvoc")
    assert line.rstrip().endswith("round 3 of 4  about 5 s to go")


def test_log_lines_stay_whole_above_the_bar_of_a_run(tmp_path, screen):
    printed = screen(force_terminal=True, width=100)
    handler = logging.StreamHandler(before := io.StringIO())
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        with one_bar(RunProgress("mine", tmp_path, 4)):
            finish(tmp_path, 1)
            logger.warning("round 1 took 3 s")
        logger.warning("afterwards")
    finally:
        logger.removeHandler(handler)
    assert "round 1 took 3 s\n" in printed.getvalue().replace("\r", "")
    assert "mine" in printed.getvalue()
    assert before.getvalue() == "afterwards\n"


def test_variables_that_ask_for_colours_make_no_terminal(monkeypatch, capsys):
    """As the kernel of a notebook sets them."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("JUPYTER_COLUMNS", "80")
    console = progress.standard_output()
    assert not console.is_terminal
    console.print("[1/2] fedavg", markup=False)
    assert capsys.readouterr().out == "[1/2] fedavg\n"


def test_where_there_is_no_terminal_no_bar_is_drawn(tmp_path, screen):
    printed = screen()
    with one_bar(RunProgress("mine", tmp_path, 4)):
        finish(tmp_path, 1)
    assert printed.getvalue() == ""
    assert bar_of(RunProgress("mine", tmp_path, 4)) == Bar("mine", 0.25, "round 2 of 4", "")
