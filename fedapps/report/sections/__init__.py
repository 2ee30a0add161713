"""The sections of a report. Each is a function from the run to markup; None if there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable

from fedapps.report.run_data import RunData

from . import (
    client_map,
    closed_loop,
    clusters,
    comparison,
    configuration,
    curves,
    headline,
    matches,
    matrices,
    rates,
    refused,
    scenes,
    seeds,
    spread,
    traffic,
    trajectories,
    varied,
)

SECTIONS: tuple[Callable[[RunData], str | None], ...] = (
    headline.section,
    varied.section,
    comparison.section,
    matrices.section,
    seeds.section,
    curves.section,
    spread.section,
    clusters.section,
    closed_loop.section,
    trajectories.section,
    scenes.section,
    matches.section,
    client_map.section,
    rates.section,
    traffic.section,
    refused.section,
    configuration.section,
)
"""The sections in the order of the page: results first, then details."""
