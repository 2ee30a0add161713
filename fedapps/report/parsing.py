"""Parse the JSON of a run folder into records. No other module knows the names of the fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .json_files import Entry
from .records import (
    CheckedClaim,
    Comparison,
    Course,
    Curve,
    Difference,
    FailedRun,
    HeldOut,
    HeldOutMetric,
    LeftOut,
    Matrix,
    MethodSummary,
    Metrics,
    NodeRecord,
    PairedTest,
    Refusal,
    RoundRecord,
    Spread,
    Varied,
)


def read_round(entry: Entry) -> RoundRecord:
    strategy = entry.inner("strategy")
    return RoundRecord(
        method=entry.text("method"),
        round=entry.integer("round"),
        stage=entry.text("stage", ""),
        seconds=entry.number("seconds", 0.0),
        bytes_down=entry.number("bytes_down", 0),
        bytes_up=entry.number("bytes_up", 0),
        replies=entry.integer("replies", 0),
        refused=tuple(Refusal(item.text("node"), item.text("reason")) for item in entry.items("refused")),
        left_out=tuple(
            LeftOut(item.text("node"), item.text("metric"), item.text("value")) for item in entry.items("left_out")
        ),
        train=entry.inner("train").scalars(),
        evaluate=entry.inner("evaluate").scalars(),
        rates=strategy.inner("rates").scalars(),
        averaged=strategy.words("averaged"),
        timings=entry.inner("timings").scalars(),
        clock=entry.number("clock", math.nan),
    )


def read_node(entry: Entry) -> NodeRecord:
    metrics = entry.inner("metrics")
    return NodeRecord(
        method=entry.text("method"),
        round=entry.integer("round"),
        node=entry.text("node"),
        phase=entry.text("phase"),
        num_examples=entry.number("num_examples", 0),
        metrics=metrics.scalars(),
        series=metrics.series(),
        groups=entry.inner("groups").texts(),
        bytes_up=entry.number("bytes_up", 0),
        timings=entry.inner("timings").scalars(),
        seconds=entry.number("seconds", math.nan),
        staleness=entry.number("staleness", 0.0),
    )


def read_methods(summary: Entry) -> dict[str, MethodSummary]:
    methods = summary.inner("methods")
    return {name: _method(methods.inner(name)) for name in methods.fields}


def _method(entry: Entry) -> MethodSummary:
    refused = entry.fields.get("refused", 0)
    return MethodSummary(
        rounds=entry.integer("rounds", 0),
        final=entry.inner("final").scalars(),
        best=entry.inner("best").scalars(),
        seconds=entry.number("seconds", 0.0),
        bytes_up=entry.number("bytes_up", 0),
        bytes_down=entry.number("bytes_down", 0),
        privacy=entry.text("privacy", ""),
        held_out=_held_out_of_run(entry.inner("held_out")),
        refused=len(refused) if isinstance(refused, list) else entry.integer("refused", 0),
    )


def read_test(entry: Entry) -> PairedTest:
    return PairedTest(
        metric=entry.text("metric"),
        a=entry.text("a"),
        b=entry.text("b"),
        seeds=entry.integer("seeds"),
        mean_difference=entry.number("mean_difference"),
        low=entry.number("low"),
        high=entry.number("high"),
        p=entry.number("p"),
        p_holm=entry.number("p_holm"),
        nodes_lower=entry.integer("nodes_lower", 0),
        nodes_higher=entry.integer("nodes_higher", 0),
    )


def read_claim(entry: Entry) -> CheckedClaim:
    return CheckedClaim(
        line=entry.text("claim"),
        metric=entry.text("metric"),
        method=entry.text("method"),
        rival=entry.text("rival"),
        by=entry.number("by"),
        verdict=entry.text("verdict"),
        seeds=entry.integer("seeds"),
        difference=entry.number("difference"),
        low=entry.number("low"),
        high=entry.number("high"),
    )


def read_tables(entry: Entry) -> dict[str, Metrics]:
    return {method: entry.inner(method).scalars() for method in entry.fields}


def read_comparison(entry: Entry | None) -> Comparison | None:
    if entry is None:
        return None
    recipe, lines = entry.text("recipe", ""), entry.items("rows")
    varied = entry.inner("varied")
    if not varied.fields:
        return _comparison(entry, recipe, lines)
    values = []
    for part in varied.items("values"):
        value = part.fields.get("value")
        if not isinstance(value, bool | int | float | str):
            raise part.fail("value", value, "a number, a string, true or false")
        there = [line for line in lines if line.inner("varied").fields.get("value") == value]
        values.append((value, _comparison(part, recipe, there)))
    return replace(_comparison(entry, recipe, []), varied=Varied(varied.text("key"), tuple(values)))


def _comparison(entry: Entry, recipe: str, lines: Sequence[Entry]) -> Comparison:
    runs: dict[str, dict[int, Metrics]] = {}
    found: dict[str, dict[str, list[Matrix]]] = {}
    for line in lines:
        method = line.text("method")
        runs.setdefault(method, {})[line.integer("seed")] = line.inner("metrics").scalars()
        matrices = line.inner("matrices")
        for metric in matrices.fields:
            found.setdefault(method, {}).setdefault(metric, []).append(matrices.matrix(metric))
    return Comparison(
        recipe=recipe,
        runs=runs,
        matrices={method: {metric: np.mean(of, axis=0) for metric, of in row.items()} for method, row in found.items()},
        table=_spreads(entry.inner("table")),
        paper=read_tables(entry.inner("paper")),
        tests=tuple(map(read_test, entry.items("tests"))),
        references=_spreads(entry.inner("references")),
        claims=tuple(map(read_claim, entry.items("claims"))),
        curves=_curves(entry.inner("curves")),
        nodes=_node_means(entry.inner("nodes")),
        notes=entry.words("notes"),
        failed=tuple(
            FailedRun(run.text("method"), run.integer("seed"), run.integer("round"), run.text("reason"))
            for run in entry.items("failed")
        ),
        held_out={name: _held_out(entry.inner("held_out").inner(name)) for name in entry.inner("held_out").fields},
    )


def _held_out(entry: Entry) -> HeldOut:
    metrics = entry.inner("metrics")
    found = {name: metrics.inner(name) for name in metrics.fields}
    return HeldOut(
        epochs=entry.integer("epochs"),
        nodes=entry.integer("nodes"),
        metrics={
            name: HeldOutMetric(
                shared=_spread(one.inner("shared")),
                adapted=_spread(one.inner("adapted")),
                local=_spread(one.inner("local")),
                gain=_difference(one.inner("gain")),
                lead=_difference(one.inner("lead")),
            )
            for name, one in found.items()
        },
    )


def _held_out_of_run(entry: Entry) -> HeldOut | None:
    """What the summary of a run has: the means over nodes of a single seed, and the nodes."""
    if not entry.inner("nodes").fields:
        return None
    shared, adapted, local = (entry.inner(model).scalars() for model in ("shared", "adapted", "local"))
    return HeldOut(
        epochs=entry.integer("epochs"),
        nodes=len(entry.inner("nodes").fields),
        metrics={
            name: HeldOutMetric(
                shared=Spread(shared[name], math.nan),
                adapted=Spread(value, math.nan),
                local=Spread(local[name], math.nan),
                gain=Difference(value - shared[name], math.nan, math.nan),
                lead=Difference(value - local[name], math.nan, math.nan),
            )
            for name, value in adapted.items()
            if name in shared and name in local
        },
    )


def _spreads(table: Entry) -> dict[str, dict[str, Spread]]:
    spreads: dict[str, dict[str, Spread]] = {}
    for name in table.fields:
        row = table.inner(name)
        cells = {metric: row.inner(metric) for metric in row.fields}
        spreads[name] = {metric: _spread(cell) for metric, cell in cells.items()}
    return spreads


def _spread(entry: Entry) -> Spread:
    finished, planned = entry.integer("finished", 0), entry.integer("planned", 0)
    return Spread(entry.number("mean"), entry.number("std"), entry.number("half", math.nan), finished, planned)


def _difference(entry: Entry) -> Difference:
    return Difference(entry.number("mean"), entry.number("low"), entry.number("high"))


def _curves(entry: Entry) -> dict[str, dict[str, Course]]:
    found: dict[str, dict[str, Course]] = {}
    for method in entry.fields:
        for metric in entry.inner(method).fields:
            course = entry.inner(method).inner(metric)
            points, paired = course.series(), course.inner("paired").series()
            found.setdefault(method, {})[metric] = Course(
                rounds=_rounds(points),
                mean=points.get("mean", ()),
                half=points.get("half", ()),
                changed=tuple(map(int, points.get("changed", ()))),
                paired=Curve(_rounds(paired), paired.get("mean", ())),
            )
    return found


def _rounds(points: Mapping[str, Sequence[float]]) -> tuple[int, ...]:
    return tuple(map(int, points.get("rounds", ())))


def _node_means(entry: Entry) -> dict[str, dict[str, Metrics]]:
    return {method: read_tables(entry.inner(method)) for method in entry.fields}
