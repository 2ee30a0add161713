"""The nodes of a recipe and how much data each of them has, as a table and as a figure."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import torch

from fedapps.base.atomic import path_name
from fedapps.base.errors import listed
from fedapps.base.report.tables import text_table
from fedapps.clients.data import DataSource
from fedapps.config.parsing import Config
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.launch.inputs import read_nodes, resolve
from fedapps.launch.plan import following
from fedapps.runs.comparisons import point_title
from fedapps.tasks.base import NodeData, Task

from .matrix import Plan, Vary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_MOST_LABELS = 12
#: Of a figure.
_MOST_NAMES, _MOST_KINDS = 60, 20


@dataclass(frozen=True)
class NodesOfConfig:
    """The task of a recipe, the folder and the data of its nodes, and remarks about the data."""

    task: Task
    folder: Path
    nodes: list[NodeData]
    remarks: Sequence[str]


@dataclass(frozen=True)
class RecipeNodes:
    """The nodes of a recipe by the values of the varied ``keys``; under ``()`` if no key is varied."""

    keys: Sequence[str]
    of_values: Mapping[tuple[Value, ...], NodesOfConfig]

    @classmethod
    def read(cls, recipe: Path, overrides: Mapping[str, Any], vary: Sequence[Vary] = ()) -> "RecipeNodes":
        """Read the outlines of the data of all nodes. A simulated world is generated if it does not exist yet.

        Parameters
        ----------
        recipe : Path
            Name of a recipe, or path of a run-config file.
        overrides : mapping
            Keys of the run config that override the recipe.
        vary : sequence of Vary
            Read the nodes for each combination of the values of these keys; of what the recipe varies if empty.

        Raises
        ------
        ConfigError
            If the config is invalid.
        DataError
            If data are missing or invalid.
        """
        base = resolve(read_recipe(recipe, overrides), "runs")
        follow = following(recipe, (), overrides.keys() - {"seed"})
        plan = Plan.of(recipe, base, (), [int(base.get("seed", 0))], "inline", vary, follow)
        by_values = {
            tuple(point.values()): _read_nodes(config)
            for point, config in zip(plan.points, plan.configs(), strict=True)
        }
        return cls([axis.key for axis in plan.vary], by_values)


def nodes_text(nodes: RecipeNodes) -> str:
    """A table of the number of nodes and of their sizes (mean ± standard deviation), followed by their groups.

    It has a row for each combination of the values of the varied keys.
    """
    texts = [_table(nodes)]
    for values, of_values in nodes.of_values.items():
        lines = [*of_values.remarks, *_groups(of_values.nodes)]
        texts += [f"{', '.join(map(str, values))}: {line}" for line in lines] if values else lines
    return "\n".join(texts)


def _read_nodes(config: Config) -> NodesOfConfig:
    task, count = config.task_of(next(iter(config.methods.values()))), config.run.num_nodes
    nodes = [*read_nodes(config, task, DataSource.outline)]
    folder = config.run.source(task, {"partition-id": 0, "num-partitions": count}).folder
    return NodesOfConfig(task, folder, nodes, task.remarks(folder, count))


def write_nodes(nodes: RecipeNodes, folder: Path) -> list[Path]:
    """Copy the files of each node into a folder below ``folder``, named by the key of the node.

    Returns
    -------
    list of Path
        The folders of the nodes, each as a deployed node reads it.

    Raises
    ------
    ValueError
        A key is varied, the task has no files for each node, or a folder exists.
    """
    if nodes.keys:
        raise ValueError(f"--write: writes one world, but {nodes.keys[0]} has several values; choose one with --set")
    (world,) = nodes.of_values.values()
    parts = [world.task.own_files(world.folder, node, len(world.nodes)) for node in range(len(world.nodes))]
    if not all(parts):
        raise ValueError(f"--write: the files of the task {world.task.name} do not belong to single nodes; divide them")
    folders = [folder / path_name(node.key) for node in world.nodes]
    for own in folders:
        if own.exists():
            raise ValueError(f"--write: {own} exists; choose another folder, or remove it")
    for own, files in zip(folders, parts, strict=True):
        own.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, own / file.name)
    return folders


def _table(nodes: RecipeNodes) -> str:
    rows = {}
    for values, of_values in nodes.of_values.items():
        sizes = [of_values.task.sizes(node) for node in of_values.nodes]
        names = list(dict.fromkeys(name for of_node in sizes for name in of_node))
        rows[values] = {"nodes": str(len(sizes))} | {
            name: _spread([of_node.get(name, 0) for of_node in sizes]) for name in names
        }
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    header = [*(nodes.keys or [""]), *columns]
    return text_table(
        header, [[*map(str, values or [""]), *(row.get(name, "-") for name in columns)] for values, row in rows.items()]
    )


def _spread(values: Sequence[int]) -> str:
    mean, deviation = fmean(values), pstdev(values)
    return f"{mean:.1f} ± {deviation:.1f}" if deviation else f"{mean:g}"


def _groups(data: Sequence[NodeData]) -> list[str]:
    """A line per kind of group: the number of nodes with each label, in descending order."""
    lines = []
    for kind in sorted({kind for node in data for kind in node.groups}):
        counts = Counter(node.groups.get(kind, "none") for node in data).most_common()
        lines.append(f"{kind}: {listed((f'{label} {count}' for label, count in counts), _MOST_LABELS)}")
    return lines


def check_format(path: Path) -> None:
    """Raise ``ValueError`` if a figure cannot be written to this file."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"--plot {path}: must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {path}: there is no folder {path.parent}; create it, or choose another one")


