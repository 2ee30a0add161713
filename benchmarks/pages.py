"""Pages of ``docs/`` from results and code: ``pages/NAME.md.jinja`` becomes ``docs/NAME.md``.

A template calls the functions of :mod:`benchmarks.numbers`, ``claims``, ``published`` and ``ranks``, and holds no
number of a result itself; that of strategies calls :func:`call`, and holds no argument of a constructor itself.
Those of :data:`_PARTS` are written between two marks of the page.
"""

import re
from functools import cache, partial
from inspect import Parameter, signature
from pathlib import Path
from textwrap import fill
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedapps import strategies

from . import claims, published, ranks  # noqa: F401 - their functions
from .numbers import FUNCTIONS

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).with_name("pages")
#: The templates of which only a part of a page is made.
_PARTS = {
    "readme.md.jinja": ROOT / "README.md",
    "use.md.jinja": ROOT / "docs" / "use.md",
    "slow_nodes.md.jinja": ROOT / "docs" / "slow_nodes.md",
    "privacy.md.jinja": ROOT / "docs" / "privacy.md",
    "fleet_over_time.md.jinja": ROOT / "docs" / "fleet_over_time.md",
}
_WIDTH = 120
_KEPT = re.compile(r"[\n|#<]|    |$")
#: What stands between the marks.
_MARKS = re.compile(r"(?<=by `make results` -->\n).*?(?=<!-- end -->)", re.DOTALL)


def write() -> None:
    """Write the pages that are stale."""
    texts = pages()
    for path in stale():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")


def stale() -> list[Path]:
    """The pages whose text is not that of their template and the results."""
    return [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


@cache
def pages() -> dict[Path, str]:
    """The text of each page."""
    environment = Environment(  # the pages are Markdown, made from our own files
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.globals.update(FUNCTIONS | {"call": call, "part": partial(call, optional=False)})
    texts = {}
    for path in sorted(TEMPLATES.rglob("*.md.jinja")):
        name = path.relative_to(TEMPLATES).as_posix()
        text = _wrapped(environment.get_template(name).render())
        if page := _PARTS.get(name):
            before, after = _MARKS.split(page.read_text(encoding="utf-8"))
            texts[page] = f"{before}\n{text}\n{after}"
        else:
            texts[ROOT / "docs" / name.removesuffix(".jinja")] = text
    return texts


def call(name: str, *, optional: bool = True) -> str:
    """How to make an object of a public class of ``strategies``: the names of its arguments, without the seed.

    Those with a default stand last, in brackets, if they are ``optional``, else they are left out. So are those that a
    strategy hands on to :class:`~fedapps.strategies.base.BaseStrategy`.
    """
    arguments = signature(getattr(strategies, name)).parameters.values()
    own = [one for one in arguments if one.kind is not Parameter.VAR_KEYWORD and one.name != "seed"]
    required = [one.name for one in own if one.default is Parameter.empty]
    others = ", ".join(one.name for one in own if one.default is not Parameter.empty)
    return f"`{name}({', '.join([*required, f'[{others}]'] if others and optional else required)})`"


def _wrapped(text: str) -> str:
    """The text with paragraphs and lists at the width of all pages; code, comments, and tables but for spaces, stay."""
    text = re.sub(r"(?<=\|)-+(?=\|)", "-", text.strip() + "\n")
    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    for i, part in enumerate(parts[::2]):
        blocks = re.split(r"(\n{2,}|\n$)", re.sub(r"\n{3,}", "\n\n", part.replace("  |", " |")))
        parts[2 * i] = "".join(block if _KEPT.match(block) else _refilled(block) for block in blocks)
    return "".join(parts)


def _refilled(block: str) -> str:
    items = [" ".join(item.split()) for item in re.split(r"\n(?=- )", block)]
    options: dict[str, Any] = {"width": _WIDTH, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(fill(item, subsequent_indent="  " * item.startswith("- "), **options) for item in items)
