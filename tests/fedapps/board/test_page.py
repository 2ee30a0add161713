"""The page of the board in a browser, with events that the test makes."""

import json
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from browser_pages import dom_of, in_a_browser, violations

from fedapps.base.report.sections import render
from fedapps.board.server import TEMPLATES

PAGE, STYLE, SCRIPT = (render(TEMPLATES, f"board.{kind}.md") for kind in ("html", "css", "js"))

HOSTILE = "\"><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
STUB = "class EventSource { constructor() { window.feed = this; } }"


def method(name: str = "fedavg", rounds: int = 2, **more: Any) -> dict[str, Any]:
    points = [[number, 1 / number] for number in range(1, rounds + 1)]
    value = points[-1][1] if points else None
    status = {"name": name, "colour": "#0072B2", "rounds": rounds, "of": 4, "value": value, "points": points}
    return status | {"changed": [], "paired": [], **more}


def node(name: str = "car-0", **more: Any) -> dict[str, Any]:
    last = {"method": "fedavg", "round": 2, "examples": 30.0, "bytes": 1500.0, "seconds": 0.0, "since": 100.0}
    return {"name": name, **last, "missed": 0, "missing": False, "refused": 0, **more}


def refusal(reason: str, *nodes: str) -> dict[str, Any]:
    return {"reason": reason, "whole": f"Traceback\n{reason}", "count": 2, "nodes": nodes}


def run(path: str = "lane-swap", state: str = "running", **more: Any) -> dict[str, Any]:
    status = {"path": path, "changed": 0.0, "report": False, "state": state, "problem": "", "task": "driving"}
    status |= {"metric": "test loss (lower is better)", "methods": [method()], "nodes": [node()], "hidden_nodes": 0}
    status |= {"refusals": [], "notes": []}
    return status | {
        "seconds_per_round": 2.0,
        "bytes_per_round": 3000.0,
        "seconds_left": 4.0,
        "simulated": None,
        **more,
    }


FLEET = {
    "path": "runs/champions", "problem": "", "facts": ["generation 3 in use: week-3", "silent: car-5"],
    "metric": "test loss (lower is better)",
    "groups": [
        {"name": name, "colour": "#0072B2", "value": 0.5, "points": [[2, 1.5], [3, 0.5]]}
        for name in ("all nodes", "worst tenth")
    ],
    "decisions": [["date", "decision", "drift", "fell silent", "gain"], ["2026-01-05", HOSTILE, "", "car-5", "0.5"]],
    "nodes": [["node", "state", "last comparison", "champion"], ["car-5", "silent", "2026-01-05", "0.7"]],
}  # fmt: skip


def page_after(
    *events: list[dict[str, Any]],
    then: str = "",
    reports: tuple[str, ...] = (),
    fleets: tuple[dict[str, Any], ...] = (),
) -> str:
    """The page with its script and style in it, and with events, each a list of runs, and a script."""
    state = {"fleets": fleets, "reports": reports, "now": 135.0}
    sent = [json.dumps(json.dumps({"runs": runs, **state})) for runs in events]
    feed = "feed.onopen();" + "".join(f"feed.onmessage({{data: {data}}});" for data in sent)
    script = f"{STUB}\n{SCRIPT}\n{feed}{then}".replace("</script>", "<\\/script>")
    page = PAGE.replace('<link rel="stylesheet" href="/board.css">', f"<style>{STYLE}</style>")
    return page.replace('<script src="/board.js">', f"<script>{script}")


@pytest.fixture
def after(tmp_path: Path):
    """As :func:`page_after`: the document in a browser."""
    return lambda *events, **more: dom_of(page_after(*events, **more), tmp_path)


def body(document: str) -> str:
    """The elements, without style and script."""
    return document.partition("</style>")[2].partition("<script>")[0]


def texts(document: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body(document))))


