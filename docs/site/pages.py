"""Pages of the documentation site, for MkDocs: the Markdown files of the repository, and a reference from the code.

The site has the folders of the repository, so a relative link means the same here and there. Links to files that are
not part of the site become plain text.
"""

import ast
import html
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedapps.config.keys import described
from fedapps.launch.choice import HEAD, choices, remarks
from fedapps.registry.methods import method_class, method_lines
from fedapps.registry.tasks import own_tasks, task_class

ROOT = Path(__file__).parents[2]
STRATEGIES = ROOT / "strategies" / "__init__.py"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md", "examples/README.md")
#: Modules whose public names are documented, by page; `strategies` documents each of its public names.
MODULES = {
    "fedapps": ("fedapps.api", "fedapps.trained.load", "fedapps.trained.adapt",
                "fedapps.trained.export", "fedapps.trained.watch", "fedapps.results", "fedapps.methods.base",
                "fedapps.trackers"),
    "clients": ("fedapps.clients.base", "fedapps.clients.local_part", "fedapps.clients.numpy_client",
                "fedapps.clients.training", "fedapps.clients.arrays", "fedapps.clients.guard"),
    "tasks": ("fedapps.tasks.base", "fedapps.tasks.profiles", "fedapps.base.options",
              "fedapps.tasks.trained", "fedapps.tasks.answers",
              *(task_class(name).trained_model.partition(":")[0] for name in own_tasks())),
}  # fmt: skip
_LINK = re.compile(r"(?<!!)\[((?:[^\]`]|`[^`]*`)*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, at their places in the repository, and the generated pages."""
    kept = [file for file in files if file.src_dir != config.docs_dir]
    paths = [*PAGES, *(path.relative_to(ROOT).as_posix() for path in _documents())]
    found = Files(kept + [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in paths])
    for path, text in generated():
        found.append(File.generated(config, path, content=text))
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to notebooks lead to their pages; links to files outside the site become text."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        path = target.partition("#")[0]
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        place = posixpath.normpath(posixpath.join(folder, path))
        if place.endswith(".ipynb"):
            return f"[{text}]({path.removesuffix('.ipynb')}.md)"
        if files.get_file_from_path(place) or not (ROOT / place).exists():
            return link[0]
        return text

    return _LINK.sub(replaced, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's search dialog for screen readers, and let the keyboard reach what scrolls."""
    named = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    return re.sub(r"(<pre[^>]*>(?:<span></span>)?<code)>", r'\1 tabindex="0">', named).replace(
        "<table>", '<table tabindex="0">'
    )


def generated() -> Iterator[tuple[str, str]]:
    """Paths and texts of the pages that are made from code and notebooks."""
    yield "reference/keys.md", keys_page(described())
    yield "reference/methods.md", methods_page()
    yield "reference/choice.md", choice_page()
    yield "reference/strategies.md", strategies_page()
    for name, modules in MODULES.items():
        yield f"reference/{name}.md", f"# {name}\n\n" + "\n\n".join(_documented(module, "##") for module in modules)
    for path in _notebooks():
        yield path.relative_to(ROOT).with_suffix(".md").as_posix(), notebook_page(path)


def keys_page(groups: Mapping[str, Mapping[str, str]]) -> str:
    """All keys of the run config, from the source of ``fedapps list --keys``."""
    lines = ["# Keys of the run config", "", "In parentheses: default; allowed values; search range of `fedapps tune`.",
             "The table of a task, method or tracker is named like it: `driving.horizon` is `horizon` in",
             "`[driving]`. `fedapps list --keys` prints this page."]  # fmt: skip
    for group, keys in groups.items():
        lines += ["", f"## {group.capitalize()}", ""]
        for key, text in keys.items():
            lines += [f"`{key}`", f":   {_escaped(text)}", ""]
    return "\n".join(lines) + "\n"


def methods_page() -> str:
    """Each method with its paper and options, as ``fedapps list METHOD`` gives them."""
    lines = ["# Methods and their papers"]
    options = described()
    for name, line in method_lines().items():
        kind = method_class(name)
        facts = {"Paper": kind.citation, "Task": kind.task, "Data": "in stages" if kind.needs_stages else ""}
        lines += ["", f"## {name}", "", _escaped(line), ""]
        lines += [f"- {fact}: {_escaped(text)}" for fact, text in facts.items() if text]
        for key, text in options.get(f"method {name}", {}).items():
            lines += ["", f"`{key}`", f":   {_escaped(text)}"]
    return "\n".join(lines) + "\n"


def choice_page() -> str:
    """The methods for each task, as ``fedapps list --for TASK`` gives them."""
    lines = ["# Methods by task", "", "Bytes are those of a node in a round, with the task's default model; `+` says",
             "what comes beside the parameters or the work of FedAvg."]  # fmt: skip
    for task in own_tasks():
        found = list(choices(task))
        table = [HEAD, ("---",) * len(HEAD), *(choice.cells for choice in found if not choice.refused)]
        lines += ["", f"## {task}", "", *(f"| {' | '.join(map(_escaped, row))} |" for row in table), ""]
        lines += [f"- {_escaped(remark)}" for remark in remarks(found)]
    return "\n".join(lines) + "\n"


def strategies_page() -> str:
    """Every public name of ``strategies``, from the module that has it."""
    imports = [one for one in ast.parse(STRATEGIES.read_text()).body if isinstance(one, ast.ImportFrom)]
    names = sorted(f"{one.module}.{name.name}" for one in imports for name in one.names)
    entries = (_documented(f"fedapps.strategies.{name}", "##") for name in names)
    return "# strategies\n\n`from fedapps.strategies import NAME` imports each of these.\n\n" + "\n\n".join(entries)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its texts, its code, and the outputs that it keeps."""
    parts = []
    for cell in nbformat.read(path, as_version=4).cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        parts += [shown for output in cell.get("outputs", []) if (shown := _shown(output))]
    return "\n\n".join(parts) + "\n"


def _shown(output: nbformat.NotebookNode) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if image := data.get("image/png"):
        return f'<img alt="The figure of this cell" src="data:image/png;base64,{"".join(image.split())}">'
    if table := data.get("text/html"):
        return re.sub(r"\s*\n\s*", " ", re.sub(r"<style.*?</style>", "", table, flags=re.DOTALL)).strip()
    return f"<pre><code>{html.escape(data['text/plain']).strip()}</code></pre>" if data["text/plain"] else ""


def _documented(name: str, heading: str) -> str:
    return f"::: {name}\n    options:\n      heading_level: {len(heading)}\n"


def _escaped(text: str) -> str:
    """Text in which only the code between backticks is Markdown."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"([\\*_\[\]<>|#])", r"\\\1", part) for i, part in enumerate(parts))


def _documents() -> list[Path]:
    folder = ROOT / "docs"
    kinds = ("*.md", "results/*.md", "*.png", "*.svg", "site/*.css", "site/*.js")
    return [path for kind in kinds for path in sorted(folder.glob(kind))]


def _notebooks() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.ipynb"))
