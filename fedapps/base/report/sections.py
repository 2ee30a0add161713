"""What a section of a report sees of a run, and HTML from templates.

The parts that all sections are made of stand in ``templates/parts.html.md``.

The templates are HTML, CSS and JavaScript. Their names end in .md because the report of a deployed run is written from
a Flower app bundle, which carries no such files (``flwr.common.constant.FAB_INCLUDE_PATTERNS``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedapps.base.errors import headline_of

from .formats import counted
from .tables import Strong

_PARTS = Path(__file__).with_name("templates")


class NodeResult(Protocol):
    """What a node reported in an evaluation."""

    @property
    def numbers(self) -> Mapping[str, float]:
        """The metrics that are single numbers."""

    @property
    def series(self) -> Mapping[str, tuple[float, ...]]:
        """The metrics with a number for each session or class."""

    @property
    def cluster(self) -> str:
        """The cluster whose model the node uses; empty under methods without clusters."""


class ReportedRun(Protocol):
    """The results of a run, which may be unfinished; those of :class:`fedapps.report.run_data.RunData`."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods with results, in the order of the config."""

    @property
    def traces(self) -> Mapping[tuple[str, str], Path]:
        """The ``traces.safetensors`` by method and node."""

    @property
    def references(self) -> Mapping[str, Mapping[str, float]]:
        """The metrics of floors and ceilings by their names."""

    @property
    def seed_metrics(self) -> Mapping[str, Mapping[int, Mapping[str, float]]]:
        """The final metrics of the runs of a comparison by method and seed; empty for a run."""

    def last_evaluations(self) -> Mapping[str, Mapping[str, NodeResult]]:
        """The last evaluation of each node, by method and node."""

    def final_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The final metrics of each method."""


def render(folder: Path, template: str, **values: Any) -> str:
    """The text of a template of a folder, such as ``page.html.md``. Values are escaped unless they are ``Markup``."""
    return _environment(folder).get_template(template).render(values)


def section_markup(folder: Path, name: str, **values: Any) -> Markup:
    """The markup of a section: the macro of this name in ``sections.html.md`` of a folder; see :func:`render`."""
    return Markup(getattr(_environment(folder).get_template("sections.html.md").module, name)(**values))


def part(name: str, *values: Any, **named: Any) -> Markup:
    """The markup of one of the parts; see :func:`render`."""
    return Markup(getattr(_environment(_PARTS).get_template("parts.html.md").module, name)(*values, **named))


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, _PARTS]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"counted": counted, "headline_of": headline_of}
    environment.tests |= {"strong": lambda cell: isinstance(cell, Strong)}
    return environment