@in_a_browser
def test_a_run_starts_its_curve_grows_and_it_ends(after) -> None:
    def path(*events: list[dict[str, Any]]) -> tuple[str, int]:
        document = after(*events)
        found = re.search(r'<path d="([^"]*)"[^>]*data-method="fedavg"', document)
        return texts(document), len(re.findall("[ML]", found[1])) if found else 0

    started = [run(methods=[], nodes=[], metric="", seconds_left=None, seconds_per_round=0.0)]
    assert path([], started)[1] == 0
    assert "running no round yet" in path([], started)[0]
    shown, points = path(started, [run()])
    assert points == 2
    assert "running round 2 of 4, about 4 s to go" in shown
    shown, points = path(started, [run()], [run(methods=[method(rounds=4)], state="finished", seconds_left=None)])
    assert points == 4
    assert "finished round 4 of 4" in shown


@in_a_browser
def test_the_whole_reason_of_a_refusal_is_shown_and_a_hostile_name_is_text(after) -> None:
    reason = f"shape {HOSTILE} " + 300 * "long "
    names = {"path": HOSTILE, "nodes": [node(HOSTILE, refused=2), node()], "methods": [method(HOSTILE)]}
    document = after([run(**names, refusals=[refusal(reason, HOSTILE)])], reports=(HOSTILE,))
    assert "<title>fedapps board</title>" in document
    assert "<img" not in body(document)
    shown = texts(document)
    assert "2 refused" in shown
    assert '2 \u00d7 "><img src=x' in shown
    assert "Refused replies shape " in shown
    assert shown.count(" long") == 600, "the line that says most, and all of it on demand"


@in_a_browser
def test_the_page_says_when_nodes_replied_last_and_which_are_missing(after) -> None:
    nodes = [node("car-1", round=1, since=95.0, missed=1, missing=True), node("car-2", since=100.0)]
    shown = texts(after([run(nodes=nodes, changed=100.0)]))
    assert re.search("car-1 none since round 1, 4[01] s ago; missing from 1 round", shown)
    assert re.search("car-2 round 2, 3[56] s ago", shown)
    assert re.search("last round ended 3[56] s ago", shown)
    assert "round 2 of 4, about 4 s to go, 1 node missing" in shown
    assert " ago" not in texts(after([run(nodes=nodes, state="finished")]))


@in_a_browser
def test_a_stopped_run_is_said_to_have_stopped(after) -> None:
    shown = texts(after([run("a/b", "stopped", seconds_left=None), run("a/c", "finished")]))
    assert "a 1 of 2 runs finished, 1 stopped" in shown
    assert "stopped round 2 of 4" in shown
    shown = texts(after([run(state="stopped")]))
    assert "The process of this run has ended before the last round." in shown
    assert " ago" not in shown


@in_a_browser
def test_a_curve_marks_rounds_on_other_nodes_and_has_a_paired_one(after) -> None:
    told = "the evaluated nodes change in round 2 (without car-1). Dotted: the mean over 1 node of every evaluation."
    document = after([run(methods=[method(changed=[2], paired=[[1, 0.5], [2, 0.25]])], notes=[told])])
    assert len(re.findall('<circle[^>]*class="ring"', document)) == 1
    assert re.search('<path d="M[^"]*L[^"]*"[^>]*class="paired"', document)
    assert f"Evaluated on other nodes than before. {told}" in texts(document)


@in_a_browser
def test_several_runs_stand_side_by_side_and_keys_choose_them(after) -> None:
    runs = [
        run("a"),
        run("b", "finished"),
        run("c", "quiet"),
        run("d", "unreadable", problem="metrics.jsonl:3: not JSON"),
    ]
    sections = re.compile(r'<section data-run="(\w)"')
    assert sections.findall(after(runs)) == ["a", "c"], "what goes on is shown first"
    press = "const button = document.querySelector('#runs button[data-run=b]'); button.focus(); button.click();"
    document = after(runs, then=f"{press} show(); document.title = document.activeElement.dataset.run;")
    assert sections.findall(document) == ["a", "b", "c"]
    assert "<title>b</title>" in document, "the focus stays on the button when the page is drawn again"
    assert re.findall(r'aria-pressed="(\w+)"', body(document)) == ["true", "true", "true", "false"]
    shown = texts(document)
    assert "waiting round 2 of 4" in shown
    assert "unreadable metrics.jsonl:3: not JSON" in shown


