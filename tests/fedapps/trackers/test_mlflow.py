"""MLflow's own client finds the numbers of the run in an SQLite store, each round once."""

from contextlib import closing
from pathlib import Path

import pytest
from tracked_runs import SMALL, cut_and_resumed, expected

from fedapps.trackers import TrackedRun
from fedapps.trackers.services import Mlflow

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'fedapps[mlflow]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    given = SMALL | {"cache-dir": str(tmp_path_factory.mktemp("worlds")), "trackers": "mlflow"}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return cut_and_resumed(given, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def client(folder):
    return mlflow.MlflowClient(f"sqlite:///{folder.path.parent / 'mlflow.db'}")


@pytest.fixture(scope="module")
def runs(client):
    experiment = client.get_experiment_by_name("fedapps")
    return {run.data.tags["fedapps.method"]: run for run in client.search_runs([experiment.experiment_id])}


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_every_number_of_every_round_is_there_once(folder, client, runs, method):
    rounds = expected(folder.path, method)
    names = {name for values in rounds.values() for name in values}
    run = runs[method]
    assert {name for name in run.data.metrics if not name.startswith("final/")} == names
    for name in names:
        history = client.get_metric_history(run.info.run_id, name)
        assert [point.step for point in history] == [number for number, values in rounds.items() if name in values]
        if not name.startswith("round/"):  # the cut round has the traffic and the seconds of its first attempt
            assert [point.value for point in history] == [values[name] for values in rounds.values() if name in values]


def test_a_run_of_the_tracker_is_continued_and_finished(folder, client, runs):
    assert runs.keys() == {"fedavg", "local"}
    for method, run in runs.items():
        assert run.info.status == "FINISHED"
        assert run.info.run_name == f"run/{method}"
        assert run.data.params["lqr.horizon"] == "6"
        final = folder.summary()["methods"][method]["final"]
        assert run.data.metrics["final/test.excess"] == final["test.excess"]
        assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_the_models_of_a_fleet_are_versions_with_aliases(folder, client, runs, tmp_path):
    model, name = tmp_path / "round-000003.safetensors", "fedapps-champions"
    given = [("fedavg", "champion"), ("local", "challenger"), ("local", "champion"), ("fedavg", "champion")]
    for method, alias in given:
        model.write_text(method)
        run = TrackedRun("run", method, "lqr", runs[method].data.tags["fedapps.id"], {}, folder.path)
        with closing(Mlflow().open(run)) as record:
            record.finish({})
            record.register("champions", alias, 3, model)
    versions = {alias: client.get_model_version_by_alias(name, alias) for alias in ("champion", "challenger")}
    assert len(client.search_model_versions(f"name = '{name}'")) == 2
    for method, (alias, number) in (("fedavg", ("champion", 1)), ("local", ("challenger", 2))):
        version = versions[alias]
        assert (int(version.version), version.run_id) == (number, runs[method].info.run_id)
        assert version.tags == {"fedapps.round": "3"}
        assert version.source.endswith("/artifacts/model-3")
        assert client.get_run(version.run_id).info.status == "FINISHED"
        path = client.download_artifacts(version.run_id, "model-3", str(tmp_path))
        assert (Path(path) / model.name).read_text() == method


def test_the_report_is_an_artifact(folder, client, runs, tmp_path):
    path = client.download_artifacts(runs["local"].info.run_id, "report.html", str(tmp_path))
    with open(path, "rb") as file:
        assert file.read() == (folder.path / "report.html").read_bytes()
