"""What a section of a report sees of a run: results, and arrays in ``traces.safetensors``; and HTML from templates.

The parts that all sections are made of stand in ``templates/parts.html.md``.

The templates are HTML, CSS and JavaScript. Their names end in .md because the report of a deployed run is written from
a Flower app bundle, which carries no such files (``flwr.common.constant.FAB_INCLUDE_PATTERNS``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapps.base.errors import ReportError, headline_of

from .numbers import counted
from .tables import Strong

Array = npt.NDArray[np.float64]
_PARTS = Path(__file__).with_name("templates")


class Arrays:
    """The arrays of one ``traces.safetensors``. All errors name the file and the array.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    ReportError
        If the file is not a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self._where = "/".join(path.parts[-4:])
        try:
            self._arrays: Mapping[str, npt.NDArray[np.generic]] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ReportError(f"{self._where}: not a safetensors file: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __contains__(self, key: str) -> bool:
        return key in self._arrays

    def get(self, key: str, *shape: int | None) -> Array:
        """An array as float64.

        Parameters
        ----------
        key : str
            Name of the array.
        *shape : int or None
            Required shape; None: any length.

        Raises
        ------
        ReportError
            If the array is missing or has a different shape.
        """
        if key not in self._arrays:
            raise self.fail(key, "is missing")
        array = self._arrays[key].astype(np.float64)
        fits = array.ndim == len(shape) and all(
            want in (None, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise self.fail(key, f"has shape {array.shape}; it must be ({wanted})")
        return array

    def text(self, key: str) -> str:
        """The text stored in an array of UTF-8 bytes.

        Raises
        ------
        ReportError
            If the array is missing or not valid UTF-8.
        """
        raw = self._bounded(key, self.get(key, None), 255)
        try:
            return raw.astype(np.uint8).tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(key, f"is not UTF-8: {error}") from error

    def pixels(self, key: str, *shape: int | None) -> npt.NDArray[np.uint8]:
        """Image data as uint8; see :meth:`get`.

        Raises
        ------
        ReportError
            As :meth:`get`, and if a value is not a whole number from 0 to 255.
        """
        return self._bounded(key, self.get(key, *shape), 255).astype(np.uint8)

    def indices(self, key: str, below: int, *shape: int | None) -> npt.NDArray[np.int64]:
        """Indices from 0 to ``below`` - 1; see :meth:`get`.

        Raises
        ------
        ReportError
            As :meth:`get`, and if a value is not such an index.
        """
        return self._bounded(key, self.get(key, *shape), below - 1).astype(np.int64)

    def _bounded(self, key: str, array: Array, most: int) -> Array:
        if not ((array >= 0) & (array <= most) & (array == np.floor(array))).all():
            raise self.fail(key, f"must hold whole numbers from 0 to {most}")
        return array

    def fail(self, key: str, wrong: str) -> ReportError:
        """The exception to raise for an invalid array."""
        return ReportError(f"{self._where}: {key!r} {wrong}")


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
