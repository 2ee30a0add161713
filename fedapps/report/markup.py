"""HTML building blocks of the sections. They escape plain text; parameters described as markup must be escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .palette import PlotStyle

#: Length of a dash within five pixels, for methods that are not drawn as solid lines.
_STRIPES = {"--": "3px", ":": "1px", "-.": "2px"}


def render_section(identity: str, title: str, *body: str, lead: str = "") -> str:
    """A section with a heading; ``lead`` is plain text below the heading, ``body`` is markup."""
    opening = f'<section id="{identity}"><h2>{escape(title)}</h2>'
    return "\n".join([opening, f'<p class="lead">{escape(lead)}</p>' if lead else "", *body, "</section>"])


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1, caption: str = "") -> str:
    """A table that scrolls horizontally on narrow screens.

    Parameters
    ----------
    head : sequence of str
        Column titles, as markup.
    rows : iterable of sequences of str
        Cells, as markup.
    texts : int
        Number of columns, from the left, that hold text; the others are aligned as numbers.
    caption : str
        Plain text for screen readers.
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
    """The methods and their colours; empty for a single method."""
    if len(styles) < 2:
        return ""
    items = "".join(f"<li>{swatch(style)}{escape(name)}</li>" for name, style in styles.items())
    return f'<ul class="legend">{items}</ul>'


def panels(figures: Sequence[str], *, wide: bool = False) -> str:
    """Figures side by side, as many per row as fit on the screen."""
    return f'<div class="panels{" wide" if wide else ""}">' + "\n".join(figures) + "</div>"


def details(title: str, *body: str) -> str:
    """Content that is collapsed until the reader opens it."""
    return f"<details><summary>{escape(title)}</summary>" + "\n".join(body) + "</details>"
