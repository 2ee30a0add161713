"""``fedapps list``: its overview, and the columns in which it prints names and what they mean.

The overview needs neither torch nor Flower; :mod:`.descriptions`, which has the rest, is imported when it is asked for.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from textwrap import wrap

from fedapps import methods
from fedapps.config.recipe_files import RECIPES, read_pipeline, recipes
from fedapps.registry import TRACKERS, plugins, stated
from fedapps.registry.tasks import task_lines

#: Descriptions are not wrapped into columns narrower than this.
_NARROWEST = 30


def list_names(arguments: argparse.Namespace) -> int:
    """Print tasks, methods and recipes, or the keys of the run config, or what is known of one name."""
    if (arguments.task or arguments.methods) and not arguments.keys:
        raise ValueError("--task and --methods choose the keys to list: add --keys")
    if arguments.name or arguments.keys:
        from .descriptions import described_name, keys_text

        named = described_name(arguments.name) if arguments.name else keys_text(arguments.task, arguments.methods)
        print(named)
    elif arguments.for_task:
        from fedapps.launch.choice import choice_text

        print(choice_text(arguments.for_task))
    else:
        print(overview())
    return 0


def overview() -> str:
    """Tasks, methods, trackers and recipes, each with a line of help."""
    lines = {name: line + _stages(name) for name, line in recipes().items()}
    return groups_text(
        {
            "tasks": task_lines(),
            "methods": _method_lines(),
            "trackers": TRACKERS.lines(lambda kind: kind.line),
            "recipes": lines,
        }
    )


def _method_lines() -> Mapping[str, str]:
    """As ``method_lines`` of the registry; where no other package or file has methods, without importing torch."""
    if plugins("fedapps.methods") or os.environ.get("FEDAPPS_METHODS"):
        from fedapps.registry.methods import method_lines

        return method_lines()
    lines = {}
    for name, of_method in stated(methods, ("summary", "aliases")).items():
        others = ", ".join(of_method.get("aliases", {}))
        lines[name] = of_method["summary"] + (f" [also: {others}]" if others else "")
    return lines


def _stages(recipe: str) -> str:
    pipeline = read_pipeline(RECIPES / f"{recipe}.toml")
    return f" (stages: {', '.join(pipeline.stages)})" if pipeline else ""


def groups_text(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Titles, and below each its names and their texts, all in two columns."""
    column = max(len(name) for lines in groups.values() for name in lines)
    lines = []
    for title, entries in groups.items():
        lines += [f"{title}:", *(line for name, text in entries.items() for line in entry_lines(name, text, column))]
    return "\n".join(lines)


def entry_lines(name: str, text: str, column: int) -> list[str]:
    """A name and its text; on a terminal, the text is wrapped. Elsewhere, one line is easier to search."""
    room = shutil.get_terminal_size().columns - column - 4
    parts = wrap(text, room, break_on_hyphens=False) if sys.stdout.isatty() and room >= _NARROWEST else [text]
    return [f"  {head:<{column}}  {part}" for head, part in zip([name, *[""] * (len(parts) - 1)], parts, strict=True)]
