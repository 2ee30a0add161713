"""What ``fedapps list`` prints of the keys of the run config, and of one task, method or recipe."""

from collections.abc import Mapping

from fedapps.base.options import did_you_mean
from fedapps.config.keys import described
from fedapps.config.recipe_files import RECIPES, read_pipeline, read_recipe, recipes
from fedapps.registry.expressions import read_expression, split_expressions
from fedapps.registry.methods import aliases, method_class, method_names, resolved
from fedapps.registry.tasks import task_class, task_lines, task_names

from .listing import entry_lines, groups_text

_FILE = 30  # the width of the names of files


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
    names = dict.fromkeys(resolved(read_expression(part)).name for part in split_expressions(methods))
    head = "keys of the run config, with (default; allowed values; search range of `fedapps tune`)"
    return f"{head}\n{groups_text(described(task, names))}"


def described_name(name: str) -> str:
    """What is known of a name: a task, a recipe and a method can have the same one.

    Raises
    ------
    ValueError
        If there is nothing of this name.
    """
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
    recipes_of = [name for name, keys in _recipe_keys().items() if keys.get("task") == task]
    facts = {"metrics": ", ".join(task_class(task).headline), "recipes": ", ".join(recipes_of)}
    lines = [f"task {task}: {task_lines()[task]}", *_facts(facts)]
    if files := task_class(task).files:
        lines += ["data, in files", *(line for name, text in files.items() for line in entry_lines(name, text, _FILE))]
    if options := described(task).get(f"task {task}"):
        lines += [f"options, written --set {next(iter(options))}=VALUE"]
        lines += [line for key, text in options.items() for line in entry_lines(key, text, max(map(len, options)))]
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
        lines += [line for key, value in keys.items() for line in entry_lines(key, str(value), max(map(len, keys)))]
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
    return [line for fact, text in facts.items() if text for line in entry_lines(fact, text, 8)]


def method_text(method: str) -> str:
    """A method's help, paper, aliases and options; ``method`` may be an alias. Raises ``ValueError`` if unknown."""
    name = resolved(read_expression(method)).name
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
        lines += [line for key, text in options.items() for line in entry_lines(key, text, max(map(len, options)))]
    return "\n".join(lines)
