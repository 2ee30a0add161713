"""All methods side by side on every data set, and their ranks over data sets (Demšar, 2006).

python -m benchmarks.ranks --json ranks.json

A data set is one block: the mean over its seeds ranks the methods, 1 is best. Friedman's test in the form of Iman and
Davenport says whether the ranks differ at all; two methods differ if their mean ranks are a critical difference apart
(Nemenyi). J. Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, Section 3.2.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy.stats import f, friedmanchisquare, rankdata, studentized_range

from fedapps.base.report.metrics import WORST_TENTH
from fedapps.base.report.numbers import Estimate

from .commands import new_parser, run, show
from .numbers import FUNCTIONS, direction, markdown, shown
from .results import FOLDER, Result, result


@dataclass(frozen=True)
class DataSet:
    """A data set on which all methods are compared.

    Parameters
    ----------
    experiment : str
    name : str
        For readers.
    own, common : str
        The metrics on a node's own data, and on data common to all nodes, which may be empty.
    """

    experiment: str
    name: str
    own: str
    common: str = ""

    @property
    def short(self) -> str:
        """The name without the kind of metric."""
        return self.name.removesuffix(" (loss)").removesuffix(" (error)")

    @property
    def known(self) -> bool:
        """Whether there is a result."""
        return (FOLDER / f"{self.experiment}.json").exists()

    def rows(self) -> dict[str, dict[str, Estimate]]:
        """The estimates by the name of a method and by column, the best method on its own data first.

        The columns are ``own``, ``common``, ``worst``, the worst tenth of the nodes on their own data, ``new``, the
        adapted model of nodes that were held out, ``bytes``, ``steps`` and ``seconds``; unknown ones are left out.
        """
        content = result(self.experiment)
        metrics = {"own": self.own, "common": self.common, "worst": WORST_TENTH + self.own}
        metrics |= {"bytes": "bytes_per_client_round", "steps": "steps_per_node", "seconds": "seconds"}
        rows = {}
        for label, of_method in content.methods.items():
            if self.own in of_method and ": " not in label:
                row = {column: of_method[metric] for column, metric in metrics.items() if metric in of_method}
                new = content.methods.get(f"{label}: adapted", {}).get(self.own)
                rows[name_of(label)] = row | ({"new": new} if new else {})
        return dict(sorted(rows.items(), key=lambda row: -self.better * row[1]["own"].mean))

    def lacking(self) -> set[str]:
        """The names of the methods of which runs failed: they are not ranked."""
        return {name_of(one["method"]) for one in result(self.experiment).failed}

    def at_end(self) -> set[str]:
        """The names of the methods of which a tuned setting lies near an end of its range."""
        if not (FOLDER / f"{self.experiment}-tune.json").exists():
            return set()
        return {name_of(tuned["method"]) for tuned in result(f"{self.experiment}-tune").rows if tuned["near_end"]}

    @property
    def better(self) -> int:
        """1 if higher is better on the own data, -1 if lower is."""
        return direction(self.own)

    def floors(self) -> set[str]:
        """References without training, whose names are words."""
        return {name for name in self.rows() if " " in name.removesuffix(" (SGD)")}

    def as_good(self, column: str) -> tuple[str, list[str]]:
        """The best method in a column, and those whose paired difference to it may be 0 (95 % interval)."""
        rows = {method: row[column] for method, row in self.rows().items() if column in row}
        rows = {method: one for method, one in rows.items() if method not in self.lacking() | self.floors()}
        best = max(rows, key=lambda method: self.better * rows[method].mean)
        paired = Result("", "", methods={method: {column: one} for method, one in rows.items()})
        near = []
        for method in rows:
            gap = paired.difference(column, best, method) if method != best else None
            if gap and gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high:
                near.append(method)
        return best, near

    def not_below_best(self, column: str) -> list[str]:
        """The methods of :meth:`as_good`, none where no method has the column."""
        if not any(column in row for row in self.rows().values()):
            return []
        best, near = self.as_good(column)
        return [best, *near]


DATA_SETS = (
    DataSet("methods-digits", "Digits, few classes a node (α = .1)", "local_accuracy", "global_accuracy"),
    DataSet("methods-digits-even", "Digits, more even (α = 1)", "local_accuracy", "global_accuracy"),
    DataSet("methods-texts", "Texts: AG News, 50 nodes", "local_accuracy", "global_accuracy"),
    DataSet("methods-places", "Places: simulated cities", "recall_at_1"),
    DataSet("methods-drivers", "Recorded drivers (loss)", "elbo"),
    DataSet("methods-social", "Social navigation (error)", "mse"),
    DataSet("methods-lqr", "LQR (loss)", "total_loss"),
)


#: The columns that the page shows: on a node's own data, on common data, for the worst tenth of the nodes, and for new
#: nodes that adapt.
_SHOWN = ("own", "common", "worst", "new")


def name_of(label: str) -> str:
    """The name of a method without its arguments; that of FedAvg says so if a label fixes plain SGD."""
    name = label.partition("(")[0]
    return f"{name} (SGD)" if name == "fedavg" and "run.optimizer=sgd" in label else name


def known_data_sets() -> list[DataSet]:
    """The data sets with a result."""
    return [data for data in DATA_SETS if data.known]


def has_ranks() -> bool:
    """Whether the ranks over data sets are a result."""
    return (FOLDER / "methods-ranks.json").exists()


@dataclass(frozen=True)
class Ranks:
    """The mean ranks of methods over data sets.

    Attributes
    ----------
    ranks : mapping of str to float
        By method, the best first.
    data_sets : int
    p : float
        Of the hypothesis that no method differs (Iman and Davenport).
    critical_difference : float
        Of two mean ranks, at the level .05 (Nemenyi).
    """

    ranks: Mapping[str, float]
    data_sets: int
    p: float
    critical_difference: float

    @classmethod
    def of(cls, scores: Sequence[Mapping[str, float]]) -> "Ranks":
        """The ranks of the methods that all data sets have.

        Parameters
        ----------
        scores : sequence of mappings
            By method, a number for each data set; higher is better.

        Raises
        ------
        ValueError
            There are fewer than two data sets, or fewer than three methods that all of them have.
        """
        methods = [method for method in scores[0] if all(method in of for of in scores)] if scores else []
        count, blocks = len(methods), len(scores)
        if blocks < 2 or count < 3:
            raise ValueError(f"{count} methods on {blocks} data sets: ranks need three methods and two data sets")
        table = np.array([[of[method] for method in methods] for of in scores])
        mean = rankdata(-table, axis=1).mean(axis=0)
        chi2 = float(friedmanchisquare(*table.T).statistic)
        most = blocks * (count - 1)
        f_value = inf if chi2 >= most else (blocks - 1) * chi2 / (most - chi2)
        p = float(f.sf(f_value, count - 1, (count - 1) * (blocks - 1)))
        apart = float(studentized_range.ppf(0.95, count, inf)) / sqrt(2) * sqrt(count * (count + 1) / (6 * blocks))
        order = sorted(zip(methods, mean.tolist(), strict=True), key=lambda pair: pair[1])
        return cls(dict(order), blocks, p, apart)


def method_table(data_sets: Sequence[DataSet]) -> str:
    """A row per method, a column per data set, as Markdown: own data, common data, worst tenth, new nodes.

    Methods stand in the order of the first data set, and floors in one row at the end. Means
    that are not below the best have a star, but those of new nodes. A mean that is unknown is left out, with a dash,
    and common data where there are none, without one. A dagger marks a method of which a tuned setting lies near an end
    of its range. Cells of methods of which runs failed say how many seeds they have.
    """
    rows = [data.rows() for data in data_sets]
    best = [
        {(method, column) for column in ("own", "common", "worst") for method in data.not_below_best(column)}
        for data in data_sets
    ]
    lines = [["", *(data.name for data in data_sets)]]
    floors = [data.floors() for data in data_sets]
    for method in dict.fromkeys(method for of in rows for method in of if method not in set().union(*floors)):
        columns = [[column for column in _SHOWN if column != "common" or data.common] for data in data_sets]
        cells = [
            " ".join(_cell(of[method].get(column), starred=(method, column) in best_of) for column in has)
            if method in of
            else ""
            for of, has, best_of in zip(rows, columns, best, strict=True)
        ]
        for index, (data, of) in enumerate(zip(data_sets, rows, strict=True)):
            if method in data.at_end() & of.keys():
                cells[index] += "†"
            if method in data.lacking() & of.keys():
                cells[index] += f" ({of[method]['own'].seeds} of {len(result(data.experiment).seeds)} seeds)"
        lines.append([f"`{method}`", *cells])
    references = [
        "; ".join(f"{name} {' '.join(map(_cell, of[name].values()))}" for name in of if name in of_floors)
        for of, of_floors in zip(rows, floors, strict=True)
    ]
    return markdown([*lines, ["reference", *references]] if any(references) else lines)


def beaten_by(name: str, metric: str, method: str, others: Mapping[str, str]) -> str:
    """The methods that are better than one in an experiment (95 % interval of the difference), or "none".

    Parameters
    ----------
    name : str
        The experiment.
    metric, method : str
    others : mapping
        The other methods, with their names for readers.
    """
    sign = direction(metric)
    gaps = {other: result(name).difference(metric, other, method) for other in others}
    lows = {other: gap.low if sign > 0 else gap.negated().low for other, gap in gaps.items()}
    return ", ".join(f"`{others[other]}`" for other, low in lows.items() if low is not None and low > 0) or "none"


def leaders(column: str) -> list[tuple[str, int]]:
    """The methods that are best in a column, or not below the best, with the number of data sets, the most first.

    FedAvg, which costs least, comes before others with as many.
    """
    counts: dict[str, int] = {}
    for data in known_data_sets():
        for method in data.not_below_best(column):
            counts[method] = counts.get(method, 0) + 1
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0] != "fedavg"))


def advice() -> str:
    """Which method to take for which kind of data, in three sentences."""
    data_sets = known_data_sets()
    personal, common = leaders("own"), leaders("common")
    shared = sum(any("common" in row for row in data.rows().values()) for data in data_sets)
    enough, others = 0, list[str]()
    for data in data_sets:
        best, near = data.as_good("own")
        enough += "fedavg" in {best, *near}
        others += [] if personal[0][0] in {best, *near} else [f"`{best}` ({data.short})"]
    first = f"For a node's own data take `{personal[0][0]}`: within noise of the best on {personal[0][1]} of "
    first += f"{len(data_sets)} data sets" + (f"; the others have {', '.join(others)}." if others else ".")
    second = f"For one model for all take `{common[0][0]}`: within noise of the best on "
    second += f"{common[0][1]} of {shared} data sets with common data."
    third = f"`fedavg`, the cheapest, is within noise of the best on own data on {enough} of {len(data_sets)}."
    return f"{first} {second} {third}"


def _cell(known: Estimate | None, *, starred: bool = False) -> str:
    mean = "-" if known is None else shown(known.mean)
    return f"{mean}*" if starred else mean


FUNCTIONS.update({each.__name__: each for each in (advice, beaten_by, known_data_sets, has_ranks, method_table)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ranks over all data sets with a result: 0, or 2 if there are too few."""
    return run(new_parser("ranks", __doc__), _report, arguments)


def _report(options: argparse.Namespace) -> None:
    data_sets = known_data_sets()
    scores = [
        {m: data.better * row["own"].mean for m, row in data.rows().items() if m not in data.lacking()}
        for data in data_sets
    ]
    ranks = Ranks.of(scores)
    head = {"data sets": [data.name for data in data_sets], "p": ranks.p}
    show([head | {"critical difference": ranks.critical_difference}], options.json)
    show([{"method": method, "mean rank": rank} for method, rank in ranks.ranks.items()], options.json)


if __name__ == "__main__":
    sys.exit(main())
