"""A figure of the nodes of a recipe: how many examples of which class, or of which group, each node trains on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .node_table import NodesFound, RecipeNodes

FORMATS = (".png", ".svg", ".pdf")
_MOST_NAMES, _MOST_KINDS = 60, 20


def check_format(path: Path) -> None:
    """Raise ``ValueError`` if a figure cannot be written to this file."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"--plot {path}: must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {path}: there is no folder {path.parent}; create it, or choose another one")


def nodes_figure(nodes: RecipeNodes, path: Path) -> Figure:
    """Draw a bar for each node. Its length is the number of training examples, and each class has a colour.

    If the task has no classes, each group of nodes has a colour, such as each city. Each value of the varied key has a
    panel.
    """
    counts = {value: node_counts(found) for value, found in nodes.found.items()}
    kinds = list(
        dict.fromkeys(kind for of_value in counts.values() for of_node in of_value.values() for kind in of_node)
    )
    tallest = max(len(of_value) for of_value in counts.values())
    size = (3.2 + 3.2 * len(counts), max(2.4, min(0.22 * tallest + 1.2, 40.0)))
    figure = Figure(figsize=size, layout="constrained")
    for axes, (value, of_value) in zip(
        figure.subplots(1, len(counts), squeeze=False, sharex=True)[0], counts.items(), strict=True
    ):
        _draw(axes, of_value, kinds)
        axes.set_title(f"{nodes.vary.key} = {value}" if nodes.vary else "")
    if 1 < len(kinds) <= _MOST_KINDS:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=160)
    return figure


def _draw(axes: Axes, counts: Mapping[str, Mapping[str, int]], kinds: Sequence[str]) -> None:
    colours = colormaps["tab10" if len(kinds) <= 10 else "tab20"]
    places, begins = range(len(counts)), [0] * len(counts)
    for number, kind in enumerate(kinds):
        widths = [of_node.get(kind, 0) for of_node in counts.values()]
        axes.barh(places, widths, left=begins, color=colours(number % colours.N), label=kind, height=0.85)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    named = len(counts) <= _MOST_NAMES
    axes.set_yticks(places if named else [], list(counts) if named else [])
    axes.set(xlabel="training examples", ylabel="" if named else f"{len(counts)} nodes", ylim=(len(counts) - 0.4, -0.6))
    axes.spines[["top", "right"]].set_visible(False)


def node_counts(found: NodesFound) -> dict[str, dict[str, int]]:
    """For each node, its training examples by class, or all of them under its label in the first kind of group."""
    classes = found.task.num_classes
    kind = min((kind for node in found.nodes for kind in node.groups), default="")
    counts = {}
    for node in found.nodes:
        labels = node.splits.get("train", {}).get("label")
        if classes and isinstance(labels, torch.Tensor):
            by_class = torch.bincount(labels, minlength=classes).tolist()
            counts[node.key] = {f"class {number}": count for number, count in enumerate(by_class)}
        else:
            name = f"{kind} {node.groups.get(kind, 'none')}" if kind else "examples"
            counts[node.key] = {name: node.count("train")}
    return counts
