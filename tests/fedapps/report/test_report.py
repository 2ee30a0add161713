"""The report: what it says, what it leaves out, and how it names what is wrong with a run folder."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedapps.report import ReportError, read_run, write_report
from fedapps.report.figures import drawing
from fedapps.report.formats import format_bytes, format_duration, format_number
from fedapps.report.metrics import describe

FINAL = {"local": 0.04, "sfl": 0.03, "apfl": 0.02}


class Page(HTMLParser):
    """Checks that tags close in order, and keeps ids and addresses."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self._keep(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _keep(self, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]


def round_line(method: str, number: int, **more: Any) -> dict[str, Any]:
    elbo = FINAL.get(method, 0.05) * (1 + 1 / number)
    line = {
        "method": method,
        "round": number,
        "stage": "train",
        "seconds": 1.5,
        "bytes_down": 2000,
        "bytes_up": 1000,
        "replies": 2,
        "refused": [],
        "train": {"loss": elbo},
        "evaluate": {"test.kl": 0.5, "test.elbo": elbo},
    }
    return line | more


def node_line(method: str, node: str, elbo: float, **metrics: Any) -> dict[str, Any]:
    return {
        "method": method,
        "round": 3,
        "node": node,
        "phase": "evaluate",
        "num_examples": 10,
        "metrics": {"test.elbo": elbo, **metrics},
    }


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of three methods, three rounds, two nodes: only what every run writes."""
    (tmp_path / "config.toml").write_text(
        'name = "swap <1>"\ntask = "driving"\nmethods = "local, sfl,apfl"\nseed = 3\n"driving.style" = "x"\n'
    )
    write_lines(tmp_path / "metrics.jsonl", [round_line(m, r) for m in FINAL for r in (1, 2, 3)])
    write_lines(tmp_path / "nodes.jsonl", [node_line(m, n, FINAL[m]) for m in FINAL for n in ("a", "b")])
    summary = {m: {"rounds": 3, "final": {"test.elbo": v}, "seconds": 90.0} for m, v in FINAL.items()}
    (tmp_path / "summary.json").write_text(json.dumps({"name": "x", "task": "driving", "methods": summary}))
    return tmp_path


def page(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def add_summary(folder: Path, **more: Any) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', text)


def test_it_leads_with_the_result_and_stands_alone(folder: Path) -> None:
    text = page(folder)
    headline = re.sub("<[^>]+>", "", re.search(r'class="headline">(.*?)</p>', text)[1])  # type: ignore[index]
    assert headline == "apfl has the lowest test ELBO loss: 0.02000, 33\N{NO-BREAK SPACE}% below sfl (0.03000)."
    assert sections(text) == ["result", "curves", "clients", "traffic", "config"]
    assert text.count("★ 0.02000") == 1
    found = Page(text)
    assert len(found.ids) == len(set(found.ids))
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert "<script" not in text
    assert "@import" not in text
    assert "swap &lt;1&gt;" in text
    assert "swap <1>" not in text


def test_every_figure_says_what_it_shows(folder: Path) -> None:
    text = page(folder)
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) == 6
    assert all(re.search(r'(aria-label|alt)="[^"]{20,}"', figure) for figure in figures)


def test_a_method_keeps_its_colour(folder: Path) -> None:
    text = page(folder)
    colour = re.search(r'background:(#\w+)"></i>apfl', text)[1]  # type: ignore[index]
    for figure in re.findall(r"<figure>.*?</figure>", text, re.DOTALL):
        assert colour.lower() in figure.lower()


def test_the_report_is_the_same_for_the_same_folder(folder: Path) -> None:
    assert page(folder) == page(folder)
    assert sorted(path.name for path in folder.glob("report*")) == ["report.html"]


def test_one_method_without_nodes(folder: Path) -> None:
    write_lines(folder / "metrics.jsonl", [round_line("sfl", 1)])
    for name in ("nodes.jsonl", "summary.json", "config.toml"):
        (folder / name).unlink()
    (folder / "config.toml").write_text("")
    text = page(folder)
    assert sections(text) == ["result", "curves", "traffic"]
    assert "★ 0" not in text
    assert "has not finished" in text


def test_an_interrupted_run_says_so_and_its_torn_line_is_left_out(folder: Path) -> None:
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"method": "apfl", "rou')
    text = page(folder)
    assert "has not finished" in text
    assert "The last line of metrics.jsonl was cut" in text
    assert "so far." in text
    assert len(read_run(folder).rounds) == 9


def test_a_run_with_a_method_under_way_is_not_finished(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    del summary["methods"]["apfl"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "Has not finished: apfl. This is what it wrote so far." in page(folder)


def test_nothing_written_yet(folder: Path) -> None:
    (folder / "summary.json").unlink()
    (folder / "nodes.jsonl").unlink()
    (folder / "metrics.jsonl").write_text("")
    text = page(folder)
    assert "No round has finished yet" in text
    assert "Nothing was written yet for: apfl, local, sfl." in text


def test_not_a_number(folder: Path) -> None:
    nan = float("nan")
    lines = [round_line("sfl", r, evaluate={"test.elbo": nan if r == 2 else 0.1}) for r in (1, 2, 3)]
    write_lines(folder / "metrics.jsonl", [*lines, round_line("apfl", 1, evaluate={"test.elbo": None})])
    write_lines(folder / "nodes.jsonl", [node_line("sfl", "a", nan)])
    (folder / "summary.json").unlink()
    text = page(folder)
    assert "clients" not in sections(text)
    assert ">NaN<" in text
    assert "<b>sfl</b> 0.1000, <b>apfl</b> NaN" in text


def test_a_round_written_again_replaces_the_old_one(folder: Path) -> None:
    write_lines(folder / "metrics.jsonl", [round_line("sfl", 1, seconds=s) for s in (1.0, 7.0)])
    assert [record.seconds for record in read_run(folder).rounds] == [7.0]


def test_refused_replies_are_counted(folder: Path) -> None:
    refused = [{"node": "driver-03", "reason": "loss is <nan>"}]
    lines = [round_line("sfl", r, refused=refused if r in (1, 2, 3, 5) else []) for r in range(1, 7)]
    write_lines(folder / "metrics.jsonl", lines)
    text = page(folder)
    assert "4 replies were left out" in text
    assert "<td>loss is &lt;nan&gt;</td><td>1–3, 5</td>" in text


def test_learned_rates(folder: Path) -> None:
    rates = {"encoder.weight": 0.001, "decoder.bias": 1.0}
    write_lines(folder / "metrics.jsonl", [round_line("apfl", r, strategy={"rates": rates}) for r in (1, 2)])
    text = page(folder)
    assert "rates" in sections(text)
    assert "decoder.bias is fastest, encoder.weight slowest" in text


def test_many_tensors_are_cut_to_the_fastest(folder: Path) -> None:
    rates = {f"layer-{place:02d}": place / 59 for place in range(60)}
    write_lines(folder / "metrics.jsonl", [round_line("apfl", 1, strategy={"rates": rates})])
    text = page(folder)
    assert "the 40 fastest of 60 tensors" in text
    assert ">layer-20<" in text
    assert ">layer-19<" not in text


def test_a_heavy_figure_becomes_a_picture() -> None:
    with drawing("forty thousand points") as figure:
        figure.axes[0].scatter(*np.random.default_rng(0).random((2, 40_000)), s=1)
    assert figure.markup.startswith('<figure><img alt="forty thousand points" src="data:image/png;base64,')


def test_driving_counts_only_the_sessions_that_started(folder: Path) -> None:
    loop = {
        "closed_loop.cost": [10.0, 30.0],
        "closed_loop.time_to_lane_change": [4.0, 100.0],
        "closed_loop.started": [1, 0],
        "non_proactive.cost": [50.0, 70.0],
    }
    write_lines(folder / "nodes.jsonl", [node_line(m, "a", 0.1, **loop) for m in ("sfl", "apfl")])
    text = page(folder)
    assert "driving" in sections(text)
    assert "lane change [s], medians: sfl 4, apfl 4" in text
    assert "mean cost of a session, medians: sfl 20, apfl 20, non-proactive 60" in text
    assert "sfl 1 of 2" in text


def trace(steps: int = 12) -> dict[str, Any]:
    path = np.stack([np.zeros(steps), np.arange(steps) * 2.0], axis=1)
    return {
        "trace.0.robot": path,
        "trace.0.human": path + np.array([3.5, 5.0]),
        "trace.0.gray": path + np.array([3.5, 20.0]),
        "trace.0.predicted": np.ones((2, 3, 20, 2)),
        "trace.0.predicted_at": np.array([0, 9]),
        "trace.0.lane_change_start": np.array(7),
    }


def save_trace(folder: Path, method: str, arrays: dict[str, Any]) -> None:
    place = folder / "nodes" / "run-1a2b" / method / "driver-00"
    place.mkdir(parents=True)
    save_file({k: np.asarray(v, order="C") for k, v in arrays.items()}, place / "traces.safetensors")


def test_paths_on_the_road(folder: Path) -> None:
    save_trace(folder, "apfl", trace())
    save_trace(folder, "sfl", {k: v for k, v in trace().items() if k.endswith(("robot", "human"))})
    text = page(folder)
    assert "driver-00 under apfl; the lane change starts at step 7." in text
    assert "driver-00 under sfl; the lane change never starts." in text


def test_a_trace_of_another_shape_is_named(folder: Path) -> None:
    save_trace(folder, "apfl", trace() | {"trace.0.human": np.zeros((5, 2))})
    expected = (
        r"run-1a2b/apfl/driver-00/traces.safetensors: 'trace.0.human' has the shape \(5, 2\); it must be \(12, 2\)"
    )
    with pytest.raises(ReportError, match=expected):
        write_report(folder)


def test_the_paper_and_the_paired_tests_stand_beside(tmp_path: Path) -> None:
    test = {"metric": "test.elbo", "a": "apfl", "b": "sfl", "n": 70, "p": 0.3, "p_holm": 0.6}
    table = {m: {"elbo": {"mean": v, "std": 0.0}} for m, v in {"apfl": 0.02, "sfl": 0.03}.items()}
    paper = {"apfl": {"elbo": 0.0116}, "cloud": {"elbo": 0.01643}}
    comparison = {"recipe": "three-cars", "table": table, "paper": paper, "tests": [test | {"median_difference": -0.5}]}
    (tmp_path / "compare.json").write_text(json.dumps(comparison))
    text = page(tmp_path)
    assert '<span class="paper">0.01160</span>' in text
    assert "cloud (paper)" in text
    assert "apfl against sfl" in text
    assert "A paired test does not bear this out (p = 0.6)." in text


def test_a_comparison_alone(tmp_path: Path) -> None:
    spread = {"mean": 5.0, "std": 0.0}
    table = {m: {"num-examples": spread, "kl": spread, "elbo": {"mean": v, "std": 0.0012}} for m, v in FINAL.items()}
    rows = [{"method": m, "seed": s, "metrics": {}} for m in FINAL for s in range(5)]
    test = {"a": "apfl", "b": "sfl", "n": 10, "p": 0.3, "p_holm": 0.6, "median_difference": -0.5}
    tests = [test | {"metric": "test.elbo", "nodes_lower": 4, "nodes_higher": 1}, test | {"metric": "test.kl"}]
    comparison = {"recipe": "lane-swap", "rows": rows, "table": table, "tests": tests}
    (tmp_path / "compare.json").write_text(json.dumps(comparison))
    text = page(tmp_path)
    assert sections(text) == ["result", "comparison"]
    assert "(0.03000), the mean of 5 seeds. A paired test does not bear this out" in text
    assert text.index("test ELBO loss<small>") < text.index("KL<small>")
    assert "num examples" not in text
    assert ">4 : 1<" in text
    assert text.index("apfl against sfl") < text.index("Tests of other metrics")
    assert "★ 0.02000</b> <small>± 0.0012</small>" in text
    assert "has not finished" not in text


def test_a_comparison_shows_every_seed_and_how_far_the_parameters_are_from_the_true_ones(tmp_path: Path) -> None:
    found = {"excess": 0.001, "dynamics_distance": 0.5, "gain_distance": 0.01}
    rows = [{"method": m, "seed": seed, "metrics": found} for m in ("apfl", "sfl") for seed in (0, 1)]
    table = {m: {"excess": {"mean": 0.001, "std": 0.0}} for m in ("apfl", "sfl")}
    (tmp_path / "compare.json").write_text(json.dumps({"recipe": "lqr", "rows": rows, "table": table}))
    text = page(tmp_path)
    assert sections(text) == ["result", "comparison", "seeds"]
    assert "excess of each method by seed" in text
    assert "Distance of the learned gain from the true one" in text


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.jsonl", '{"method": "a", "round": 1}\n{"method": \n', r"metrics\.jsonl:2: not JSON"),
        ("metrics.jsonl", '\n{"method": "a"}\n', r"metrics\.jsonl:2: 'round' is None; it must be a whole"),
        ("metrics.jsonl", "[1]\n", r"metrics\.jsonl:1: found list; it must be a JSON object"),
        (
            "metrics.jsonl",
            '{"method": "a", "round": 1, "evaluate": {"x": "high"}}\n',
            r"metrics\.jsonl:1: 'x' is 'high'; it must be a number",
        ),
        (
            "nodes.jsonl",
            '{"method": "a", "round": 1, "node": 7}\n',
            r"nodes\.jsonl:1: 'node' is 7; it must",
        ),
        ("summary.json", '{\n"methods": 3}', r"summary\.json: 'methods' is 3; it must be an object"),
        ("summary.json", '{\n\n"methods": }', r"summary\.json:3: not JSON"),
        ("config.toml", "rounds = \n", r"config\.toml: not TOML: .*line 1"),
        ("metrics.jsonl", "\xff\n", r"metrics\.jsonl:1: not UTF-8"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(folder: Path, file: str, content: str, message: str) -> None:
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(ReportError, match=message):
        write_report(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("missing", ["config.toml", "metrics.jsonl"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ReportError, match=f"no {missing}"):
        write_report(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="absent: no such run folder"):
        write_report(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "axis", "better"),
    [
        ("test.elbo", "test ELBO loss", -1),
        ("closed_loop.time_to_lane_change", "closed loop time to lane change [s]", -1),
        ("closed_loop.distance_at_start", "closed loop distance at start [m]", 0),
        ("closed_loop.start_rate", "lane changes started", 1),
        ("test.error_1.5s", "test error 1.5s", -1),
        ("unseen.spl", "unseen SPL", 1),
        ("test.recall@5", "test recall@5", 1),
        ("b-error", "b error", -1),
    ],
)
def test_what_a_name_tells(name: str, axis: str, better: int) -> None:
    assert (describe(name).axis, describe(name).better) == (axis, better)


def test_numbers_as_people_read_them() -> None:
    assert [format_number(v) for v in (0.0, 0.016, -61.2, 12345.6, 3e-7, 70.0, float("nan"))] == [
        "0",
        "0.01600",
        "−61.20",
        "12,346",
        "3.000e−07",
        "70",
        "NaN",
    ]
    assert [format_number(v, 2) for v in (0.00074, 33.2, 332.4, 1.26)] == ["0.00074", "33", "332", "1.3"]
    assert format_number(1869.6) == "1,870"
    assert [format_bytes(v) for v in (0, 999, 11_400_000, 2.5e9)] == ["0 B", "999 B", "11.4 MB", "2.5 GB"]
    assert [format_duration(v) for v in (1.24, 235.0, 7260.0)] == ["1.24 s", "3 min 55 s", "2 h 01 min"]
