"""What ``fedapps list`` prints: an overview, the keys of the run config, or one method."""

import shutil
import sys
from collections.abc import Mapping
from textwrap import wrap

from fedapps.config.keys import described
from fedapps.config.recipe_files import RECIPES, read_pipeline, recipes
from fedapps.config.trackers import TRACKERS
from fedapps.registry.expressions import read_expression, split_expressions
from fedapps.registry.methods import aliases, method_class, method_lines, resolved
from fedapps.registry.tasks import task_lines

#: Descriptions are not wrapped into columns narrower than this.
_NARROWEST = 30


def overview() -> str:
    """Tasks, methods, trackers and recipes, each with a line of help."""
    lines = {name: line + _stages(name) for name, line in recipes().items()}
    return _groups(
        {
            "tasks": task_lines(),
            "methods": method_lines(),
            "trackers": TRACKERS.lines(lambda kind: kind.line),
            "recipes": lines,
        }
    )


def _stages(recipe: str) -> str:
    pipeline = read_pipeline(RECIPES / f"{recipe}.toml")
    return f" (stages: {', '.join(pipeline.stages)})" if pipeline else ""


def keys_text(task: str = "", methods: str = "") -> str:
    """The keys of the run config by group: run, task, method, tracker.

    Parameters
    ----------
    task : str
        List only the keys of this task; all tasks if empty.
    methods : str
        List only the keys of these methods, written as in a run config; all methods if empty.

    Raises
    ------
    ValueError
        If the task or a method is unknown.
    """
    names = dict.fromkeys(_name(part) for part in split_expressions(methods))
    head = "keys of the run config, with (default; allowed values; search range of `fedapps tune`)"
    return f"{head}\n{_groups(described(task, names))}"


def method_text(method: str) -> str:
    """A method's help, paper, aliases and options; ``method`` may be an alias. Raises ``ValueError`` if unknown."""
    name = _name(method)
    kind = method_class(name)
    facts = {
        "paper": kind.citation,
        "task": kind.task,
        "data": "in stages (continual learning)" if kind.needs_stages else "",
        "aliases": ", ".join(f"{a} = {meaning.label}" for a, meaning in aliases().items() if meaning.name == name),
    }
    lines = [f"{name}: {kind.line}", *(line for fact, text in facts.items() if text for line in _entry(fact, text, 8))]
    if options := described(methods=[name]).get(f"method {name}"):
        example = next(iter(options)).removeprefix(f"{name}.")
        lines += [f"options, written {name}({example}=VALUE) or --set {name}.{example}=VALUE"]
        lines += [line for key, text in options.items() for line in _entry(key, text, max(map(len, options)))]
    return "\n".join(lines)


def _name(method: str) -> str:
    return resolved(read_expression(method)).name


def _groups(groups: Mapping[str, Mapping[str, str]]) -> str:
    column = max(len(name) for lines in groups.values() for name in lines)
    lines = []
    for title, entries in groups.items():
        lines += [f"{title}:", *(line for name, text in entries.items() for line in _entry(name, text, column))]
    return "\n".join(lines)


def _entry(name: str, text: str, column: int) -> list[str]:
    """A name and its text; on a terminal, the text is wrapped. Elsewhere, one line is easier to search."""
    room = shutil.get_terminal_size().columns - column - 4
    parts = wrap(text, room, break_on_hyphens=False) if sys.stdout.isatty() and room >= _NARROWEST else [text]
    return [f"  {head:<{column}}  {part}" for head, part in zip([name, *[""] * (len(parts) - 1)], parts, strict=True)]
