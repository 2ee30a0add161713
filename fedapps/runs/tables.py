"""Results of a run as text tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapps.registry.tasks import task_class
from fedapps.strategies.wire import HELD_OUT_PREFIXES

from .continual import measure_names
from .run_folder import RunFolder


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text; the first column is left-aligned, the others are right-aligned."""
    first, *rest = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join([head.ljust(first), *(cell.rjust(w) for cell, w in zip(cells, rest, strict=True))]).rstrip()
        for head, *cells in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def number(value: float | None) -> str:
    """A number with four significant digits; a dash for None."""
    return "-" if value is None else f"{value:.4g}"


def reference_label(name: str) -> str:
    """The label of a reference, which is not a method, in tables."""
    return f"reference: {name}"


def summary_table(folder: RunFolder) -> str:
    """One row per method: the main metrics of the last evaluation, refused replies, traffic and time.

    References follow, if the run has any, and a table of the nodes that were held out, if there are such nodes.
    """
    summary = folder.summary()
    methods = summary.get("methods", {})
    finals = [facts["final"] for facts in methods.values()]
    wanted = [name for main in task_class(summary["task"]).headline for name in (*measure_names(main), main)]
    names = [name for name in wanted if any(name in final for final in finals)]
    header = ["method", *(name.removeprefix("test.") for name in names), "refused", "MB up", "MB down", "seconds"]
    rows = [
        [
            method,
            *(number(facts["final"].get(name)) for name in names),
            str(facts["refused"]),
            f"{facts['bytes_up'] / 1e6:.2f}",
            f"{facts['bytes_down'] / 1e6:.2f}",
            f"{facts['seconds']:.0f}",
        ]
        for method, facts in methods.items()
    ]
    costs = ["-"] * (len(header) - len(names) - 1)
    rows += [
        [reference_label(reference), *(number(metrics.get(name)) for name in names), *costs]
        for reference, metrics in folder.references().items()
    ]
    aside = _held_out_table(methods, task_class(summary["task"]).headline)
    return "\n\n".join([text_table(header, rows), *([aside] if aside else [])])


def _held_out_table(methods: Mapping[str, Any], headline: Sequence[str]) -> str:
    """The first main metric of the received, the adapted and a locally trained model; empty without held-out nodes."""
    found = {method: facts["held_out"] for method, facts in methods.items() if facts.get("held_out", {}).get("nodes")}
    models = [prefix.removesuffix(".") for prefix in HELD_OUT_PREFIXES]
    there = [name for name in headline if any(name in of["adapted"] for of in found.values())]
    if not there:
        return ""
    header = [f"held-out nodes: {there[0].removeprefix('test.')}", *models]
    return text_table(header, [[m, *(number(of[model].get(there[0])) for model in models)] for m, of in found.items()])
