"""What the papers claim beside our results: the functions of the templates for claims, tables and figures."""

from collections.abc import Sequence

from fedapps.base.report.numbers import Estimate
from fedapps.comparison.papers import paper_exhibits, paper_of

from .experiments import experiments
from .numbers import FUNCTIONS, direction, is_method, markdown, measured, row, shown, with_limits
from .results import result


def claim(
    text: str, name: str, metric: str, better: str, worse: str, by: float = 0, paper: str = "", because: str = "",
    digits: int = 3, other: str = "",
) -> str:  # fmt: skip
    """A row of a table of claims: in ``metric``, ``better`` is better than ``worse`` by more than ``by``.

    ``worse`` is in the result ``other`` if that is given. The cells are the claim, the paper's difference, ours, our
    seeds and the verdict, which follows from the 95 % interval of the difference. ``because`` is added to the verdict.
    """
    content, sign = result(name), direction(metric)
    if other:
        ours = content.of(better, metric).minus(result(other).of(worse, metric))
    else:
        ours = content.difference(metric, better, worse)
    printed = paper_of(paper or content.recipe, [one for one in (better, worse) if is_method(one)])
    theirs = [row[metric] for row in (printed.get(better, {}), printed.get(worse, {})) if metric in row]
    differ = shown(theirs[0] - theirs[1], digits, sign=True) if len(theirs) == 2 else ""
    verdicts = [verdict(ours if sign > 0 else ours.negated(), by), *([because] if because else [])]
    return row(text, differ, with_limits(ours, digits), str(ours.seeds), ", ".join(verdicts))


def exhibits(paper: str) -> str:
    """A table of a paper's tables and figures: ours beside each, the verdict on its claim, what is missing, and why.

    ``paper_numbers/PAPER.toml`` has the list. The hours say how long the experiments take that are not run yet.
    """
    lines = [["paper", "ours", "verdict; what is missing"]]
    for one in paper_exhibits(paper):
        stored = [name for name in one.experiments if measured(name)]
        said = [f"{one.claim}: {_verdict_on(*one.compared)}"] if one.compared and measured(one.compared[0]) else []
        said += [f"{name} not run ({hours(name)})" for name in one.experiments if name not in stored]
        if one.missing:
            said.append(one.missing + (f" ({hours(*one.rerun)})" if one.rerun else ""))
        lines.append([f"{_short(one.of)}: {one.what}", ", ".join(f"`{name}`" for name in stored), "; ".join(said)])
    return markdown(lines)


def _verdict_on(name: str, metric: str, better: str, worse: str) -> str:
    ours = result(name).difference(metric, better, worse)
    return verdict(ours if direction(metric) > 0 else ours.negated(), 0)


def hours(*names: str) -> str:
    """The time that experiments take together; empty if there are none."""
    minutes = sum(experiments()[name].minutes for name in names)
    return f"{shown(minutes / 60, 0 if minutes >= 600 else 1)} h" if names else ""


def _short(names: Sequence[str]) -> str:
    """``Figures 1, 2; Table 3`` for ``Figure 1``, ``Figure 2``, ``Table 3``."""
    by_kind: dict[str, list[str]] = {}
    for name in names:
        kind, _, number = name.partition(" ")
        by_kind.setdefault(kind, []).append(number)
    return "; ".join(f"{kind}{'s' * (len(of) > 1)} {', '.join(of)}" for kind, of in by_kind.items())


def claims_head() -> str:
    """The head of a table of claims."""
    return row("claim", "paper", "here", "seeds", "verdict") + "\n" + "|---" * 5 + "|"


def verdict(better: Estimate, by: float) -> str:
    """What the interval of a difference says about a claim that it is above ``by``."""
    if better.seeds < 2:
        return "not tested: one seed"
    if better.low is None or better.high is None:
        return f"not tested ({'so' if better.mean > by else 'not so'} in the mean)"
    if better.low > by:
        return "holds"
    if better.high < by:
        return "does not hold"
    return "within noise" if not better.widest else "not tested"


FUNCTIONS.update({each.__name__: each for each in (claim, claims_head, exhibits, hours)})
