"""Write the files of a new project from the templates in ``templates/``.

A template has the name of its file and ``.md`` at the end, which a Flower bundle carries.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedapps.base.options import matches
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.deployment.credentials import Certificates
from fedapps.deployment.fleet import check_deployable
from fedapps.deployment.superlink import node_options, nodes_speak_http

from .names import Names, class_name

_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
#: The address at which nodes reach the server, and the files of its certificates, in the project's folder.
_FLEET = "0.0.0.0:9092"
_CERTIFICATES = Certificates(*(Path("certificates", name) for name in ("ca.crt", "superlink.crt", "superlink.key")))


def new_project(folder: Path, *, task: str = "", method: str = "", recipe: str = "", deployment: bool = False) -> str:
    """Write a project.

    Parameters
    ----------
    folder : Path
        The project's folder; its last part is the name of the project.
    task, method : str
        The names of the task and the method that the project adds to fedapps; empty for none.
    recipe : str
        The name of the recipe that the project's begins from, in place of a task of its own; by default that of
        ``lqr`` for a method without deployment.
    deployment : bool
        Whether to add what deploys the project's recipe: a recipe for the fleet and scripts for server and nodes.

    Returns
    -------
    str
        Text that lists the files and the next steps.

    Raises
    ------
    ValueError
        A name is malformed or taken, the folder exists, nothing is asked for, or nodes with their own data cannot run
        the recipe. Nothing is written then.
    """
    if not (task or method or deployment):
        raise ValueError("choose what the project has: --task NAME, --method NAME, --deployment, or several of them")
    names = Names(folder, task, method, recipe)
    names.check()
    if deployment and not (task or recipe):
        raise ValueError(
            "--deployment: name what the fleet trains, by --recipe RECIPE, such as images-digits (`fedapps list`), or "
            "by --task NAME for a task of your own"
        )
    texts = dict(_texts(names, deployment))
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    file_lines = "\n".join(f"  {folder / path}" for path in texts)
    return f"{file_lines}\nnext: cd {folder}, and follow README.md"


def _texts(names: Names, deployment: bool) -> Iterator[tuple[str, str]]:
    """The paths in the project's folder and the texts of its files."""
    values = {
        "project": names.project,
        "package": names.package,
        "task": names.task,
        "method": names.method,
        "recipe": names.recipe or "lqr",
        "own_metric": _own_metric(names.recipe) if deployment and names.recipe else None,
        "Task": class_name(names.task),
        "Method": class_name(names.method),
        "described": _described(names),
        "deployment": deployment,
        "section": "",  # of the tables in a recipe
        "fedapps": version("fedapps"),
        "flower": next(needed for needed in requires("fedapps") or () if needed.startswith("flwr")),
        "target": version("flwr"),
        "http": nodes_speak_http(),
        "nodes_at": shlex.join(node_options(_FLEET)),
        "secured": shlex.join(_CERTIFICATES.superlink_options()),
    }
    for template, path in _files(names, deployment):
        yield path, _environment.get_template(f"{template}.md").render(values)


def _own_metric(recipe: str) -> str | None:
    """What a fleet tracks in place of the recipe's metric, which needs a test common to all nodes; ``None`` to keep it.

    Raises
    ------
    ValueError
        Nodes with their own data cannot run the recipe.
    """
    config = parse(read_recipe(Path(recipe), {"methods": "local,fedavg"}), files_exist=False)
    check_deployable(config)
    return config.own_metric if matches(config.run.track_metric, config.task.common_metrics) else None


def _described(names: Names) -> str:
    added = [f"the {kind} {name}" for kind, name in (("task", names.task), ("method", names.method)) if name]
    return f"T{' and '.join(added)[1:]} for fedapps"


def _files(names: Names, deployment: bool) -> Iterator[tuple[str, str]]:
    """The names of the templates, each with the path of its file."""
    yield "README.md", "README.md"
    yield "gitignore", ".gitignore"
    yield "recipe.toml", f"{names.project}.toml"
    if names.task or names.method:
        yield "pyproject.toml", "pyproject.toml"
        yield "init.py", f"{names.package}/__init__.py"
        yield "test.py", f"tests/test_{names.package}.py"
    if names.task:
        yield "LICENSE", "LICENSE"
    for module in ("task", "server_app", "client_app") if names.task else ():
        yield f"{module}.py", f"{names.package}/{module}.py"
    if names.method:
        yield "method.py", f"{names.package}/method.py"
    if deployment:
        yield "fleet.toml", f"{names.project}-fleet.toml"
        yield "server.sh", "server.sh"
        yield "node.sh", "node.sh"
