"""The state of runs as the board reads it from their folders, at every moment of a run."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_pages import node_line, round_line, write_lines, write_registry

from fedapps.board.status import Board, RunStatus, read_status
from fedapps.runs.owner import Owner

CONFIG = 'name = "x"\ntask = "driving"\nmethods = "local, sfl"\nrounds = 4\n'
REFUSED = [{"node": "n1", "phase": "train", "reason": "shape of w"}]


def write_run(path: Path, rounds: int = 0, **more: str) -> Path:
    """A run of two methods that this process owns, the first of which has finished ``rounds`` rounds."""
    path.mkdir(parents=True)
    (path / "owner.json").write_text(json.dumps(asdict(Owner.this_process())))
    (path / "config.toml").write_text(CONFIG)
    (path / "label").write_text("x-1")
    if rounds:
        write_lines(path / "metrics.jsonl", [round_line("local", r) for r in range(1, rounds + 1)])
    for name, text in more.items():
        (path / name.replace("_", ".")).write_text(text)
    return path


def only(folder: Path, **when: float) -> RunStatus:
    (status,) = Board(folder).runs(**when)
    return status


def test_a_run_appears_when_it_starts_and_its_curve_grows_with_it(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert board.runs() == []
    run = write_run(tmp_path / "lane-swap")
    assert (board.runs()[0].state, board.runs()[0].methods) == ("running", [])
    for rounds in (1, 2, 3):
        write_lines(run / "metrics.jsonl", [round_line("local", r) for r in range(1, rounds + 1)])
        (status,) = board.runs()
        first, second = status.methods
        assert (first.name, first.rounds, first.of, second.rounds) == ("local", rounds, 4, 0)
        assert [x for x, _ in first.points] == list(range(1, rounds + 1))
        assert first.value == first.points[-1][1] == pytest.approx(0.04 * (1 + 1 / rounds))
        assert status.seconds_left == pytest.approx(1.5 * (8 - rounds))
        assert (status.seconds_per_round, status.bytes_per_round) == (1.5, 3000)


def test_a_started_run_is_as_far_as_its_own_rounds(tmp_path: Path) -> None:
    """Rounds 5 and 6 are the first two of four; each takes 1.5 s, and the other method has four to go."""
    run = write_run(tmp_path / "a", started_json=json.dumps({"rounds": {"local": 4, "sfl": 4}, "lineage": []}))
    write_lines(run / "metrics.jsonl", [round_line("local", r) for r in (5, 6)])
    status = only(tmp_path)
    assert [(method.rounds, method.of) for method in status.methods] == [(2, 4), (0, 4)]
    assert [number for number, _ in status.methods[0].points] == [5, 6]
    assert status.seconds_left == pytest.approx(1.5 * (2 + 4))


def test_a_run_in_simulated_time_shows_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_lines(run / "metrics.jsonl", [round_line("local", r) for r in (1, 2)])
    assert only(tmp_path).simulated is None
    write_lines(run / "metrics.jsonl", [round_line("local", r, clock=60.0 * r) for r in (1, 2)])
    assert only(tmp_path).simulated == 120
    (run / "started.json").write_text(json.dumps({"rounds": {"local": 1}, "clock": {"local": 30.0}}))
    assert only(tmp_path).simulated == 90, "30 s were before the run"


def test_a_run_is_finished_when_all_its_methods_are(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 4)
    for done, state in (
        ({"local": {"rounds": 4}}, "running"),
        ({"local": {"rounds": 4}, "sfl": {"rounds": 4}}, "finished"),
    ):
        (run / "summary.json").write_text(json.dumps({"methods": done}))
        assert only(tmp_path).state == state
    assert only(tmp_path).seconds_left is None


def test_a_run_without_news_for_long_is_not_called_running(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 2)
    changed = only(tmp_path).changed
    assert [only(tmp_path, now=changed + s).state for s in (0, 59, 61)] == ["running", "running", "quiet"]
    write_lines(tmp_path / "a" / "metrics.jsonl", [round_line("local", 1, seconds=100.0)])
    changed = only(tmp_path).changed
    assert [only(tmp_path, now=changed + s).state for s in (61, 499, 501)] == ["running", "running", "quiet"]


def test_a_run_whose_process_has_ended_is_stopped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 2)
    owner, changed = run / "owner.json", only(tmp_path).changed
    here = Owner.this_process()
    elsewhere = replace(here, machine="another")
    for who, silent, state in (
        (here, 900, "running"),
        (replace(here, born="1"), 0, "stopped"),  # its number is that of another process
        (elsewhere, 119, "running"),
        (elsewhere, 121, "stopped"),
    ):
        owner.write_text(json.dumps(asdict(who)))
        os.utime(owner, (changed + 10 - silent,) * 2)
        assert only(tmp_path, now=changed + 10).state == state
    owner.unlink()
    assert only(tmp_path, now=changed + 10).state == "stopped"
    assert only(tmp_path, now=changed + 1).state == "running", "its process is about to begin"
    (run / "summary.json").write_text(json.dumps({"methods": {"local": {"rounds": 4}, "sfl": {"rounds": 4}}}))
    assert only(tmp_path, now=changed + 10).state == "finished"


def test_an_owner_file_elsewhere_is_not_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", 2)
    (run / "owner.json").rename(tmp_path / "owner.json")
    (run / "owner.json").symlink_to(tmp_path / "owner.json")
    changed = only(tmp_path / "runs").changed
    assert only(tmp_path / "runs", now=changed + 10).state == "stopped"


def test_refused_replies_are_counted_by_node_and_by_reason(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    reason = "Traceback (most recent call last):\n  |   File x\n  | ValueError: " + 40 * "a"
    long = {"node": "n0", "phase": "train", "reason": reason}
    refused = [round_line("local", 1, refused=[long, *REFUSED]), round_line("local", 2, refused=REFUSED)]
    write_lines(run / "metrics.jsonl", refused)
    write_lines(run / "nodes.jsonl", [node_line("local", n, 0.1) | {"round": 2} for n in ("n0", "n1")])
    found = only(tmp_path)
    assert [(node.name, node.refused, node.round) for node in found.nodes] == [("n1", 2, 2), ("n0", 1, 2)]
    assert [(of.reason, of.whole, of.count, of.nodes) for of in found.refusals] == [
        ("shape of w", "shape of w", 2, ["n1"]),
        ("ValueError: " + 40 * "a", long["reason"], 1, ["n0"]),
    ]


def test_a_node_without_a_reply_to_the_last_evaluation_is_missing_since_its_last_reply(tmp_path: Path) -> None:
    """Rounds take 1.5 s each. Round 3 only trains, on other nodes: no node is missing because of it."""
    run = write_run(tmp_path / "a", 3)
    replied = [("n0", 1), ("n1", 1), ("n2", 1), ("n0", 2), ("n2", 2), ("n0", 3)]
    lines = [node_line("local", n, 0.1) | {"round": r} for n, r in replied]
    write_lines(run / "nodes.jsonl", [line | {"phase": "train"} if line["round"] == 3 else line for line in lines])
    found = only(tmp_path)
    assert [(node.name, node.round, node.missed, node.missing) for node in found.nodes] == [
        ("n1", 1, 2, True),
        ("n0", 3, 0, False),
        ("n2", 2, 1, False),
    ]
    assert [found.changed - node.since for node in found.nodes] == pytest.approx([3.0, 0.0, 1.5])
    (run / "config.toml").write_text(f"{CONFIG}fraction-evaluate = 0.5\n")
    assert not any(node.missing for node in only(tmp_path).nodes), "not all nodes are asked"


def test_a_curve_says_where_the_evaluated_nodes_change(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    means = {1: 0.04, 2: 0.02}
    write_lines(run / "metrics.jsonl", [round_line("local", r, evaluate={"test.elbo": x}) for r, x in means.items()])
    values = [("n0", 1, 0.02), ("n1", 1, 0.06), ("n0", 2, 0.02)]
    write_lines(run / "nodes.jsonl", [node_line("local", n, x) | {"round": r} for n, r, x in values])
    found = only(tmp_path)
    method, _ = found.methods
    assert (method.changed, method.paired) == ([2], [(1, 0.02), (2, 0.02)])
    assert found.notes[0].startswith("local: the evaluated nodes change in round 2 (without n1). ")


def test_a_node_has_the_size_of_its_last_reply_and_the_time_it_worked_on_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_lines(run / "metrics.jsonl", [round_line("local", 1)])
    timed = {"bytes_up": 700, "timings": {"train": 1.5, "model": 0.25}}
    write_lines(run / "nodes.jsonl", [node_line("local", "n0", 0.1) | timed, node_line("local", "n1", 0.1)])
    assert [(node.bytes, node.seconds) for node in only(tmp_path).nodes] == [(700, 1.75), (0, 0)]


def test_a_node_that_was_only_refused_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_lines(run / "metrics.jsonl", [round_line("local", 2, refused=REFUSED)])
    (node,) = only(tmp_path).nodes
    assert (node.name, node.method, node.round, node.refused, node.missing) == ("n1", "", 2, 1, False)


def test_runs_of_comparisons_are_found_and_links_and_private_states_are_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "compare" / "local-0", 1)
    write_run(run / "nodes" / "inner")
    (tmp_path / "elsewhere").symlink_to(run)
    assert only(tmp_path).path == "compare/local-0"


def test_many_points_and_nodes_are_thinned_and_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 2001)
    write_lines(run / "nodes.jsonl", [node_line("local", f"n{k}", 0.1) for k in range(250)])
    status = only(tmp_path)
    points = status.methods[0].points
    assert (points[0][0], points[-1][0]) == (1, 2001)
    assert len(points) <= 401
    assert (len(status.nodes), status.hidden_nodes) == (200, 50)


def test_only_the_reports_in_the_folder_are_found(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", report_html="the report")
    (tmp_path / "report.html").write_text("outside")
    board = Board(tmp_path / "runs")
    assert board.values()["reports"] == ["a"]
    assert board.report("a") == tmp_path / "runs" / "a" / "report.html"
    for path in ("", ".", "..", "a/..", "../runs/a", "/", "b", "a/../../x"):
        assert board.report(path) is None


def test_a_report_that_is_a_link_out_of_the_folder_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", 1)
    (tmp_path / "secret").write_text("secret")
    (run / "report.html").symlink_to(tmp_path / "secret")
    board = Board(tmp_path / "runs")
    assert (board.report("a"), board.values()["reports"]) == (None, [])
    (run / "report.html").unlink()
    (run / "own.html").write_text("the report")
    (run / "report.html").symlink_to(run / "own.html")
    assert board.values()["reports"] == ["a"]


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json", "compare.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_run_shows_no_file_that_is_not_its_own(tmp_path: Path, name: str, kind: str) -> None:
    run = write_run(tmp_path / "runs" / "a", 1)
    (run / name).unlink(missing_ok=True)
    if kind == "link":
        (tmp_path / "secret").write_text('{"password": 1}\n')
        (run / name).symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(run / name)  # reading it would wait for ever
    board = Board(tmp_path / "runs")
    if (kind, name) == ("pipe", "config.toml"):
        assert board.runs() == []
    else:
        (status,) = board.runs()
        assert (status.state, status.problem) == ("unreadable", f"{name}: no regular file of this folder")


DEEP, LONG = "[" * 100_000, "1" * 5_000
DAMAGES = {
    "deep lines": ("metrics.jsonl", f"{DEEP}\n"),
    "deep object": ("summary.json", f'{{"methods": {DEEP}'),
    "deep config": ("config.toml", f"x = {DEEP}"),
    "config of many dots": ("config.toml", ".".join("a" * 5_000) + " = 1"),
    "long number in lines": ("nodes.jsonl", f'{{"round": {LONG}}}\n'),
    "long number in the config": ("config.toml", f'rounds = {LONG}\nmethods = "local"'),
    "large number in the config": ("config.toml", f'rounds = {"9" * 400}\nmethods = "local"'),
    "large round": ("metrics.jsonl", f'{{"method": "local", "round": {"9" * 400}}}\n'),
    "large metric": ("metrics.jsonl", f'{{"method": "local", "round": 1, "evaluate": {{"loss": {"9" * 400}}}}}\n'),
    "large seconds": ("metrics.jsonl", '{"method": "local", "round": 1, "seconds": 1.7e308, "bytes_up": 1.7e308, '
                      '"bytes_down": 1.7e308}\n{"method": "local", "round": 2, "seconds": 1.7e308}\n'),
    "deep value": ("metrics.jsonl", '{"method": "local", "round": ' + "[" * 500 + "]" * 500 + "}\n"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_leaves_the_others_on_the_board(tmp_path: Path, damage: str) -> None:
    name, content = DAMAGES[damage]
    (write_run(tmp_path / "damaged", 1) / name).write_text(content)
    write_run(tmp_path / "whole", 2)
    board = Board(tmp_path)
    json.dumps(board.values(), allow_nan=False)
    states = {run.path: run.state for run in board.runs()}
    assert states["whole"] == "running"
    if not damage.startswith("large") or damage in ("large round", "large metric"):
        assert states["damaged"] == "unreadable"


def test_a_registry_shows_its_generations_and_is_read_again_after_a_change(tmp_path: Path) -> None:
    board = Board(tmp_path / "runs")
    registry = write_registry(tmp_path / "runs" / "champions")
    (fleet,) = board.fleets()
    assert (fleet.path, fleet.problem, fleet.metric) == ("champions", "", "test loss (lower is better)")
    assert fleet.facts == ["generation 4 in use: week-6, fedavg, round 12", "drifting: car-3", "silent: car-5"]
    assert [(group.name, len(group.points)) for group in fleet.groups] == [
        ("all nodes", 5), ("worst tenth", 5), ("city oslo", 5), ("city rome", 5),
    ]  # fmt: skip
    assert [row[1][:21] for row in fleet.decisions[1:3]] == ["week-6 promoted", "champion kept, not we"]
    assert fleet.decisions[1][-2] == "0.1000 (0.1000 to 0.1000)"
    assert [row[:2] for row in fleet.nodes[1:]] == [["car-3", "drift"], ["car-5", "silent"]]
    json.dumps(board.values(), allow_nan=False)
    path = registry.folder / "decisions" / "000006.json"
    path.rename(path.with_suffix(".gone"))
    assert board.fleets()[0].decisions[1][1].startswith("champion kept, not week-5")
    (path.parent / "000007.json").write_text("{}")
    assert board.fleets()[0].problem == "decisions/000007.json: 'promote' is missing"
    (path.parent / "000007.json").unlink()
    (path.parent / "000007.json").symlink_to(tmp_path / "elsewhere.json")
    assert board.fleets()[0].problem == "000007.json: no regular file of this folder"
    (registry.folder / "registry.json").unlink()
    assert board.fleets() == []


def test_a_folder_that_cannot_be_read_leaves_the_others_on_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "open", "shut"):
        write_run(tmp_path / name, 1)
    listed, read = Path.iterdir, read_status

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    def status(path: Path, *more: Any) -> RunStatus:
        if path.name == "shut":
            raise PermissionError(13, "Permission denied")
        return read(path, *more)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr("fedapps.board.status.read_status", status)
    states = {run.path: (run.state, run.problem) for run in Board(tmp_path).runs()}
    assert states["open"] == ("running", "")
    assert states["shut"] == ("unreadable", "Permission denied")


@given(st.binary(max_size=60), st.sampled_from(["metrics.jsonl", "nodes.jsonl", "summary.json", "config.toml"]))
@example(b'{"method": "loc', "metrics.jsonl")
@example(b'{"methods": {"local": 3}}', "summary.json")
@example(b'{"method": "local", "round": 1, "evaluate": {"x": 1e999}}\n', "metrics.jsonl")
def test_whatever_a_file_contains_the_board_has_a_state_for_it(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    run = write_run(folder / "a", 2)
    with (run / name).open("ab") as file:
        file.write(content)
    status = only(folder)
    assert status.state in ("running", "finished", "unreadable")
    assert (status.state == "unreadable") == bool(status.problem)
    assert str(folder) not in status.problem, "the board names runs by their place in the folder that it shows"
    json.dumps(Board(folder).values(), allow_nan=False)


@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=40), st.sampled_from(["registry.json", "decisions/000003.json"]), st.booleans())
@example(b'{"champion": 7}', "registry.json", False)
@example(b'{"generations": 1}', "registry.json", False)
@example(b"[", "decisions/000003.json", True)
def test_whatever_a_registry_contains_the_board_has_a_state_for_it(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, more: bool
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    path = write_registry(folder / "champions", weeks=3).folder / name
    path.write_bytes(path.read_bytes() + content if more else content)
    (fleet,) = Board(folder).fleets()
    assert bool(fleet.problem) != bool(fleet.facts)
    json.dumps(Board(folder).values(), allow_nan=False)
