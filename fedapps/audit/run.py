"""Run an audit: check the config, run the jobs in parallel, print and save the results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapps.base.atomic import write_whole
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe, recipe_name
from fedapps.launch.inputs import resolve
from fedapps.launch.plan import new_folder, timed_name
from fedapps.runs.owner import owned
from fedapps.sim.matrix import Lines, run_matrix

from .jobs import KEY, finished, run_job
from .plan import AuditPlan
from .text import audit_text, row_line
from .victim import victim_data


def audit_recipe(
    recipe: Path,
    plan: AuditPlan,
    *,
    jobs: int = 0,
    overrides: Mapping[str, Any] | None = None,
    output_dir: str = "runs",
    json_path: Path | None = None,
) -> dict[str, Any]:
    """Attack one node of a run and print what the attacks reconstruct.

    The results so far are saved after every job, in ``OUTPUT_DIR/audit-<recipe>-<time>/audit.json``.

    Parameters
    ----------
    recipe : Path
        Run config of a task that can be audited (:func:`.victim.recipe_subject`).
    plan : AuditPlan
        What to attack, and how, with the subject of the recipe.
    jobs : int
        Maximum number of parallel processes; 0: one per CPU core.
    overrides : mapping, optional
        Keys of the run config that override the recipe. ``name`` names the folder of the audit.
    output_dir : str
        Where the folder of the audit is created.
    json_path : Path, optional
        Also write the final results to this file.

    Returns
    -------
    dict
        The content of ``audit.json``; see :func:`.jobs.finished`.

    Raises
    ------
    ValueError
        Before anything runs, if the config is invalid, or the node has too few sentences.
    """
    keys, named = read_recipe(recipe, overrides), str((overrides or {}).get("name", ""))
    name = timed_name(f"audit-{recipe_name(recipe)}")
    # The methods of the recipe do not matter: the audited ones differ only in which gradients the node shares.
    config = parse(resolve(keys | {"name": name}, output_dir))
    victim_data(config, plan.sentences)
    with new_folder(config.run.output_dir, named, name) as folder, owned(folder):
        (folder / "cells").mkdir()
        return _carry_out(config, plan, folder, recipe_name(recipe), jobs, json_path)


def _carry_out(
    config: Config, plan: AuditPlan, folder: Path, recipe: str, jobs: int, json_path: Path | None
) -> dict[str, Any]:
    if json_path:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"run": config.flat(), "plan": plan, "folder": str(folder / "cells")}
    progress = _Progress(folder, recipe, plan)
    print(f"{plan.sentences} sentences; intermediate results: {folder / 'audit.json'}", flush=True)
    cells = [job | {"config": shared} for job in plan.jobs()]
    run_matrix(cells, run_job, jobs=jobs, watch=Lines(len(cells), progress.show))
    results = progress.save()
    if json_path:
        write_whole(json_path, _json(results).encode())
    print(f"\n{audit_text(results, plan.subject.paper)}\n\naudit: {folder / 'audit.json'}")
    return results


class _Progress:
    """Prints each completed row once, and saves the results so far."""

    def __init__(self, folder: Path, recipe: str, plan: AuditPlan) -> None:
        self.folder, self.recipe, self.plan = folder, recipe, plan
        self.printed: set[tuple[Any, ...]] = set()

    def show(self, line: str) -> None:
        print(line, flush=True)
        for row in self.save()["rows"]:
            key = tuple(row[name] for name in KEY)
            if row["sentences"] == self.plan.sentences and key not in self.printed:
                self.printed.add(key)
                print(f"  {row_line(row)}", flush=True)

    def save(self) -> dict[str, Any]:
        results = finished(self.folder / "cells", self.recipe)
        write_whole(self.folder / "audit.json", _json(results).encode())
        return results


def _json(results: Mapping[str, Any]) -> str:
    return json.dumps(results, indent=2, ensure_ascii=False) + "\n"
