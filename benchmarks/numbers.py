"""The numbers of results as text: the functions of the templates in ``pages/``."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from math import isfinite
from statistics import fmean
from typing import Any

from fedapps.strategies.privacy import epsilon as budget
from scipy.stats import wilcoxon as scipy_wilcoxon

from fedapps.base.report.metrics import describe
from fedapps.base.report.numbers import Estimate
from fedapps.comparison.papers import paper_of, paper_tables
from fedapps.comparison.significance import MODELS

from .experiments import experiments
from .results import FOLDER, Result, result

#: The functions by name. Names of results are those of experiments; methods are in canonical form.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
#: Metrics of which lower is better, though their names do not say so.
_LOWER = {"bytes_per_client_round", "dynamics_distance", "gain_distance"}


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    return function


def direction(metric: str) -> int:
    """1 if higher is better, -1 if lower is. Raise :class:`ValueError` if it is not known."""
    if better := -1 if metric in _LOWER else describe(metric).better:
        return better
    raise ValueError(f"{metric}: neither higher nor lower is known to be better; add it to _LOWER or to describe")


@_function
def measured(name: str) -> bool:
    """Whether an experiment has a result; of several, separated by commas, all."""
    return all(one in experiments() and (FOLDER / f"{one}.json").exists() for one in name.split(","))


@_function
def mean(name: str, method: str, metric: str, digits: int = 3) -> str:
    """The mean of a metric."""
    return shown(result(name).of(method, metric).mean, digits)


@_function
def estimate(name: str, method: str, metric: str, digits: int = 3) -> str:
    """The mean with half the width of its interval."""
    return with_half(result(name).of(method, metric), digits)


@_function
def over_seeds(values: Sequence[float], digits: int = 3) -> str:
    """The mean of one value per seed with half the width of its interval."""
    return with_half(Estimate.of(values), digits)


@_function
def survived(name: str, condition: str, metric: str, digits: int = 2) -> str:
    """The estimate over the runs of a condition that reached their end, and how many did if some did not."""
    of_condition = result(name).methods[condition]
    ended, known = of_condition["ended"], of_condition.get(metric)
    if known is None:
        return "ends"
    few = f" ({known.seeds} of {ended.seeds})" if known.seeds < ended.seeds else ""
    return with_half(known, digits) + few


@_function
def difference(name: str, metric: str, a: str, b: str, digits: int = 3) -> str:
    """The difference a - b with its interval."""
    return with_limits(result(name).difference(metric, a, b), digits)


@_function
def quotient(metric: str, name: str, a: str, other: str, b: str, digits: int = 1) -> str:
    """The mean of a metric of ``a`` in a result over that of ``b`` in another one, with the range of the seeds."""
    left, right = result(name).of(a, metric), result(other).of(b, metric)
    by_seed = [above / below for above, below in zip(left.values, right.values, strict=True)]
    least, most = shown(min(by_seed), digits), shown(max(by_seed), digits)
    return f"{shown(left.mean / right.mean, digits)} [{least}, {most}]"


@_function
def gap(name: str, method: str, metric: str, other: str, digits: int = 3) -> str:
    """How far a metric of a method is above another one of its metrics, paired by seed, with its interval."""
    return with_limits(result(name).of(method, metric).minus(result(name).of(method, other)), digits)


@_function
def seeds(name: str, method: str = "") -> int:
    """The number of seeds."""
    methods = result(name).methods
    estimates = methods[method] if method else next(iter(methods.values()))
    return max(one.seeds for one in estimates.values())


@_function
def experiment(name: str) -> str:
    """The name of an experiment, which ``make bench ONLY=NAME`` repeats."""
    for part in name.strip("'").split(","):
        if not any(fnmatchcase(one, part) for one in experiments()):
            raise KeyError(f"no experiment {part}")
    return f"`{name}`"


@_function
def command(name: str) -> str:
    """The command that repeats an experiment."""
    return f"`make bench ONLY={experiment(name).strip('`')}`"


@_function
def table(
    name: str,
    methods: Sequence[str] | Mapping[str, str],
    metrics: Mapping[str, str],
    digits: int = 3,
    head: str = "",
    paper: str = "",
) -> str:
    """A row per method, a column per metric: the mean with half its interval, and the paper's number in brackets.

    A method that the paper has and the result has not shows the paper's numbers alone.

    Parameters
    ----------
    name : str
    methods : sequence or mapping
        The methods, or their names for readers by method.
    metrics : mapping
        Heads of columns by metric.
    digits : int
        Decimals; a metric may say its own, ``"metric:2"``.
    head : str
        Head of the first column.
    paper : str
        The recipe whose numbers of the paper are shown; that of the result if empty, none if "-".
    """
    content = result(name)
    printed = {} if paper == "-" else paper_of(paper or content.recipe, [m for m in methods if is_method(m)])
    lines = [[head, *metrics.values()]]
    for method in methods:
        cells = [methods[method] if isinstance(methods, Mapping) else f"`{method}`"]
        of_method = content.methods.get(method, {}) if method in printed else content.methods[method]
        for key in metrics:
            metric, _, own_digits = key.partition(":")
            known = of_method.get(metric)
            bracket = printed.get(method, {}).get(metric)
            few = f" ({known.seeds} of {len(content.seeds)})" if known and content.lacks_seeds(method) else ""
            cells.append(_cell(known, bracket, int(own_digits or digits)) + few)
        lines.append(cells)
    return markdown(lines)


@_function
def held_out(rows: Mapping[str, str], metric: str, digits: int = 3) -> str:
    """Rows of a table of held-out nodes: the three models of each method, and the differences that matter to a node.

    Parameters
    ----------
    rows : mapping
        The first cell by ``RESULT/METHOD``.
    metric : str
    digits : int
    """
    lines = []
    for key, text in rows.items():
        name, _, method = key.partition("/")
        shared, adapted, local = (f"{method}: {model}" for model in MODELS)
        cells = [mean(name, model, metric, digits) for model in (shared, adapted, local)]
        differences = [difference(name, metric, adapted, other, digits) for other in (shared, local)]
        lines.append(row(text, *cells, *differences))
    return "\n".join(lines)


@_function
def change(name: str, metric: str, a: str, b: str, digits: int = 3) -> str:
    """The difference a - b with half of its interval."""
    return change_with_half(result(name).difference(metric, a, b), digits)


def change_with_half(gap: Estimate, digits: int = 3) -> str:
    """A difference with its sign and half of its interval."""
    return shown(gap.mean, digits, sign=True) + ("" if gap.half is None else f" ± {shown(gap.half, digits)}")


@_function
def effect(name: str, metric: str, method: str, option: str, grid: Mapping[str, Sequence[str]], digits: int = 3) -> str:
    """The change of a metric from the last to the first value of an option, over all settings of the grid's others.

    The mean change in the paper's numbers follows in brackets.
    """
    first, last, rest = grid[option][0], grid[option][-1], {key: grid[key] for key in grid if key != option}
    settings = [dict(zip(rest, values, strict=True)) for values in product(*rest.values())]
    pairs = [[_setting(method, grid, one | {option: value}) for value in (first, last)] for one in settings]
    content = result(name)
    ours = Estimate.of([content.of(a, metric).mean - content.of(b, metric).mean for a, b in pairs])
    paper = paper_of(content.recipe, [one for pair in pairs for one in pair])
    theirs = fmean(paper[a][metric] - paper[b][metric] for a, b in pairs)
    return f"{with_limits(ours, digits)} [{shown(theirs, digits, sign=True)}]"


@_function
def span(name: str, metric: str, method: str, grid: Mapping[str, Sequence[str]], digits: int = 3) -> str:
    """The lowest and the highest mean of a metric over the settings of a grid, with the paper's in brackets."""
    labels = [_setting(method, grid, dict(zip(grid, values, strict=True))) for values in product(*grid.values())]
    content = result(name)
    ours = [content.of(label, metric).mean for label in labels]
    theirs = [of[metric] for of in paper_of(content.recipe, labels).values()]
    low, high = (f"{shown(limit(ours), digits)} [{shown(limit(theirs), digits)}]" for limit in (min, max))
    return f"{low} to {high}"


