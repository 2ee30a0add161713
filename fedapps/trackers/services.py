"""The services that record runs: TensorBoard, MLflow, and Weights & Biases. No other module knows their names.

https://www.tensorflow.org/tensorboard (written with torch's SummaryWriter), https://mlflow.org/docs/latest/tracking.html,
https://docs.wandb.ai. Their packages are imported when a run is opened.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.base.atomic import path_name
from fedapps.base.options import option

from . import TrackedRecord, TrackedRun, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run

#: Limits of MLflow's requests.
_METRICS, _PARAMETERS, _CHARACTERS = 1000, 100, 6000
_ID = "fedapps.id"
_ROUND = "fedapps.round"
_MARKER = "round/seconds"


class TensorBoard(Tracker):
    """Event files in ``tensorboard/METHOD`` of the run folder.

    A resumed run writes them again from its records, so they have every round once.
    """

    name = "tensorboard"
    line = "TensorBoard: event files in the run folder"
    package = "tensorboard"
    requirement = "fedapps[tensorboard]"

    def open(self, run: TrackedRun) -> TrackedRecord:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard" / path_name(run.method)
        shutil.rmtree(folder, ignore_errors=True)
        # A TensorBoard that shows the former files drops their rounds when it reads the step to purge from.
        return _EventFiles(SummaryWriter(str(folder), purge_step=1), run.config)


class _EventFiles(TrackedRecord):
    def __init__(self, writer: SummaryWriter, config: Mapping[str, Any]) -> None:
        self._writer, self._config, self._last = writer, dict(config), 0
        rows = "\n".join(f"| `{key}` | `{value}` |" for key, value in self._config.items())
        writer.add_text("run config", f"| key | value |\n|---|---|\n{rows}")
        writer.flush()

    @property
    def last_round(self) -> int:
        return self._last

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()
        self._last = server_round

    def finish(self, final: Mapping[str, float]) -> None:
        for name, value in final.items():
            self._writer.add_scalar(f"final/{name}", value, self._last)
        self._writer.flush()

    def add_report(self, report: Path) -> None:
        # TensorBoard has no artifacts, so this is the place of the report.
        self._writer.add_text("report", f"`{report}`", self._last)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class MlflowOptions:
    """Where MLflow keeps runs."""

    uri: str = option(
        "",
        "tracking URI, such as http://HOST:5000 or sqlite:////data/mlflow.db; empty = MLFLOW_TRACKING_URI, or else the "
        "SQLite store mlflow.db beside the run folder; set passwords as environment variables",
    )
    experiment: str = option("fedapps", "experiment that the runs belong to")


class Mlflow(Tracker):
    """A run of MLflow for each method: parameters, metrics with rounds as steps, the report as an artifact.

    The models of a fleet are versions of the registered model ``EXPERIMENT-REGISTRY``.
    """

    name = "mlflow"
    registers = True
    line = "MLflow: a local SQLite store or a tracking server"
    Options = MlflowOptions
    package = "mlflow"
    requirement = "fedapps[mlflow]"

    def open(self, run: TrackedRun) -> TrackedRecord:
        # By default, MLflow tries for minutes to reach a server, once per round. The user's own settings count.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient

        local = f"sqlite:///{run.folder.parent / 'mlflow.db'}"
        client = MlflowClient(self.options.uri or os.environ.get("MLFLOW_TRACKING_URI") or local)
        experiment = _experiment(client, self.options.experiment, run.folder.parent)
        known_runs = client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'")
        if known_runs:
            client.update_run(known_runs[0].info.run_id, status="RUNNING")
            return _Run(client, known_runs[0].info.run_id, self.options.experiment)
        tags = {_ID: run.id, "fedapps.run": run.name, "fedapps.method": run.method, "fedapps.task": run.task}
        made = client.create_run(experiment, tags=tags, run_name=f"{run.name}/{run.method}").info.run_id
        _log_parameters(client, made, run.config)
        return _Run(client, made, self.options.experiment)


class _Run(TrackedRecord):
    def __init__(self, client: MlflowClient, run_id: str, experiment: str) -> None:
        self._client, self._run_id, self._experiment, self._finished = client, run_id, experiment, False
        # The marker is in the last batch of a round, so a round with a marker is complete.
        self._last: int = max((point.step for point in client.get_metric_history(run_id, _MARKER)), default=0)

    @property
    def last_round(self) -> int:
        return self._last

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        self._log(values, server_round)
        self._last = server_round

    def finish(self, final: Mapping[str, float]) -> None:
        known = self._client.get_run(self._run_id).data.metrics
        self._log({f"final/{name}": value for name, value in final.items() if f"final/{name}" not in known}, self._last)
        self._finished = True

    def add_report(self, report: Path) -> None:
        self._client.log_artifact(self._run_id, str(report))

    def register(self, registry: str, alias: str, server_round: int, model: Path) -> None:
        from mlflow.exceptions import MlflowException

        name, tags = f"{self._experiment}-{registry}", {_ROUND: str(server_round)}
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        of_run = self._client.search_model_versions(f"run_id = '{self._run_id}'")
        versions = [one for one in of_run if (one.name, one.tags.get(_ROUND)) == (name, tags[_ROUND])]
        if not versions:
            # A server takes no file but an artifact of the run as the source of a version.
            self._client.log_artifact(self._run_id, str(model), f"model-{server_round}")
            source = f"{self._client.get_run(self._run_id).info.artifact_uri}/model-{server_round}"
            versions = [self._client.create_model_version(name, source, self._run_id, tags=tags)]
        self._client.set_registered_model_alias(name, alias, versions[0].version)

    def close(self) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if self._finished else "FAILED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        for first in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._run_id, metrics[first : first + _METRICS])


def _experiment(client: MlflowClient, name: str, folder: Path) -> str:
    """The id of an experiment, which is created if it does not exist; a server decides where its artifacts are."""
    from mlflow.exceptions import MlflowException

    known = client.get_experiment_by_name(name)
    if known is None:
        local = str(client.tracking_uri).startswith(("sqlite:", "file:"))
        try:
            return str(client.create_experiment(name, (folder / "mlflow-artifacts").as_uri() if local else None))
        except MlflowException:
            known = client.get_experiment_by_name(name)  # another run of a comparison has created it meanwhile
            if known is None:
                raise
    return str(known.experiment_id)


def _log_parameters(client: MlflowClient, run_id: str, config: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    params = [Param(key, str(value)[:_CHARACTERS]) for key, value in config.items()]
    for first in range(0, len(params), _PARAMETERS):
        client.log_batch(run_id, params=params[first : first + _PARAMETERS])


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
        self._session.log_artifact(str(report), name=f"report-{self._id}", type="report")

    def close(self) -> None:
        self._session.finish(exit_code=0 if self._finished else 1)
