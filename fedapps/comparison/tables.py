"""Comparisons as text tables."""

from collections.abc import Mapping, Sequence
from textwrap import fill

from fedapps.base.report.metrics import columns
from fedapps.report.caveats import about_claims, about_tests
from fedapps.report.comparison_tables import claims_table, held_out_tables, metrics_table, tests_table
from fedapps.runs.comparisons import CheckedClaim, Compared, Comparison, HeldOut, PairedTest

from .significance import scheme

#: Wider tables are split into several, one below the other.
_WIDTH = 120


def comparison_text(comparison: Comparison) -> str:
    """A comparison as text: means over seeds, paired tests and the paper's claims.

    If a key was varied, each of its values has separate tables. Numbers in brackets are the paper's. References follow
    the methods. Metrics of single stages are omitted.
    """
    if comparison.varied is None:
        return _part_text(comparison)
    texts = [f"{title}\n\n{_part_text(part)}" for title, part in comparison.parts.items()]
    return "\n\n\n".join([*texts, *_notes(comparison), *_claims(comparison.claims)])


def _part_text(part: Compared) -> str:
    names = columns(name for row in part.table.values() for name in row)
    texts = [metrics_table(part, names, {}).text(_WIDTH), *_notes(part)]
    tests: dict[str, list[PairedTest]] = {}  # by the note that stands above the table of those that share it
    for metric in dict.fromkeys(test.metric for test in part.tests):
        of_metric = [test for test in part.tests if test.metric == metric]
        tests.setdefault(_about(of_metric), []).extend(of_metric)
    texts += [f"{note}\n{tests_table(noted).text()}" for note, noted in tests.items()]
    return "\n\n".join([*texts, *_held_out(part.held_out), *_claims(part.claims)])


def _notes(part: Compared) -> list[str]:
    return ["\n".join(fill(note, _WIDTH) for note in part.notes)] if part.notes else []


def _claims(claims: Sequence[CheckedClaim]) -> list[str]:
    if not claims:
        return []
    return [f"{fill(about_claims(claims[0].difference.seeds), _WIDTH)}\n{claims_table(claims).text()}"]


def _about(tests: Sequence[PairedTest]) -> str:
    """What the tests of a metric compare, and the caveat."""
    which = scheme([(test.a, test.b) for test in tests])
    caveat = fill(about_tests(tests[0].difference.seeds, len(tests)), _WIDTH)
    return "\n".join([*([which] if which else []), caveat])


def _held_out(held_out: Mapping[str, HeldOut]) -> list[str]:
    if not held_out:
        return []
    names = dict.fromkeys(name for of_method in held_out.values() for name in of_method.metrics)
    tables = [table.text() for table in held_out_tables(held_out, list(names), {}).values()]
    sizes = ", ".join(f"{n} nodes, {e} epochs" for n, e in sorted({(of.nodes, of.epochs) for of in held_out.values()}))
    return [f"nodes that took no part in the rounds: {sizes}; ± and ranges are 95 % intervals over seeds", *tables]