def _setting(method: str, grid: Mapping[str, Sequence[str]], values: Mapping[str, str]) -> str:
    return f"{method}({','.join(f'{key}={values[key]}' for key in grid)})"


@_function
def wilcoxon(name: str, metric: str, a: str, b: str, digits: int = 3) -> str:
    """The two-sided p-value of Wilcoxon's signed-rank test of two methods, paired by seed; 1 if they do not differ."""
    left, right = result(name).of(a, metric).values, result(name).of(b, metric).values
    return shown(1.0 if left == right else float(scipy_wilcoxon(left, right).pvalue), digits)


@_function
def in_order(name: str, metric: str, methods: Mapping[str, str]) -> str:
    """The names of methods for readers, by the mean of a metric, the best one first."""
    content, sign = result(name), direction(metric)
    ordered = sorted(methods, key=lambda method: -sign * content.of(method, metric).mean)
    return ", ".join(f"`{methods[method]}`" for method in ordered)


@_function
def strongest(name: str, defence: str) -> str:
    """The share of words that the strongest attack reads under a defence."""
    read = {metric.removeprefix("words, "): one.mean for metric, one in result(name).methods[defence].items()
            if metric.startswith("words, ") and not metric.endswith("frequency")}  # fmt: skip
    attack = max(read, key=read.__getitem__)
    return shown(read[attack], 2)


