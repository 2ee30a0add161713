"""Results of a comparison by seed: the main metric of each run."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.base.report.figures import dots_by_seed
from fedapps.base.report.metrics import main_metric
from fedapps.base.report.palette import plot_styles
from fedapps.report.run_data import RunData

from . import section_of

ORDER = 50


def section(run: RunData) -> Markup | None:
    """A figure of the main metric by seed; None without runs of a comparison."""
    runs, styles = run.seed_metrics, plot_styles(run.methods)
    metric = main_metric(name for of_method in runs.values() for metrics in of_method.values() for name in metrics)
    if metric is None:
        return None
    return section_of("seeds", styles=styles, figures=[dots_by_seed(runs, styles, metric)])
