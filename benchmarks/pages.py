"""Pages of ``docs/`` from results: ``pages/NAME.md.jinja`` becomes ``docs/NAME.md``.

A template calls the functions of :class:`Numbers` and holds no number of a result itself. ``pages/readme.md.jinja`` is
written between two marks of ``README.md``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

from fedapps.strategies.privacy_budget import epsilon
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedapps.comparison.papers import paper_of
from fedapps.report.metrics import describe

from .experiments import experiments
from .results import Estimate, Result, result

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).with_name("pages")
_README = "readme.md.jinja"
_WIDTH = 120
_KEPT = re.compile(r"[\n|#<]|    |$")
_MARKS = re.compile(r"(<!-- results: quickstart[^>]*-->\n).*?(<!-- end -->)", re.DOTALL)


def write() -> None:
    """Write the pages that are stale."""
    texts = pages()
    for path in stale():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")


def stale() -> list[Path]:
    """The pages whose text is not that of their template and the results."""
    return [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


@cache
def pages() -> dict[Path, str]:
    """The text of each page."""
    environment = Environment(  # the pages are Markdown, made from our own files
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.globals.update({name: getattr(Numbers, name) for name in vars(Numbers) if not name.startswith("_")})
    texts = {}
    for path in sorted(TEMPLATES.rglob("*.md.jinja")):
        name = path.relative_to(TEMPLATES).as_posix()
        text = _wrapped(environment.get_template(name).render())
        if name == _README:
            readme = ROOT / "README.md"
            texts[readme] = _MARKS.sub(lambda marks, text=text: f"{marks[1]}\n{text}\n{marks[2]}", readme.read_text())
        else:
            texts[ROOT / "docs" / name.removesuffix(".jinja")] = text
    return texts


class Numbers:
    """The functions of the templates. Names of results are those of experiments; methods are in canonical form."""

    @staticmethod
    def mean(name: str, method: str, metric: str, digits: int = 3) -> str:
        """The mean of a metric."""
        return shown(result(name).of(method, metric).mean, digits)

    @staticmethod
    def estimate(name: str, method: str, metric: str, digits: int = 3) -> str:
        """The mean with half the width of its interval."""
        return _with_half(result(name).of(method, metric), digits)

    @staticmethod
    def difference(name: str, metric: str, a: str, b: str, digits: int = 3, scale: float = 1) -> str:
        """The difference a - b with its interval; ``scale`` 100 gives points."""
        return _with_limits(_scaled(result(name).difference(metric, a, b), scale), digits)

    @staticmethod
    def seeds(name: str, method: str = "") -> int:
        """The number of seeds."""
        methods = result(name).methods
        found = methods[method] if method else next(iter(methods.values()))
        return max(one.seeds for one in found.values())

    @staticmethod
    def p(name: str, metric: str, a: str, b: str) -> str:
        """The p-value of a difference."""
        found = result(name).difference(metric, a, b).p
        return "-" if found is None else shown(found, 3)

    @staticmethod
    def ratio(name: str, a: str, b: str, metric: str, digits: int = 0) -> str:
        """By how many percent the mean of ``a`` is below that of ``b``."""
        found = result(name)
        return f"{100 * (1 - found.of(a, metric).mean / found.of(b, metric).mean):.{digits}f} %"

    @staticmethod
    def command(name: str) -> str:
        """The command that repeats an experiment."""
        for part in name.strip("'").split(","):
            if not any(fnmatchcase(one, part) for one in experiments()):
                raise KeyError(f"no experiment {part}")
        return f"`make bench ONLY={name}`"

    @staticmethod
    def table(
        name: str,
        methods: Sequence[str] | Mapping[str, str],
        metrics: Mapping[str, str],
        digits: int = 3,
        head: str = "",
        paper: str = "",
        at: str = "",
    ) -> str:
        """A row per method, a column per metric: the mean with half its interval, and the paper's number in brackets.

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
        at : str
            The value of a varied key.
        """
        found = result(name)
        printed = {} if paper == "-" else paper_of(paper or found.recipe, [m for m in methods if _is_method(m)])
        lines = [[head, *metrics.values()]]
        for method in methods:
            cells = [methods[method] if isinstance(methods, Mapping) else f"`{method}`"]
            for key in metrics:
                metric, _, own = key.partition(":")
                known = found.methods[method + at].get(metric)
                bracket = printed.get(method, {}).get(metric)
                cells.append(_cell(known, bracket, int(own or digits)))
            lines.append(cells)
        return _markdown(lines)

    @staticmethod
    def claim(
        text: str, name: str, metric: str, better: str, worse: str, by: float = 0, paper: str = "", because: str = "",
        digits: int = 3,
    ) -> str:  # fmt: skip
        """A row of a table of claims: in ``metric``, ``better`` is better than ``worse`` by more than ``by``.

        The cells are the claim, the paper's difference, ours, our seeds and the verdict, which follows from the 95 %
        interval of the difference. ``because`` is added to the verdict.
        """
        found, sign = result(name), describe(metric).better or 1
        ours = found.difference(metric, better, worse)
        printed = paper_of(paper or found.recipe, [one for one in (better, worse) if _is_method(one)])
        theirs = [printed.get(method, {}).get(metric) for method in (better, worse)]
        differ = "-" if None in theirs else shown(theirs[0] - theirs[1], digits, sign=True)
        said = [verdict(ours if sign > 0 else ours.negated(), by), *([because] if because else [])]
        return _row(text, differ, _with_limits(ours, digits), str(ours.seeds), ", ".join(said))

    @staticmethod
    def claims_head() -> str:
        """The head of a table of claims."""
        return _row("claim", "paper", "here", "seeds", "verdict") + "\n" + "|---" * 5 + "|"

    @staticmethod
    def untested(text: str, because: str) -> str:
        """A row of a table of claims for a claim that has no result."""
        return _row(text, "", "", "", f"cannot be tested here: {because}")

    @staticmethod
    def change(name: str, metric: str, a: str, b: str, digits: int = 3) -> str:
        """The difference a - b with half of its interval."""
        found = result(name).difference(metric, a, b)
        return shown(found.mean, digits, sign=True) + ("" if found.half is None else f" ± {shown(found.half, digits)}")

    @staticmethod
    def strongest(name: str, defence: str) -> str:
        """The share of words that the strongest attack reads under a defence."""
        read = {metric.removeprefix("words, "): one.mean for metric, one in result(name).methods[defence].items()
                if metric.startswith("words, ") and not metric.endswith("frequency")}  # fmt: skip
        attack = max(read, key=read.__getitem__)
        return shown(read[attack], 3)

    @staticmethod
    def listed(name: str, metric: str, key: str = "", method: str = "", digits: int = 3) -> str:
        """A metric at each value of a varied key, in a line, with the paper's numbers at the values of ``key``."""
        found, parts = result(name), []
        for label, of_method in found.methods.items():
            own, _, value = label.partition(" at ")
            if own == (method or own):
                printed = paper_of(found.recipe, [own], key, value).get(own, {}).get(metric) if key else None
                name_of = f"{own} " if not method and len({m.partition(" at ")[0] for m in found.methods}) > 1 else ""
                parts.append(f"{name_of}{value} {_cell(of_method[metric], printed, digits)}")
        return ", ".join(parts)

    @staticmethod
    def epsilon(noise: float, rounds: int, *, local: bool = False) -> str:
        """ε at δ = 10⁻⁵ of central or local privacy without sampling."""
        spent = epsilon(noise, rounds, 1e-5, sensitivity=2.0 if local else 1.0)
        return f"{spent:.3g}" if spent < 1000 else f"{float(f'{spent:.3g}'):,.0f}" if isfinite(spent) else "∞"

    @staticmethod
    def speed(row: Mapping[str, Any], what: str) -> str:
        """Ours, the reference or their ratio with its range, of a row of a measurement of speed."""
        ratio, ours, reference = row.get("ratio"), row.get("ours"), row.get("reference")
        if what != "ratio":
            unit = row["name"].partition("[")[2].partition("]")[0]
            return "" if row.get(what) is None else f"{row[what]:.3g} {unit}"
        if ratio is None and ours is not None and reference is not None:
            ratio = ours / reference
        least, most = row.get("least"), row.get("most")
        return _ratio(ratio) + (f" [{_ratio(least)}, {_ratio(most)}]" if least and most else "")

    @staticmethod
    def speed_name(name: str, what: str) -> str:
        """What a row measures, in words: ``what``, and which part or size of it."""
        own = name.partition(" [")[0]
        if "," not in own and "[s], " not in name:
            return what
        if own.startswith("beyond"):
            return f"{what}, beyond the loop"
        return what + (", wall clock" if "perf_counter" in name else f", {own.split(', ')[1]}" if "MB" in own else "")

    @staticmethod
    def rows(name: str) -> Sequence[Mapping[str, Any]]:
        """The rows of a measurement of speed or a tuning."""
        return result(name).rows

    @staticmethod
    def content(name: str) -> Result:
        """A whole result."""
        return result(name)

    @staticmethod
    def number(value: float, digits: int = 3) -> str:
        """A number as in the tables."""
        return shown(value, digits)

    @staticmethod
    def printed(recipe: str, method: str, metric: str, digits: int = 3) -> str:
        """The number of the paper."""
        return shown(paper_of(recipe, [method])[method][metric], digits)