def nodes_figure(nodes: RecipeNodes, path: Path) -> "Figure":
    """Draw a bar for each node. Its length is the number of training examples, and each class has a colour.

    If the task has no classes, each group of nodes has a colour, such as each city. Each combination of the
    values of the varied keys has a panel.
    """
    import matplotlib.figure

    counts = {values: node_counts(data) for values, data in nodes.of_values.items()}
    kinds = list(
        dict.fromkeys(kind for of_values in counts.values() for of_node in of_values.values() for kind in of_node)
    )
    tallest = max(len(of_values) for of_values in counts.values())
    size = (3.2 + 3.2 * len(counts), max(2.4, min(0.22 * tallest + 1.2, 40.0)))
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    colours = matplotlib.colormaps["tab10" if len(kinds) <= 10 else "tab20"]
    for axes, (values, of_values) in zip(
        figure.subplots(1, len(counts), squeeze=False, sharex=True)[0], counts.items(), strict=True
    ):
        _draw(axes, of_values, kinds, colours)
        axes.set_title(point_title(dict(zip(nodes.keys, values, strict=True))))
    if 1 < len(kinds) <= _MOST_KINDS:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=160)
    return figure


def _draw(axes: "Axes", counts: Mapping[str, Mapping[str, int]], kinds: Sequence[str], colours: "Colormap") -> None:
    rows, begins = range(len(counts)), [0] * len(counts)
    for number, kind in enumerate(kinds):
        widths = [of_node.get(kind, 0) for of_node in counts.values()]
        axes.barh(rows, widths, left=begins, color=colours(number % colours.N), label=kind, height=0.85)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    named = len(counts) <= _MOST_NAMES
    axes.set_yticks(rows if named else [], list(counts) if named else [])
    axes.set(xlabel="training examples", ylabel="" if named else f"{len(counts)} nodes", ylim=(len(counts) - 0.4, -0.6))
    axes.spines[["top", "right"]].set_visible(False)


def node_counts(data: NodesOfConfig) -> dict[str, dict[str, int]]:
    """For each node, its training examples by class, or all of them under its label in the first kind of group."""
    classes = data.task.num_classes
    kind = min((kind for node in data.nodes for kind in node.groups), default="")
    counts = {}
    for node in data.nodes:
        labels = node.splits.get("train", {}).get("label")
        if classes and isinstance(labels, torch.Tensor):
            by_class = torch.bincount(labels, minlength=classes).tolist()
            counts[node.key] = {f"class {number}": count for number, count in enumerate(by_class)}
        else:
            name = f"{kind} {node.groups.get(kind, 'none')}" if kind else "examples"
            counts[node.key] = {name: node.count("train")}
    return counts
