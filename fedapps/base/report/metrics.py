"""How metrics and methods are shown: label, unit and direction of a metric, by its name; colour and marker of a method.

The colours are those of Okabe & Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/, with brown
instead of yellow and black, which are hard to distinguish from the background and the text. They are ordered so that
adjacent colours differ strongly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F4F24")
_DASHES = ("-", "--", ":", "-.")
#: Length of a dash within five pixels, for methods that are not drawn as solid lines.
_STRIPES = {"--": "3px", ":": "1px", "-.": "2px"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEUTRAL = "#6b7280"
INK = "#1f2937"
#: Name of a metric measured on one stage: ``stage-<j>.<split>.<metric>``, stages counted from 1.
ON_STAGE = re.compile(r"stage-([1-9]\d*)\.(.+)")
#: Measures of continual learning, without the split; see :mod:`fedapps.runs.continual`.
CONTINUAL = ("amse", "bwt", "fwt")
_FIRST = (*CONTINUAL, "static_parameters", "trainable_parameters")
_PREFERRED = (
    *("test.elbo", "test.total_loss", "test.amse", "elbo", "total_loss", "amse"),
    *("val_unseen.sr", "val_unseen.bleu", "val_seen.sr", "val_seen.bleu"),
    *("test.final_global_accuracy", "final_global_accuracy"),  # without "final", that of the last stage alone
)
_SPELLED = {"elbo": "ELBO loss"} | {
    word.lower(): word
    for word in (
        *("KL", "AMSE", "BWT", "FWT", "MSE", "MAE", "RMSE", "F1", "AUC", "ADE", "FDE"),
        *("NE", "SR", "OSR", "SPL", "CLS", "nDTW", "sDTW", "BLEU"),
    )
}
_LOSSES = {"loss", "elbo", "nll", "cost", "error", "err", "mse", "mae", "rmse", "reconstruction", "perplexity"}
_OTHER_LOWER = {
    *("time", "seconds", "target", "collision", "collisions", "collided", "excess", "ade", "fde", "divergence", "ne")
}
_LOWER = {*_LOSSES, *_OTHER_LOWER, *CONTINUAL}
_SCORES = {"accuracy", "acc", "recall", "precision", "f1", "auc", "map", "bleu", "cider", "reward", "return"}
_HIGHER = _SCORES | {"success", "sr", "osr", "spl", "cls", "ndtw", "sdtw", "distinct", "started"}
#: The mean number of local optimizer steps behind the evaluated models (``fedapps.app.cost.steps_per_node``).
STEPS_PER_NODE = "steps_per_node"
#: What it took to reach the run's target (``fedapps.app.cost.cost_to_target``).
ROUNDS_TO_TARGET, STEPS_TO_TARGET, BYTES_TO_TARGET, TIME_TO_TARGET = (
    f"{cost}_to_target" for cost in ("rounds", "steps", "bytes", "time")
)
#: Simulated time from the start of the run until the end of its last round.
SIMULATED_TIME = "simulated_time"
#: Prefix of the metrics of the tenth of the nodes whose devices are slowest.
SLOWEST_TENTH = "slowest_tenth."
#: Prefix of the metrics of the tenth of the nodes with the worst values.
WORST_TENTH = "worst_tenth."
#: Prefix of the metrics of the shared model, for methods that also have a model per node or cluster.
SHARED = "shared."
#: Prefix of the metrics of nodes that have not taken part for several rounds (``fedapps.strategies.wire``).
STALE = "stale."
_LAST = ("validation.", SHARED, STALE, SLOWEST_TENTH, WORST_TENTH)
_COUNTS = frozenset({"num-examples", "num_examples", "count"})


@dataclass(frozen=True)
class PlotStyle:
    """How to draw a method: its colour, marker and dash pattern. A colour comes back with another marker and dash."""

    colour: str
    marker: str
    dash: str

    @property
    def background(self) -> str:
        """The background of its swatch in CSS: the colour, with stripes if the method is not drawn as a solid line."""
        if self.dash not in _STRIPES:
            return self.colour
        return f"repeating-linear-gradient(90deg,{self.colour} 0 {_STRIPES[self.dash]},#fff 0 5px)"


def plot_styles(methods: Sequence[str]) -> dict[str, PlotStyle]:
    """The style of each method, determined by its position."""
    return {
        method: PlotStyle(
            _COLOURS[index % len(_COLOURS)],
            _MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)],
            _DASHES[index // len(_COLOURS) % len(_DASHES)],
        )
        for index, method in enumerate(methods)
    }


@dataclass(frozen=True)
class Metric:
    """How to show a metric.

    Attributes
    ----------
    name : str
        Name in the files.
    label : str
        Name for readers.
    unit : str
        Unit; may be empty.
    better : int
        -1 if lower is better, 1 if higher is better, 0 if unknown.
    """

    name: str
    label: str
    unit: str
    better: int

    @property
    def axis(self) -> str:
        """The label with the unit, for axes and table headers."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def title(self) -> str:
        """The label with unit and direction, for titles of figures."""
        return f"{self.axis}  ({self.direction})" if self.better else self.axis

    @property
    def direction(self) -> str:
        return {-1: "lower is better", 0: "", 1: "higher is better"}[self.better]

    def best(self, values: Mapping[str, float]) -> str | None:
        """The key of the best finite value; None with fewer than two different values or an unknown direction."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        if not self.better or len(finite) < 2 or len(set(finite.values())) < 2:
            return None
        return max(finite, key=lambda key: self.better * finite[key])


def describe(name: str) -> Metric:
    """Derive how to show a metric from its name, e.g. ``closed_loop.time_to_lane_change`` is in seconds."""
    words = re.findall(r"[a-z]+\d?", name.lower().replace("start_rate", "started"))
    better = next((-1 if word in _LOWER else 1 for word in reversed(words) if word in _LOWER | _HIGHER), 0)
    in_metres = {"distance", "start"} <= set(words) or "ne" in words
    unit = "s" if {"time", "seconds"} & set(words) else "m" if in_metres else ""
    spoken = re.sub(r"[_-]+|\.(?!\d)", " ", name).split()
    label = " ".join(_SPELLED.get(word, word) for word in spoken)
    return Metric(name, label, unit, better)


def is_on_stage(name: str) -> bool:
    """Whether a metric is measured on one stage; tables and learning curves omit these."""
    return ON_STAGE.fullmatch(name) is not None


def measures(names: Iterable[str]) -> list[str]:
    """The distinct names, without counts of examples and without metrics of single stages."""
    return [n for n in dict.fromkeys(names) if re.split(r"[./]", n)[-1] not in _COUNTS and not is_on_stage(n)]


def columns(names: Iterable[str], main: Iterable[str] = ()) -> list[str]:
    """The :func:`measures` in the order of table columns: continual learning, the ``main`` ones, validation and shared
    last.
    """
    ranks = {bare(name): rank for rank, name in enumerate([*_FIRST, *main])}
    return sorted(measures(names), key=lambda n: (ranks.get(bare(n), len(ranks)), n.startswith(_LAST)))


def bare(name: str) -> str:
    """The name without the prefix ``test.``, as in comparisons."""
    return name.removeprefix("test.")


def main_metric(names: Iterable[str]) -> str | None:
    """The main metric of a report: a preferred one, or else the first measure, on test data if possible."""
    known = sorted(measures(names), key=lambda name: name.startswith(_LAST))
    return next((name for name in _PREFERRED if name in known), known[0] if known else None)
