"""Walks through houses from above: what was described and where the agent of each method went."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

from markupsafe import Markup

from fedapps.report.arrays import Arrays
from fedapps.report.figures import drawing
from fedapps.report.house_drawing import draw_walk, layout_of
from fedapps.report.house_traces import House, Walk, read_house, read_walks
from fedapps.report.palette import plot_styles
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData

_MOST_NODES = 4
_MOST_METHODS = 4
_MOST_PATHS = 2
_WIDE = 7.6  # inches

ORDER = 105

#: By path, such as ``val_unseen.0``, and method.
Walks = Mapping[str, Mapping[str, Walk]]


def section(run: RunData) -> Markup | None:
    """Two paths of each of up to four houses, under up to four methods; None for tasks without houses."""
    found: dict[str, tuple[House, Walks]] = {}
    for node in sorted({node for _, node in run.traces}):
        if of_node := _walks(run, node):
            found[node] = of_node
    if not found:
        return None
    # Unseen houses first.
    nodes = sorted(found, key=lambda node: not next(iter(found[node][1])).startswith("val_unseen"))[:_MOST_NODES]
    paths = {node: [_path(run, found[node][0], of) for of in _chosen(found[node][1])] for node in nodes}
    return render_section("houses", nodes=paths)


def _walks(run: RunData, node: str) -> tuple[House, Walks] | None:
    """The house of a node and its walks."""
    house: House | None = None
    by_path: dict[str, dict[str, Walk]] = {}
    for method in run.methods[:_MOST_METHODS]:
        if (method, node) not in run.traces:
            continue
        arrays = Arrays(run.traces[method, node])
        house = read_house(arrays) or house
        for path, walk in read_walks(arrays, house).items() if house else ():
            by_path.setdefault(path, {})[method] = walk
    return (house, by_path) if house and by_path else None


def _chosen(walks: Walks) -> list[Mapping[str, Walk]]:
    """The paths in which as many methods as possible succeed while as many others fail."""

    def disagreement(path: str) -> int:
        successes = [walk.success for walk in walks[path].values()]
        return min(successes.count(True), successes.count(False))

    return [walks[path] for path in sorted(walks, key=disagreement, reverse=True)[:_MOST_PATHS]]


def _path(run: RunData, house: House, walks: Mapping[str, Walk]) -> tuple[str, Markup, bool]:
    """The instruction, the figure with a drawing for each method, and whether it is wide."""
    layout = layout_of(house, list(walks.values()))
    columns = len(walks) if layout.width < 0.8 * layout.height else min(len(walks), 2)
    rows = -(-len(walks) // columns)
    width = _WIDE if columns > 1 else _WIDE / 2
    height = min(4.0, max(1.2, width / columns * layout.height / layout.width))
    instruction = next(iter(walks.values())).instruction
    said = "; ".join(f"{method} {_outcome(walk)}" for method, walk in walks.items())
    alt = f"Maps of the walks for the instruction {instruction!r}: {said}"
    with drawing(alt, rows=rows, columns=columns, width=width, height=rows * (height + 0.45)) as figure:
        for axes in figure.axes[len(walks) :]:
            axes.set_axis_off()
        for axes, (method, walk) in zip(figure.axes, walks.items(), strict=False):
            draw_walk(axes, house, layout, walk, plot_styles(run.methods)[method])
            axes.set_title(f"{fill(method, 22)}: {_outcome(walk)}", fontsize=8.5)
    return instruction, figure.markup, columns > 1


def _outcome(walk: Walk) -> str:
    return f"{'✓' if walk.success else '✗'} {walk.error:.1f} m"
