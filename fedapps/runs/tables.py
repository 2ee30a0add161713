"""Results of a run as text tables."""

from collections.abc import Mapping, Sequence

from fedapps.base.report.tables import Cell, Column, Table, reference_label, text_columns
from fedapps.registry.tasks import task_class
from fedapps.strategies.wire import HELD_OUT_PREFIXES

from .continual import measure_names
from .records import MethodSummary, RunSummary, read_json
from .run_folder import RunFolder

_COSTS = ("refused", "MB up", "MB down", "seconds")


def summary_table(folder: RunFolder) -> str:
    """One row per method: the main metrics of the last evaluation, refused replies, traffic and time.

    References follow, if the run has any, and a table of the nodes that were held out, if there are such nodes.
    """
    summary = read_json(folder.path / "summary.json", RunSummary) or RunSummary()
    headline = task_class(summary.task).headline
    wanted = [name for main in headline for name in (*measure_names(main), main)]
    names = [name for name in wanted if any(name in of.final for of in summary.methods.values())]
    titles = ["method", *(name.removeprefix("test.") for name in names), *_COSTS]
    rows: list[list[str | Cell]] = [
        [
            method,
            *(Cell.of(of.final.get(name)) for name in names),
            str(of.refused),
            f"{of.bytes_up / 1e6:.2f}",
            f"{of.bytes_down / 1e6:.2f}",
            f"{of.seconds:.0f}",
        ]
        for method, of in summary.methods.items()
    ]
    for reference, metrics in folder.references().items():
        rows.append(
            [reference_label(reference), *(Cell.of(metrics.get(name)) for name in names), *("–" for _ in _COSTS)]
        )
    tables = [Table(text_columns(titles), rows), *_held_out_table(summary.methods, headline)]
    return "\n\n".join(table.text() for table in tables)


def _held_out_table(methods: Mapping[str, MethodSummary], headline: Sequence[str]) -> list[Table]:
    """The first main metric of the received, the adapted and a locally trained model; none without held-out nodes."""
    held_out = {method: of.held_out for method, of in methods.items() if of.held_out.nodes}
    measured = [name for name in headline if any(name in of.adapted for of in held_out.values())]
    if not measured:
        return []
    models = [prefix.removesuffix(".") for prefix in HELD_OUT_PREFIXES]
    title = f"held-out nodes: {measured[0].removeprefix('test.')}"
    rows: list[list[str | Cell]] = [
        [method, *(Cell.of(one.get(measured[0])) for one in (of.shared, of.adapted, of.local))]
        for method, of in held_out.items()
    ]
    return [Table([Column(title, is_text=True), *text_columns(models, texts=0)], rows)]
