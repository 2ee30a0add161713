"""The few pieces of HTML that sections are made of. Everything that comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .palette import PlotStyle

#: How much of five pixels a swatch fills for methods that are not drawn as a solid line.
_STRIPES = {"--": "3px", ":": "1px", "-.": "2px"}


def render_section(identity: str, title: str, *body: str, lead: str = "") -> str:
    """A section with its heading; `lead` is a plain sentence below it."""
    opening = f'<section id="{identity}"><h2>{escape(title)}</h2>'
    return "\n".join([opening, f'<p class="lead">{escape(lead)}</p>' if lead else "", *body, "</section>"])


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1, caption: str = "") -> str:
    """A table that scrolls sideways on a narrow screen.

    Args:
        head: the column titles, as markup.
        rows: the cells, as markup: escape what comes from a run.
        texts: how many columns, from the left, hold text; the others are aligned as numbers.
        caption: said to screen readers.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [""] * texts + [' class="n"'] * (len(cells) - texts)
        return f"<tr>{''.join(f'<{tag}{k}>{c}</{tag}>' for k, c in zip(kinds, cells, strict=True))}</tr>"

    label = f'<caption class="unseen">{escape(caption)}</caption>' if caption else ""
    body = "\n".join(line(row, "td") for row in rows)
    content = f"{label}<thead>{line(head, 'th')}</thead>\n<tbody>\n{body}\n</tbody>"
    return f'<div class="scroll"><table>{content}</table></div>'


def swatch(style: PlotStyle) -> str:
    stripes = f"repeating-linear-gradient(90deg,{style.colour} 0 {_STRIPES.get(style.dash)},#fff 0 5px)"
    return f'<i class="swatch" style="background:{stripes if style.dash in _STRIPES else style.colour}"></i>'


def legend(styles: Mapping[str, PlotStyle]) -> str:
    """The methods and their colours; nothing for a single one."""
    if len(styles) < 2:
        return ""
    items = "".join(f"<li>{swatch(style)}{escape(name)}</li>" for name, style in styles.items())
    return f'<ul class="legend">{items}</ul>'


def panels(figures: Sequence[str], *, wide: bool = False) -> str:
    """Figures beside one another, as many as the screen has room for."""
    return f'<div class="panels{" wide" if wide else ""}">' + "\n".join(figures) + "</div>"


def details(title: str, *body: str) -> str:
    """Something a reader may open."""
    return f"<details><summary>{escape(title)}</summary>" + "\n".join(body) + "</details>"
