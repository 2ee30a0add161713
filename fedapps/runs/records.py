"""The files of a run folder as records: those that the strategy reports, with the method that they belong to.

What :class:`fedapps.runs.run_folder.RunFolder` writes is a :class:`fedapps.strategies.RoundReport`; what is read here
is the same class, checked by pydantic. A field that is added there is written and read without a change here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from fedapps.base.errors import ReportError
from fedapps.base.text_files import shown
from fedapps.strategies import RoundReport
from fedapps.strategies.checks import LARGEST_COUNT
from fedapps.strategies.records import NodeReport

from .lines import REMEDY, is_record, whole_lines

Record = TypeVar("Record")
#: A number; null in a file is NaN.
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Count = Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT)]
Metrics = Mapping[str, Number]
_LARGEST = 1e308


def _numbers_or_lists(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(_number(name, one) for one in value) if isinstance(value, list) else _number(name, value)
        for name, value in metrics.items()
    }


def _number(name: str, value: object) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or _LARGEST < abs(value) < math.inf:
        raise ValueError(f"{name!r} is {shown(value)}; it must be a number of at most 1e308, or a list of them")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """A sum of secure aggregation: of ``neighbours + 1`` shares of a secret ``threshold`` give it, both 0 without keys.

    The values of an exchange have the names of :class:`fedapps.strategies.records.Exchange`.
    """

    cohort: str = ""
    neighbours: Count = 0
    threshold: Count = 0
    exchanges: Mapping[str, Metrics] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """What some strategies report of a round: rates, relative to the largest, averaged tiers, and secure sums."""

    rates: Metrics = field(default_factory=dict)
    secagg: tuple[SecureSum, ...] = ()
    averaged: Annotated[list[str], BeforeValidator(lambda names: names or [])] = field(default_factory=list)


@dataclass(kw_only=True)
class RoundRecord(RoundReport):
    """A line of ``metrics.jsonl``: the report of a round of a method, without its nodes."""

    method: str
    round: Count
    stage: str = ""
    seconds: Number = 0.0
    bytes_down: Count = 0
    bytes_up: Count = 0
    replies: Count = 0
    train: dict[str, Number] = field(default_factory=dict)
    evaluate: dict[str, Number] = field(default_factory=dict)
    strategy: StrategyFacts = field(default_factory=StrategyFacts)  # type: ignore[assignment]  # a dict in a report
    timings: dict[str, Number] = field(default_factory=dict)
    clock: Number = math.nan


@dataclass(frozen=True, kw_only=True)
class NodeRecord(NodeReport):
    """A line of ``nodes.jsonl``: the reply of a node in one phase of a round of a method."""

    method: str
    round: Count
    num_examples: Number = 0.0
    metrics: Annotated[Mapping[str, Any], AfterValidator(_numbers_or_lists)] = field(default_factory=dict)
    bytes_up: Count = 0
    timings: Metrics = field(default_factory=dict)
    seconds: Number = math.nan
    staleness: Count = 0

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The metrics that are single numbers."""
        return {name: value for name, value in self.metrics.items() if not isinstance(value, tuple)}

    @cached_property
    def series(self) -> Mapping[str, tuple[float, ...]]:
        """The metrics with a number for each session or class."""
        return {name: value for name, value in self.metrics.items() if isinstance(value, tuple)}

    @property
    def cluster(self) -> str:
        """The cluster whose model the node uses; empty under methods without clusters."""
        return self.groups.get("cluster", "")


@dataclass(frozen=True, kw_only=True)
class HeldOutNodes:
    """What a method gives to nodes that were held out of all rounds.

    ``nodes`` has the metrics by node and model; ``shared``, ``adapted`` and ``local`` are the means over the nodes with
    the received, the adapted and a locally trained model.
    """

    epochs: Count = 0
    nodes: Mapping[str, Mapping[str, Metrics]] = field(default_factory=dict)
    shared: Metrics = field(default_factory=dict)
    adapted: Metrics = field(default_factory=dict)
    local: Metrics = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """Final results and costs of a finished method; ``privacy`` is the guarantee of differential privacy, if any."""

    rounds: Count = 0
    final: Metrics = field(default_factory=dict)
    seconds: Number = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    refused: Count = 0
    privacy: str = ""
    held_out: HeldOutNodes = field(default_factory=HeldOutNodes)


@dataclass(frozen=True, kw_only=True)
class Started:
    """The content of ``started.json`` that reports need: rounds and simulated seconds before the run by method."""

    rounds: Mapping[str, Count] = field(default_factory=dict)
    clock: Metrics = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The content of ``summary.json``: the methods that have finished."""

    task: str = ""
    methods: Mapping[str, MethodSummary] = field(default_factory=dict)


def read_json(path: Path, kind: type[Record]) -> Record | None:
    """Read a file with one JSON object as a record; None if the file does not exist.

    Raises
    ------
    ReportError
        If the file is not JSON, or a field is missing or malformed.
    """
    return parsed(path.read_bytes(), str(path), kind) if path.exists() else None


def read_lines(path: Path, kind: type[Record]) -> tuple[list[Record], bool]:
    """Read a ``.jsonl`` file with a record on each line; blank lines are skipped.

    Parameters
    ----------
    path : Path
        The file; treated as empty if it does not exist.
    kind : type
        The class of the records.

    Returns
    -------
    (list of records, bool)
        The records, and whether an incomplete last line (without newline, not JSON) was skipped.

    Raises
    ------
    ReportError
        If any other line is malformed; the message says what to do.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(parsed(line, str(path), kind, first_line=number))
        except ReportError as error:
            if number == len(lines):
                return records, True
            damaged = number in whole_lines(path, is_record)[1]
            raise ReportError(f"{error}; {REMEDY if damaged else 'restore the file from a backup'}") from error
    return records, False


def parsed(raw: bytes, name: str, kind: type[Record], first_line: int = 0) -> Record:
    """The record in the JSON of a file. Errors name the file and, from a ``first_line`` above 0, the line."""
    where = f"{name}:{first_line}" if first_line else name
    try:
        adapter: TypeAdapter[Record] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
        return adapter.validate_json(raw.decode("utf-8"), strict=True)
    except UnicodeDecodeError as error:
        raise ReportError(f"{where}: not UTF-8: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            problem = str(first["ctx"]["error"])
            line = re.search(r"line (\d+) ", problem)
            number = max(first_line, 1) + (int(line[1]) if line else 1) - 1
            raise ReportError(f"{name}:{number}: not JSON: {problem.replace(line[0] if line else '', '')}") from error
        raise ReportError(f"{where}: {_problem(first)}") from error


def _problem(error: ErrorDetails) -> str:
    """What is wrong with which field."""
    key, value = ".".join(map(str, error["loc"])), shown(error["input"])
    if error["type"] == "missing":
        return f"{key!r} is missing"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    must = error["msg"].replace("Input should", "it must")
    if error["type"] in ("dataclass_type", "dict_type"):
        must = "it must be a JSON object"
    return f"{key!r} is {value}; {must}" if key else f"the content is {value}; {must}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
