"""README and docs: their links lead somewhere, their commands exist, and their code can be read.

deploy/README.md and docs/extending.md have tests of their own for what their commands do.
"""

import json
import pkgutil
import re
import shlex
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from fedapps.cli.parser import command_parser
from fedapps.comparison.matrix import assignments
from fedapps.config.keys import all_keys
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import RECIPES, read_pipeline, read_recipe, recipes
from fedapps.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/results/*.md", "deploy/*.md", "examples/*.md", "examples/*/README.md")
    for path in ROOT.glob(pattern)
)
WITH_COMMANDS = [page for page in PAGES if page.parent.name != "deploy" and page.name != "extending.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: Files that a page says how to write, and recipes in the place of a reader's own.
READERS_OWN = re.compile(r".+\.toml(:[\w-]+)?|RECIPE")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path, own: set[str]) -> list[str]:
    """The relative links of a text whose file or heading does not exist; ``own`` are the text's anchors."""
    broken = []
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = folder / path
        found = own if not path else anchors(target) if target.suffix == ".md" and target.exists() else {anchor}
        if (path and not target.exists()) or (anchor and anchor not in found):
            broken.append(link)
    return broken


def commands(text: str) -> list[list[str]]:
    """The commands of the blocks without a language, and of those of ``sh``, in words."""
    blocks = (body for language, body in FENCE.findall(text) if language in ("", "sh"))
    lines = (line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines())
    return [shlex.split(line, comments=True) for line in lines if re.match(r"(python -m fedapps|fedapps|make) ", line)]


def unknown_in(words: list[str]) -> list[str]:
    """What a command names that does not exist: a target, an option, a recipe or a key."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return [word for word in words[1:] if "=" not in word and word not in targets]
    arguments = words[words.index("fedapps") + 1 :]
    given, others = command_parser().parse_known_args(arguments)
    unknown = [] if given.command == "supernode" else others
    if given.command == "predict":  # the others are its inputs
        unknown = [word for word in others if word.startswith("--")]
    recipe, _, stage = str(getattr(given, "recipe", None) or "").partition(":")
    # A recipe of the reader's own may set keys of the reader's own task.
    known = recipe in recipes() and (
        not stage or stage in getattr(read_pipeline(RECIPES / f"{recipe}.toml"), "stages", ())
    )
    if recipe and not known and not READERS_OWN.fullmatch(recipe):
        unknown.append(recipe)
    keys = [pair.partition("=")[0] for pair in getattr(given, "set", None) or ()]
    groups = {key.partition(".")[0] for key in all_keys()}
    others_task = [key for key in keys if recipe and not known and key.partition(".")[0] not in groups and "." in key]
    return unknown + [key for key in keys if key not in all_keys() and key not in others_task]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_to_files_and_headings(page):
    text = FENCE.sub("", page.read_text())
    assert broken_links(text, page.parent, anchors(page)) == []


def test_links_of_notebooks_lead_to_files_and_headings():
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert broken_links(text, path.parent, set()) == [], path.name


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_name_what_exists(page):
    assert {" ".join(words): unknown for words in commands(page.read_text()) if (unknown := unknown_in(words))} == {}


def run_configs(text: str) -> list[dict[str, Any]]:
    """The run configs of the commands that start runs of a published recipe, or of the app with ``flwr run .``."""
    found = []
    for words in map(partial(shlex.split, comments=True), re.findall(r"^flwr run .+$", text, re.MULTILINE)):
        given, nodes = (parse_config_args([words[words.index(f"--{of}-config") + 1]]) for of in ("run", "federation"))
        assert nodes["num-supernodes"] == given.get("num-nodes", RunConfig.num_nodes)
        found.append(given)
    for words in commands(text):
        if words[0] == "make":
            continue
        given, _ = command_parser().parse_known_args(words[words.index("fedapps") + 1 :])
        if given.command not in ("run", "compare", "tune") or str(given.recipe) not in recipes():
            continue
        if read_pipeline(RECIPES / f"{given.recipe}.toml") is None:
            methods = {"methods": given.methods} if getattr(given, "methods", None) else {}
            found.append(read_recipe(RECIPES / f"{given.recipe}.toml", assignments(given.set or ()) | methods))
    return found


#: Pages with commands that need the reader's data or packages, or that run in other folders.
ELSEWHERE = ("data.md", "python.md")


@pytest.mark.parametrize(
    "page", [page for page in WITH_COMMANDS if "examples" not in page.parts and page.name not in ELSEWHERE], ids=name
)
def test_the_run_configs_of_commands_are_accepted(page):
    for config in run_configs(page.read_text()):
        parse(config)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_blocks_can_be_read(page):
    for language, body in FENCE.findall(page.read_text()):
        if language == "python":
            compile(body, name(page), "exec")
        elif language == "toml":
            tomllib.loads(body)


def missing_code(text: str) -> list[str]:
    """The files, folders and names of this project that a text has in backticks and that do not exist.

    ``NAME`` stands for any name, and a path can be one below ``tests/``.
    """
    words = [word for word in re.findall(r"`([\w/.]+)(?:\([^`]*\))?`", FENCE.sub("", text)) if "NAME" not in word]
    paths = [word for word in words if re.match(r"(fedapps|strategies|clients|tasks|sim|benchmarks)/", word)]
    names = [word for word in words if re.match(r"(fedapps|benchmarks)(\.\w+)+$", word)]
    missing = [path for path in paths if not (ROOT / path).exists() and not (ROOT / "tests" / path).exists()]
    return missing + [name for name in names if not _is_name(name)]


def _is_name(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one; entry points are no modules."""
    if name.removeprefix("fedapps.") in ("tasks", "methods", "trackers", "sections"):
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_files_and_names_of_the_code_exist(page):
    assert missing_code(page.read_text()) == []


def test_the_documentation_stays_short():
    """A page that grows takes the place of text that stands elsewhere, in ``--help``, or in a docstring."""
    sizes = {name(page): page.stat().st_size for page in PAGES if name(page).startswith(("README.md", "docs/"))}
    assert sum(sizes.values()) <= 115_000, sizes


def test_the_checks_see_what_is_wrong():
    assert missing_code("`clients/gone.py` `fedapps.base.gone` `fedapps.base.errors.DataError` `sim/`") == [
        "clients/gone.py",
        "fedapps.base.gone",
    ]
    assert broken_links("[a](gone.md) [b](README.md#gone) [c](#here)", ROOT, {"here"}) == ["gone.md", "README.md#gone"]
    assert unknown_in(["make", "gone"]) == ["gone"]
    assert unknown_in(shlex.split("python -m fedapps run gone --set gone=1")) == ["gone", "gone"]
    assert unknown_in(shlex.split("python -m fedapps run lqr --set gone.key=1")) == ["gone.key"]
    assert unknown_in(shlex.split("python -m fedapps run fedvln-houses:gone")) == ["fedvln-houses"]
    with pytest.raises(SystemExit):
        unknown_in(shlex.split("python -m fedapps gone"))