@_function
def largest(name: str, metric: str, label: str, fill: Sequence[str], beside: str = "") -> str:
    """The largest mean of a metric among the methods that the result has of those that ``label % one`` names; in
    parentheses, that of the metric ``beside`` of the same method.
    """
    known = [result(name).methods[label % one] for one in fill if label % one in result(name).methods]
    best = max(known, key=lambda of: of[metric].mean)
    return shown(best[metric].mean, 2) + (f" ({shown(best[beside].mean, 2)})" if beside else "")


@_function
def at_values(name: str, metric: str, key: str = "", method: str = "", theirs: Mapping[str, str] | None = None) -> str:
    """A metric at each value of a varied key, in a line, with the paper's numbers at the values of ``key``.

    A paper's numbers of a method stand beside the method with any options; ``theirs`` has the paper's values where they
    differ from ours.
    """
    content, parts = result(name), []
    printed_at = {str(table.value): table.value for table in paper_tables() if table.key == key}
    known = (label.partition(" at ")[0] for label in content.methods)
    names = {method} if method else set(filter(is_method, known))
    for label, of_method in content.methods.items():
        method_name, _, value = label.partition(" at ")
        if method_name in names:
            at, bare = (theirs or {}).get(value, value), method_name.partition("(")[0]
            printed = paper_of(content.recipe, [bare], key, printed_at[at]) if at in printed_at else {}
            ours = of_method[metric]
            cell = _cell(ours, printed.get(bare, {}).get(metric), 3 if ours.half is None else 2)
            parts.append(f"{f'{method_name} ' if len(names) > 1 else ''}{value} {cell}")
    return ", ".join(parts)


@_function
def epsilon(noise: float, rounds: int) -> str:
    """ε at δ = 10⁻⁵ of central privacy in which all nodes take part in every round."""
    spent = budget(noise, rounds, 1e-5)
    return f"{float(f'{spent:.3g}'):,g}" if isfinite(spent) else "∞"


@_function
def speed(row: Mapping[str, Any], what: str) -> str:
    """Ours, the reference or their ratio with its range, of a row of a measurement of speed."""
    ratio: Any = row.get("ratio")
    if what != "ratio":
        unit = row["name"].partition("[")[2].partition("]")[0]
        return "" if row.get(what) is None else f"{row[what]:.3g} {unit}"
    if ratio is None:
        ratio = row["ours"] / row["reference"]
    least, most = row.get("least"), row.get("most")
    return _ratio(ratio) + (f" [{_ratio(least)}, {_ratio(most)}]" if least and most else "")


@_function
def speed_name(name: str, what: str) -> str:
    """What a row measures, in words: ``what``, and which part or size of it."""
    title = name.partition(" [")[0]
    if "," not in title and "[s], " not in name:
        return what
    if title.startswith("beyond"):
        return f"{what}, beyond the loop"
    return what + (", wall clock" if "perf_counter" in name else f", {title.split(', ')[1]}" if "MB" in title else "")


@_function
def rows(name: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a measurement of speed or a tuning."""
    return result(name).rows


@_function
def content(name: str) -> Result:
    """A whole result."""
    return result(name)


@_function
def number(value: float, digits: int = 3) -> str:
    """A number as in the tables."""
    return shown(value, digits)


@_function
def printed(recipe: str, method: str, metric: str, digits: int = 3) -> str:
    """The number of the paper."""
    return shown(paper_of(recipe, [method])[method][metric], digits)


def shown(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number without the zero before its point, with a real minus sign; thousands are grouped."""
    text = f"{abs(value):,.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    negative = value < 0 and any(digit in text for digit in "123456789")
    return ("−" if negative else "+" if sign else "") + text


def _cell(known: Estimate | None, bracket: float | None, digits: int) -> str:
    paper = "" if bracket is None else f"[{shown(bracket, digits)}]"
    return f"{with_half(known, digits)} {paper}".strip() if known else paper or "-"


def with_half(known: Estimate, digits: int) -> str:
    return shown(known.mean, digits) + (f" ± {shown(known.half, digits)}" if known.half else "")


def with_limits(known: Estimate, digits: int) -> str:
    if known.low is None or known.high is None:
        return shown(known.mean, digits, sign=True)
    least = "at most " if known.widest else ""
    return f"{shown(known.mean, digits, sign=True)} ({least}{shown(known.low, digits)} to {shown(known.high, digits)})"


def _ratio(value: float) -> str:
    return shown(value, 2 if value >= 0.1 else 3)


def is_method(label: str) -> bool:
    try:
        paper_of("", [label])
    except ValueError:
        return False
    return True


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table of rows of cells, the head first."""
    head, *rest = lines
    return "\n".join([row(*head), "|---" * len(head) + "|", *(row(*line) for line in rest)])
