"""Tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from .catalogue import task_class
from .continual import is_on_stage
from .pairs import scheme
from .run_folder import RunFolder

#: What a comparison of runs with stages shows first.
_FIRST = ("amse", "bwt", "fwt", "static_parameters", "trainable_parameters")
_COLUMNS = 6


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def number(value: float | None) -> str:
    """Four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def summary_table(folder: RunFolder) -> str:
    """A line per method: the task's main metrics at its last evaluation, its traffic and its time."""
    summary = folder.summary()
    methods = summary.get("methods", {})
    finals = [facts["final"] for facts in methods.values()]
    names = [name for name in task_class(summary["task"]).headline if any(name in final for final in finals)]
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
    return text_table(header, rows)


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """A comparison (see ``compare.summarise``) as tables and a line per test, one value of a varied key at a time.

    The paper's numbers stand in brackets. Metrics of single stages are left out: there are too many to read.
    """
    if "varied" not in comparison:
        return _one_comparison(comparison)
    key, parts = comparison["varied"]["key"], comparison["varied"]["values"]
    return "\n\n\n".join(f"{key} = {part['value']}\n\n{_one_comparison(part)}" for part in parts)


def _one_comparison(part: Mapping[str, Any]) -> str:
    table, paper = part["table"], part["paper"]
    names = list(dict.fromkeys(n for of_method in table.values() for n in of_method))
    names = [n for n in names if n != "num-examples" and not n.endswith(".count") and not is_on_stage(n)]
    names = [n for n in _FIRST if n in names] + [n for n in names if n not in _FIRST]
    blocks = []
    for start in range(0, len(names), _COLUMNS):  # one table per group: all columns in one would be too wide
        header = ["method", *names[start : start + _COLUMNS]]
        rows = [
            [method, *(_spread(values.get(n), paper.get(method, {}).get(n)) for n in header[1:])]
            for method, values in table.items()
        ]
        blocks.append(text_table(header, rows))
    lines = []
    for metric in dict.fromkeys(test["metric"] for test in part["tests"]):
        tests = [test for test in part["tests"] if test["metric"] == metric]
        if which := scheme([(test["a"], test["b"]) for test in tests]):
            lines.append(f"{metric}: {which}")
        lines += map(_test_line, tests)
    return "\n\n".join([*blocks, "\n".join(lines)] if lines else blocks)


def _spread(ours: Mapping[str, float] | None, printed: float | None) -> str:
    if ours is None:
        return "-" if printed is None else f"- [{printed:g}]"
    # A count that every seed agrees on keeps all its digits.
    exact = float(ours["mean"]).is_integer() and not ours["std"]
    text = f"{ours['mean']:,.0f} ± 0" if exact else f"{number(ours['mean'])} ± {ours['std']:.2g}"
    return text if printed is None else f"{text} [{printed:g}]"


def _test_line(test: Mapping[str, Any]) -> str:
    return (
        f"{test['metric']}: {test['a']} - {test['b']}: median {test['median_difference']:.4g}, n = {test['n']}, "
        f"Wilcoxon p = {test['p']:.2g} (Holm {test['p_holm']:.2g}); lower on {test['nodes_lower']} nodes, "
        f"higher on {test['nodes_higher']}"
    )
