"""The report of a hand-written run: three methods, three rounds, two nodes; and its sections and labels."""

import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedapps.report import write_report
from fedapps.runs.champions import Registry, decide

FINAL = {"local": 0.04, "sfl": 0.03, "apfl": 0.02}


def round_line(method: str, number: int, **more: Any) -> dict[str, Any]:
    elbo = FINAL.get(method, 0.05) * (1 + 1 / number)
    line = {
        "method": method, "round": number, "stage": "train", "seconds": 1.5, "bytes_down": 2000, "bytes_up": 1000,
        "replies": 2, "refused": [], "train": {"loss": elbo}, "evaluate": {"test.kl": 0.5, "test.elbo": elbo},
    }  # fmt: skip
    return line | more


def node_line(method: str, node: str, elbo: float, **metrics: Any) -> dict[str, Any]:
    found = {"test.elbo": elbo, **metrics}
    return {"method": method, "round": 3, "node": node, "phase": "evaluate", "num_examples": 10, "metrics": found}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_finished_run(folder: Path) -> Path:
    """Write a finished run with only the files and fields that every run has."""
    (folder / "config.toml").write_text(
        'name = "swap <1>"\ntask = "driving"\nmethods = "local, sfl,apfl"\nseed = 3\n"driving.style" = "x"\n'
    )
    write_lines(folder / "metrics.jsonl", [round_line(m, r) for m in FINAL for r in (1, 2, 3)])
    apart = {"a": -0.002, "b": 0.002}
    write_lines(folder / "nodes.jsonl", [node_line(m, n, FINAL[m] + apart[n]) for m in FINAL for n in apart])
    summary = {m: {"rounds": 3, "final": {"test.elbo": v}, "seconds": 90.0} for m, v in FINAL.items()}
    (folder / "summary.json").write_text(json.dumps({"name": "x", "task": "driving", "methods": summary}))
    return folder


def save_traces(folder: Path, method: str, node: str, arrays: Mapping[str, Any]) -> Path:
    """Write what a node traced in the last round of a method, and return the file."""
    path = folder / "nodes" / "run-1a2b" / method / node / "traces.safetensors"
    path.parent.mkdir(parents=True)
    save_file({name: np.asarray(value, order="C") for name, value in arrays.items()}, path)
    return path


def page(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def comparison_page(folder: Path, content: Mapping[str, Any]) -> str:
    """The page of a comparison with this content of ``compare.json``."""
    (folder / "compare.json").write_text(json.dumps(content))
    return page(folder)


def add_to_summary(folder: Path, method: str, **facts: Any) -> None:
    """Let the summary of a finished run say more of a method."""
    summary = json.loads((folder / "summary.json").read_text())
    summary["methods"][method] |= facts
    (folder / "summary.json").write_text(json.dumps(summary))


def section_names(text: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', text)


def headline(text: str) -> str:
    """The sentence at the top of a page, without markup."""
    found = re.search(r'class="headline">(.*?)</p>', text)
    return re.sub("<[^>]+>", "", unescape(found[1])) if found else ""


def section(text: str, name: str) -> str:
    """The markup of a section of a page; empty if the page does not have it."""
    found = re.search(rf'<section id="{name}">.*?</section>', text, re.DOTALL)
    return found[0] if found else ""


def labels(figure: str) -> list[str]:
    """The texts of a figure, in order."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", unescape(figure))


def estimate(mean: float, half: float | None = None, **more: Any) -> dict[str, Any]:
    """An estimate in ``compare.json``, over five seeds if it has an interval."""
    limits = {} if half is None else {"seeds": 5, "sd": 0.1, "low": mean - half, "high": mean + half}
    return {"mean": mean, **limits, **more}


def paired_test(metric: str, a: str, b: str, nodes: tuple[int, int] = (0, 0), **difference: Any) -> dict[str, Any]:
    """A test in ``compare.json``, over five seeds."""
    gap = {"mean": -0.5, "low": -1.25, "high": 0.25, "seeds": 5, "p": 0.3, "p_holm": 0.6} | difference
    counts = {"nodes_lower": nodes[0], "nodes_higher": nodes[1]}
    return {"metric": metric, "a": a, "b": b, "difference": gap, **counts}


def comparison(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The content of ``compare.json`` for runs, with the metrics of each method's first run as means."""
    table: dict[str, Any] = {}
    for row in rows:
        table.setdefault(row["method"], {name: estimate(v) for name, v in row["metrics"].items()})
    return {"recipe": "social-methods", "rows": rows, "table": table, "paper": {}, "tests": [], **more}


def write_registry(folder: Path, weeks: int = 6) -> Registry:
    """A registry in which every second challenger is promoted; in the last week a node drifts and one is silent."""
    registry = Registry(folder)
    for week in range(1, weeks + 1):
        challenger = registry.challenger(Path(f"/runs/week-{week}"), "fedavg", 2 * week)
        facts = {"metric": "test.loss", "challenger": vars(challenger)}
        if not registry.champion:
            decision = {**facts, "promote": True, "reason": "there is no champion yet", "nodes": {}}
        else:
            champion = {f"car-{node}": 1 + (week % 3 + node) / 9 for node in range(8)}
            if week == weeks:
                champion["car-3"] = 40.0
                del champion["car-5"]
            worse = {node: value + 0.1 * (week % 2 or -1) for node, value in champion.items()}
            groups = {"city oslo": ["car-0", "car-3", "car-5"], "city rome": ["car-1", "car-2"]}
            made = decide(champion, worse, groups, mode="min", margin=0.01, group_margin=0.05)
            decision = {**facts, "champion": vars(registry.of(registry.champion)), **made}
        registry.record(decision)
        registry = registry.promoted(challenger) if decision["promote"] else registry
    registry.write()
    return registry