def verdict(better: Estimate, by: float) -> str:
    """What the interval of a difference says about a claim that it is above ``by``."""
    if better.seeds < 2:
        return "cannot be tested here: one seed"
    if better.low is None or better.high is None:
        if better.p is not None and better.p <= 0.05 and better.mean > by == 0:
            return f"holds (p = {shown(better.p, 3)})"
        return f"cannot be tested here: spread not recorded ({'so' if better.mean > by else 'not so'} in the mean)"
    if better.low > by:
        return "holds"
    if better.high < by:
        return "does not hold"
    return "within noise" if not better.widest else "cannot be tested here: pairs not recorded"


def shown(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number without the zero before its point, with a real minus sign; thousands are grouped."""
    text = f"{abs(value):,.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    negative = value < 0 and any(digit in text for digit in "123456789")
    return ("−" if negative else "+" if sign else "") + text


def _cell(known: Estimate | None, bracket: float | None, digits: int) -> str:
    paper = "" if bracket is None else f" [{shown(bracket, digits)}]"
    return ("-" if known is None else _with_half(known, digits)) + paper


def _with_half(known: Estimate, digits: int) -> str:
    return shown(known.mean, digits) + (f" ± {shown(known.half, digits)}" if known.half else "")


def _with_limits(known: Estimate, digits: int) -> str:
    if known.low is None or known.high is None:
        return shown(known.mean, digits, sign=True)
    least = "at most " if known.widest else ""
    return f"{shown(known.mean, digits, sign=True)} ({least}{shown(known.low, digits)} to {shown(known.high, digits)})"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _scaled(known: Estimate, scale: float) -> Estimate:
    limits = {key: None if (value := getattr(known, key)) is None else value * scale for key in ("low", "high")}
    return replace(known, mean=known.mean * scale, **limits)


def _is_method(label: str) -> bool:
    try:
        paper_of("", [label])
    except ValueError:
        return False
    return True


def _wrapped(text: str) -> str:
    """The text with its paragraphs and lists at the width of all pages; tables, code and comments stay as they are."""
    parts = re.split(r"(```.*?```)", text.strip() + "\n", flags=re.DOTALL)
    for i, part in enumerate(parts[::2]):
        blocks = re.split(r"(\n{2,}|\n$)", part)
        parts[2 * i] = "".join(block if _KEPT.match(block) else _refilled(block) for block in blocks)
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def _refilled(block: str) -> str:
    items = [" ".join(item.split()) for item in re.split(r"\n(?=- )", block)]
    options: dict[str, Any] = {"width": _WIDTH, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(fill(item, subsequent_indent="  " * item.startswith("- "), **options) for item in items)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    return "\n".join([_row(*head), "|---" * len(head) + "|", *(_row(*line) for line in rest)])
