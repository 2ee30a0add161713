"""The nodes of a recipe and how much data each of them has."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from fedapps.config.parsing import Config
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.launch.launch import check_data, resolve
from fedapps.runs.tables import text_table
from fedapps.tasks.base import NodeData, Task

from .matrix import Plan, Vary

_MOST_LABELS = 12


@dataclass(frozen=True)
class NodesFound:
    """The task of a recipe, the data of its nodes, and remarks about the data."""

    task: Task
    nodes: list[NodeData]
    remarks: Sequence[str]


@dataclass(frozen=True)
class RecipeNodes:
    """The nodes of a recipe for each value of the varied key, or for the value ``None`` if no key is varied."""

    vary: Vary | None
    found: Mapping[Value | None, NodesFound]

    @classmethod
    def read(cls, recipe: Path, overrides: Mapping[str, Any], vary: Vary | None = None) -> "RecipeNodes":
        """Read the data of all nodes. A simulated world is generated if it does not exist yet.

        Parameters
        ----------
        recipe : Path
            Name of a recipe, or path of a run-config file.
        overrides : mapping
            Keys of the run config that override the recipe.
        vary : Vary, optional
            Read the nodes for each value of this key; what the recipe varies if missing.

        Raises
        ------
        ConfigError
            If the config is invalid.
        DataError
            If data are missing or invalid.
        """
        base = resolve(read_recipe(recipe, overrides), "runs")
        plan = Plan.of(recipe, base, (), [int(base.get("seed", 0))], "inline", vary)
        found = {value: _found(config) for value, config in zip(plan.values, plan.configs(), strict=True)}
        return cls(plan.vary, found)


def nodes_text(nodes: RecipeNodes) -> str:
    """A table of the number of nodes and of their sizes (mean ± standard deviation), followed by their groups.

    It has a row for each value of the varied key.
    """
    texts = [_table(nodes.vary, nodes.found)]
    for value, of_value in nodes.found.items():
        lines = [*of_value.remarks, *_groups(of_value.nodes)]
        texts += [f"{value}: {line}" for line in lines] if nodes.vary else lines
    return "\n".join(texts)


def _found(config: Config) -> NodesFound:
    run = config.run
    check_data(config)
    task = config.task_of(next(iter(config.methods.values())))
    places = ({"partition-id": node, "num-partitions": run.num_nodes} for node in range(run.num_nodes))
    sources = [run.source(task, place) for place in places]
    nodes = [source.load(task) for source in sources]
    return NodesFound(task, nodes, task.remarks(sources[0].folder, run.num_nodes))


def _table(vary: Vary | None, found: Mapping[Value | None, NodesFound]) -> str:
    rows = {}
    for value, of_value in found.items():
        sizes = [of_value.task.sizes(node) for node in of_value.nodes]
        names = list(dict.fromkeys(name for of_node in sizes for name in of_node))
        rows[value] = {"nodes": str(len(sizes))} | {
            name: _spread([of_node.get(name, 0) for of_node in sizes]) for name in names
        }
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    header = [vary.key if vary else "", *columns]
    return text_table(
        header, [[str(value or ""), *(row.get(name, "-") for name in columns)] for value, row in rows.items()]
    )


def _spread(values: Sequence[int]) -> str:
    mean, deviation = fmean(values), pstdev(values)
    return f"{mean:.1f} ± {deviation:.1f}" if deviation else f"{mean:g}"


def _groups(data: Sequence[NodeData]) -> list[str]:
    """A line per kind of group: the number of nodes with each label, in descending order."""
    lines = []
    for kind in sorted({kind for node in data for kind in node.groups}):
        counts = Counter(node.groups.get(kind, "none") for node in data).most_common()
        shown = ", ".join(f"{label} {count}" for label, count in counts[:_MOST_LABELS])
        more = f" and {len(counts) - _MOST_LABELS} more" if len(counts) > _MOST_LABELS else ""
        lines.append(f"{kind}: {shown}{more}")
    return lines