@in_a_browser
def test_the_runs_of_a_comparison_stand_below_one_line(after) -> None:
    runs = [run("compare/fedavg-0"), run("compare/fedavg-1", "finished"), run("old/local-0", "finished")]
    document = after(runs, reports=("compare",))
    assert "compare 1 of 2 runs finished" in texts(document)
    assert 'href="/reports/compare"' in document
    assert re.findall(r"<details( open)?", body(document)) == [" open", ""]


@in_a_browser
def test_a_phone_shows_all_without_scrolling_sideways(tmp_path: Path) -> None:
    wide = [run("a-very-long-name-of-a-run-" * 4, methods=[method(f"method-{k}(argument=0.001)") for k in range(3)])]
    measure = (
        "parent.document.title = [...document.querySelectorAll('main, #runs button, section, svg')]"
        ".every(part => part.getBoundingClientRect().right <= 360) && document.documentElement.scrollWidth <= 360;"
    )
    phone = (
        f'<iframe width="360" height="700" frameborder="0" srcdoc="{escape(page_after(wide, then=measure))}"></iframe>'
    )
    assert "<title>true</title>" in dom_of(f"<!DOCTYPE html><title>-</title>{phone}", tmp_path)


@in_a_browser
def test_the_generations_of_a_registry_are_shown(after) -> None:
    broken = FLEET | {"path": "b", "problem": "decisions/000002.json: 'metric' is missing", "groups": []}
    document = after([], fleets=(FLEET, broken | {"facts": [], "decisions": [], "nodes": []}), reports=(FLEET["path"],))
    shown = texts(document)
    assert "generation 3 in use: week-3 · silent: car-5" in shown
    assert "decision 2 decision 3" in shown
    assert "car-5 silent 2026-01-05 0.7" in shown
    assert "decisions/000002.json: 'metric' is missing" in shown
    assert len(re.findall(r'<path d="M[^"]*L[^"]*"', document)) == 2
    assert 'href="/reports/runs/champions"' in document
    assert '<td class="long">' in document
    assert "<title>taken" not in document


@in_a_browser
def test_the_page_says_when_there_is_no_run_and_when_the_connection_is_lost(after) -> None:
    assert ">reading the runs</p>" in after()
    assert re.search(r'<p id="empty" class="lead">', after([]))
    assert re.search(r'<p id="empty" class="lead" hidden="">', after([run()]))
    assert '<p id="link" role="status" class="live">live</p>' in after([])
    assert 'class="lost">connection lost; trying again</p>' in after([], then="feed.onerror();")


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_core_finds_nothing_to_object_to(tmp_path: Path, scheme: str) -> None:
    states = [run("compare/first"), *(run(state, state) for state in ("running", "finished", "quiet", "stopped"))]
    failed = run(
        "compare/lost",
        "unreadable",
        problem="metrics.jsonl:3: not JSON",
        nodes=[node(refused=2), node("car-1", missing=True, missed=2)],
        refusals=[refusal("shape", "car-0")],
        methods=[method(changed=[2], paired=[[1, 0.5], [2, 0.25]])],
        notes=["The evaluated nodes change"],
    )
    everything = "runs.forEach(run => chosen.add(run.path)); touched = true; show();"
    page = page_after([*states, failed], then=everything, reports=("compare", FLEET["path"]), fleets=(FLEET,))
    assert violations(page, tmp_path, scheme) == []


@pytest.mark.slow
@in_a_browser
def test_axe_core_sees_the_colours_of_the_scheme(tmp_path: Path) -> None:
    dim = PAGE.replace(
        "</head>", "<style>@media (prefers-color-scheme: dark) { h1 { color: #555; background: #444; } }</style></head>"
    )
    assert violations(dim, tmp_path, "light") == []
    assert [rule for rule, _ in violations(dim, tmp_path, "dark")] == ["color-contrast"]


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "accent", "good", "bad"])
def test_texts_have_the_contrast_of_wcag_aa(scheme: str, name: str) -> None:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", block)) for block in blocks[:2])
    colours = light if scheme == "light" else light | dark
    lower, higher = sorted((luminance(colours[name]), luminance(colours["paper"])))
    assert (higher + 0.05) / (lower + 0.05) >= 4.5
