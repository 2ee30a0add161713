"""Weights & Biases: runs on its server, or in files that ``wandb sync`` uploads later.

https://docs.wandb.ai
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.base.options import option

from .base import TrackedRecord, TrackedRun, Tracker

if TYPE_CHECKING:
    from wandb import Run


@dataclass(frozen=True)
class WandbOptions:
    """Where Weights & Biases keeps runs."""

    mode: str = option(
        "offline",
        "offline: write files below the run folder, for `wandb sync`; online: send each round to the server of `wandb "
        "login` or WANDB_API_KEY",
        choices=["offline", "online"],
    )
    project: str = option("fedapps", "project that the runs belong to")
    entity: str = option("", "user or team that the project belongs to; empty = that of the login")


class Wandb(Tracker):
    """A run of Weights & Biases for each method, in a group with the name of the run folder."""

    name = "wandb"
    line = "Weights & Biases: online, or offline for a later upload"
    Options = WandbOptions
    package = "wandb"
    requirement = "fedapps[wandb]"

    def conflict(self) -> str:
        if (missing := super().conflict()) or self.options.mode == "offline":
            return missing
        import wandb

        if wandb.login(prompt=False, verify=False):
            return ""
        return "needs a login: `wandb login`, or the variable WANDB_API_KEY; or set wandb.mode = 'offline'"

    def open(self, run: TrackedRun) -> TrackedRecord:
        import wandb

        offline = self.options.mode == "offline"
        if offline:  # a resumed run writes its files again from its records, so they have every round once
            for former in (run.folder / "wandb").glob(f"offline-run-*-{run.id}"):
                shutil.rmtree(former)
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True
        )
        session = wandb.init(
            project=self.options.project,
            entity=self.options.entity or None,
            id=run.id,
            name=f"{run.name}/{run.method}",
            group=run.name,
            tags=[run.task],
            config={**run.config, "method": run.method},
            dir=str(run.folder),
            mode=self.options.mode,
            resume=None if offline else "allow",
            reinit="create_new",  # the methods of a run are open at the same time
            settings=settings,
        )
        return _Session(session, run.id)


class _Session(TrackedRecord):
    def __init__(self, session: Run, run_id: str) -> None:
        self._session, self._id, self._finished = session, run_id, False
        self._last: int = max(0, session.starting_step - 1)  # the rounds of a resumed run that the server has

    @property
    def last_round(self) -> int:
        return self._last

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        self._session.log(dict(values), step=server_round, commit=True)
        self._last = server_round

    def finish(self, final: Mapping[str, float]) -> None:
        self._session.summary.update({f"final/{name}": value for name, value in final.items()})
        self._finished = True

    def add_report(self, report: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"report-{self._id}", type="report")
        artifact.add_file(str(report))
        self._session.log_artifact(artifact)

    def close(self) -> None:
        self._session.finish(exit_code=0 if self._finished else 1)
