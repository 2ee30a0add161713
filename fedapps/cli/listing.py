"""What ``fedapps list`` prints: an overview, the keys of the run config, or one task, method or recipe."""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from textwrap import wrap

from fedapps import methods
from fedapps.base.options import did_you_mean
from fedapps.config.recipe_files import RECIPES, read_pipeline, read_recipe, recipes
from fedapps.registry import TRACKERS, plugins, stated
from fedapps.registry.expressions import read_expression, split_expressions
from fedapps.registry.tasks import task_class, task_lines, task_names

#: Descriptions are not wrapped into columns narrower than this.
_NARROWEST = 30
_FILE = 30  # the width of the names of files


def list_names(arguments: argparse.Namespace) -> int:
    """Print tasks, methods and recipes, or the keys of the run config, or what is known of one name."""
    if (arguments.task or arguments.methods) and not arguments.keys:
        raise ValueError("--task and --methods choose the keys to list: add --keys")
    if arguments.name:
        print(described_name(arguments.name))
    elif arguments.for_task:
        from fedapps.launch.choice import choice_text

        print(choice_text(arguments.for_task))
    else:
        print(keys_text(arguments.task, arguments.methods) if arguments.keys else overview())
    return 0


def overview() -> str:
    """Tasks, methods, trackers and recipes, each with a line of help."""
    lines = {name: line + _stages(name) for name, line in recipes().items()}
    return _groups(
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
    from fedapps.config.keys import described

    names = dict.fromkeys(_name(part) for part in split_expressions(methods))
    head = "keys of the run config, with (default; allowed values; search range of `fedapps tune`)"
    return f"{head}\n{_groups(described(task, names))}"


def described_name(name: str) -> str:
    """What is known of a name: a task, a recipe and a method can have the same one.

    Raises
    ------
    ValueError
        If there is nothing of this name.
    """
    from fedapps.registry.methods import aliases, method_names

    texts = []
    if name in task_names():
        texts.append(task_text(name))
    if name in recipes():
        texts.append(recipe_text(name))
    if read_expression(name).name in {*method_names(), *aliases()}:
        texts.append(method_text(name))
    if not texts:
        known = {*task_names(), *recipes(), *method_names(), *aliases()}
        raise ValueError(f"{name!r} is no task, method or recipe; `fedapps list` lists all{did_you_mean(name, known)}")
    return "\n\n".join(texts)


def task_text(task: str) -> str:
    """A task's help, main metrics, recipes and options."""
    from fedapps.config.keys import described

    recipes_of = [name for name, keys in _recipe_keys().items() if keys.get("task") == task]
    facts = {"metrics": ", ".join(task_class(task).headline), "recipes": ", ".join(recipes_of)}
    lines = [f"task {task}: {task_lines()[task]}", *_facts(facts)]
    if files := task_class(task).files:
        lines += ["data, in files", *(line for name, text in files.items() for line in _entry(name, text, _FILE))]
    if options := described(task).get(f"task {task}"):
        lines += [f"options, written --set {next(iter(options))}=VALUE"]
        lines += [line for key, text in options.items() for line in _entry(key, text, max(map(len, options)))]
    return "\n".join(lines)


def recipe_text(recipe: str) -> str:
    """A recipe's help, its stages, and the keys that differ from the defaults."""
    pipeline = read_pipeline(RECIPES / f"{recipe}.toml")
    parts = pipeline.stages if pipeline else [""]
    lines = [f"recipe {recipe}: {recipes()[recipe]}"]
    for stage in parts:
        if stage:
            lines.append(f"stage {stage}")
        keys = _recipe_keys()[f"{recipe}:{stage}" if stage else recipe]
        lines += [line for key, value in keys.items() for line in _entry(key, str(value), max(map(len, keys)))]
    example = f"{recipe}:{next(iter(parts))}" if pipeline else recipe
    return "\n".join([*lines, f"run it: python -m fedapps run {example}"])


def _recipe_keys() -> dict[str, Mapping[str, object]]:
    """The keys that each recipe sets, by its name; those of a pipeline by ``RECIPE:STAGE``."""
    by_recipe: dict[str, Mapping[str, object]] = {}
    for name in recipes():
        if pipeline := read_pipeline(RECIPES / f"{name}.toml"):
            by_recipe |= {f"{name}:{stage}": {**pipeline.keys, **keys} for stage, keys in pipeline.stages.items()}
        else:
            by_recipe[name] = read_recipe(RECIPES / f"{name}.toml")
    return by_recipe


def _facts(facts: Mapping[str, str]) -> list[str]:
    return [line for fact, text in facts.items() if text for line in _entry(fact, text, 8)]


def method_text(method: str) -> str:
    """A method's help, paper, aliases and options; ``method`` may be an alias. Raises ``ValueError`` if unknown."""
    from fedapps.config.keys import described
    from fedapps.registry.methods import aliases, method_class

    name = _name(method)
    kind = method_class(name)
    facts = {
        "paper": kind.citation,
        "task": kind.task,
        "data": "in stages (continual learning)" if kind.needs_stages else "",
        "aliases": ", ".join(f"{a} = {meaning.label}" for a, meaning in aliases().items() if meaning.name == name),
    }
    lines = [f"method {name}: {kind.summary}", *_facts(facts)]
    if options := described(methods=[name]).get(f"method {name}"):
        example = next(iter(options)).removeprefix(f"{name}.")
        lines += [f"options, written {name}({example}=VALUE) or --set {name}.{example}=VALUE"]
        lines += [line for key, text in options.items() for line in _entry(key, text, max(map(len, options)))]
    return "\n".join(lines)


def _name(method: str) -> str:
    from fedapps.registry.methods import resolved

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
