"""What the name of a metric tells a reader: a label, a unit, and whether more of it is better."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedapps.runs.continual import is_on_stage

#: What continual learning is measured by, without the split; see `fedapps.runs.continual`.
CONTINUAL = ("amse", "bwt", "fwt")
_FIRST = (*CONTINUAL, "static_parameters", "trainable_parameters")
_PREFERRED = ("test.elbo", "test.total_loss", "test.amse", "elbo", "total_loss", "amse")
_LABELS = {
    "elbo": "test ELBO loss",
    "test.elbo": "test ELBO loss",
    "closed_loop.start_rate": "lane changes started",
    "closed_loop.started": "lane changes started",
    "non_proactive.started": "lane changes started, non-proactive",
}
_ACRONYMS = {"elbo", "kl", "amse", "bwt", "fwt", "mse", "mae", "rmse", "sr", "osr", "spl", "f1", "auc", "ade", "fde"}
_LOSSES = {"loss", "elbo", "nll", "kl", "cost", "error", "err", "mse", "mae", "rmse", "reconstruction", "perplexity"}
_HARMS = {"time", "seconds", "collision", "collisions", "collided", "excess", "ade", "fde", "divergence"}
_LOWER = {*_LOSSES, *_HARMS, *CONTINUAL}
_SCORES = {"accuracy", "acc", "recall", "precision", "f1", "auc", "map", "bleu", "cider", "reward", "return"}
_HIGHER = _SCORES | {"success", "sr", "osr", "spl", "ndtw", "sdtw", "started"}
#: What comes before the metrics of the model that all nodes share, where nodes have one of their own too.
SHARED = "shared."
_LAST = ("validation.", SHARED)
_COUNTS = frozenset({"num-examples", "num_examples", "count"})


@dataclass(frozen=True)
class Metric:
    """A metric as it is shown. `better` is -1 where less is better, 1 where more is, 0 if unknown."""

    name: str
    label: str
    unit: str
    better: int

    @property
    def axis(self) -> str:
        """The label with its unit, as axes carry it."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def direction(self) -> str:
        return {-1: "lower is better", 0: "", 1: "higher is better"}[self.better]

    def best(self, values: Mapping[str, float]) -> str | None:
        """The key of the best finite value; None where fewer than two can be told apart."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        if not self.better or len(finite) < 2 or len(set(finite.values())) < 2:
            return None
        return max(finite, key=lambda key: self.better * finite[key])


def describe(name: str) -> Metric:
    """What is known about a metric from its name, e.g. `closed_loop.time_to_lane_change` is in seconds."""
    words = re.findall(r"[a-z]+\d?", name.lower().replace("start_rate", "started"))
    better = next((-1 if word in _LOWER else 1 for word in reversed(words) if word in _LOWER | _HIGHER), 0)
    unit = "s" if {"time", "seconds"} & set(words) else "m" if "distance" in words and "start" in words else ""
    spoken = re.sub(r"[_-]+|\.(?!\d)", " ", name).split()
    label = _LABELS.get(name) or " ".join(word.upper() if word in _ACRONYMS else word for word in spoken)
    return Metric(name, label, unit, better)


def measures(names: Iterable[str]) -> list[str]:
    """The different names, without those that only count examples or sessions, or belong to one stage of several."""
    return [n for n in dict.fromkeys(names) if re.split(r"[./]", n)[-1] not in _COUNTS and not is_on_stage(n)]


def columns(names: Iterable[str]) -> list[str]:
    """The `measures` in the order of a table's columns: continual learning first, validation and shared last."""
    ranks = {name: rank for rank, name in enumerate(_FIRST)}
    return sorted(measures(names), key=lambda n: (ranks.get(bare(n), len(ranks)), n.startswith(_LAST)))


def bare(name: str) -> str:
    """The name without the split `test.`, which tables over seeds leave out."""
    return name.removeprefix("test.")


def main_metric(names: Iterable[str]) -> str | None:
    """The metric a report leads with: the preferred one, else the first that is no count, if possible on test data."""
    found = sorted(measures(names), key=lambda name: name.startswith(_LAST))
    return next((name for name in _PREFERRED if name in found), found[0] if found else None)
