"""An audit from the command line: checks, cells in parallel, tables."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.files import write_whole
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.launch import resolve
from sim.matrix import run_matrix

from .jobs import finished, run_cell
from .plan import AuditPlan
from .text import audit_text, row_line
from .victim import cast


def audit_recipe(
    recipe: Path,
    plan: AuditPlan,
    *,
    jobs: int = 0,
    overrides: Mapping[str, Any] | None = None,
    output_dir: str = "runs",
    json_path: Path | None = None,
) -> dict[str, Any]:
    """Attack one node of a run of the task "text", print what was read, and write ``audit.json``; returns the latter.

    It is written into ``OUTPUT_DIR/audit-<recipe>-<time>`` after every cell, with the rows as far as they are, and at
    the end to ``json_path`` too. Raises ``ValueError`` before anything runs when the config cannot be used, its task
    is another, or there are too few sentences.
    """
    given = read_recipe(recipe) | dict(overrides or {})
    if given.get("task") != "text":
        raise ValueError(
            f"recipe {recipe}: task = {given.get('task', '')!r}: must be 'text', because an audit looks for the words "
            "of sentences"
        )
    name = f"audit-{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    # The recipe's own methods do not matter: those audited differ by what they share of one and the same node.
    config = parse(resolve(given | {"name": name}, output_dir))
    cast(config, plan.sentences)
    folder = Path(config.run.output_dir) / name
    (folder / "cells").mkdir(parents=True)
    if json_path:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"run": config.flat(), "plan": plan, "folder": str(folder / "cells")}
    watch = _Watch(folder, recipe.stem, plan)
    print(f"{plan.sentences} sentences; what is done is in {folder / 'audit.json'}", flush=True)
    run_matrix([cell | {"config": shared} for cell in plan.cells()], run_cell, jobs=jobs, show=watch.show)
    found = watch.look()
    if json_path:
        json_path.write_text(_json(found), encoding="utf-8")
    print(f"\n{audit_text(found)}\n\naudit: {folder / 'audit.json'}")
    return found


class _Watch:
    """Says and saves what there is after every cell."""

    def __init__(self, folder: Path, recipe: str, plan: AuditPlan) -> None:
        self.folder, self.recipe, self.plan = folder, recipe, plan
        self.told: set[tuple[Any, ...]] = set()

    def show(self, line: str) -> None:
        print(line, flush=True)
        for row in self.look()["rows"]:
            key = (row["method"], row["attacker"], row["attack"], row["batch_size"])
            if row["sentences"] == self.plan.sentences and key not in self.told:
                self.told.add(key)
                print(f"  {row_line(row)}", flush=True)

    def look(self) -> dict[str, Any]:
        found = finished(self.folder / "cells", self.recipe)
        write_whole(self.folder / "audit.json", _json(found).encode())
        return found


def _json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
