"""The floors and ceilings of a comparison, computed once for each seed and kept in its folder."""

import json
from pathlib import Path

from fedapps.base.atomic import write_whole
from fedapps.base.report.metrics import bare
from fedapps.launch.references import References, find_references
from fedapps.runs.comparisons import Estimates

from .matrix import Plan
from .summary import table_of

#: What was computed, in the folder of a comparison: metrics by reference, by the value of the varied key and the seed.
FILE = "references-by-seed.json"


def references_of(plan: Plan, folder: Path) -> list[Estimates]:
    """The references for each value of the varied key, or for the only one, as
    :func:`~fedapps.comparison.summary.table_of` has them.

    Recorded data are the same with every seed, unless a key such as the seed of a partition follows it; simulated data
    have references for each seed. What the folder has is not computed again.
    """
    path = folder / FILE
    known: dict[str, References] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tables = []
    for value in plan.values:
        rows = []
        for seed in plan.seeds:
            config, key = plan.config_of(value, seed), f"{value}, seed {seed}"
            if key not in known:
                known[key] = find_references(config)
                write_whole(path, (json.dumps(known, indent=2) + "\n").encode())
            rows += [
                {"method": name, "metrics": {bare(metric): number for metric, number in metrics.items()}}
                for name, metrics in known[key].items()
            ]
            if config.run.data_dir and not plan.seed_keys:
                break
        tables.append(table_of(rows))
    return tables
