"""Run one federation on an engine of this machine."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord

from fedapps.config.clock import devices_of
from fedapps.config.keys import for_flower, path_keys
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.registry.tasks import profiles_class, task_names
from fedapps.report import write_report
from fedapps.report.floors import below_floors
from fedapps.runs.continual import continual_metrics, measure_names, stage_metrics
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import summary_table
from fedapps.sim.files import UnwritableError
from fedapps.sim.flower_run import Fleet, flower_run
from fedapps.sim.inprocess import run_inprocess
from fedapps.sim.processes import usable_cores
from fedapps.strategies import RunEndedError
from fedapps.strategies.aggregation.metrics import MetricMean
from fedapps.tasks.base import DataError, Metrics, Task

from .app_folder import app_folder
from .progress import RunProgress, one_bar
from .runner import RunFailedError, Runner

ENGINES = ("inline", "ray")

#: Floors and ceilings that the task finds on the data of all nodes, without training: metrics by reference.
References = Mapping[str, Mapping[str, float]]


def launch(overrides: Mapping[str, Any], runner: Runner, output_dir: str) -> Path:
    """Run one federation and print its results.

    Parameters
    ----------
    overrides : mapping
        Keys of the run config that replace the defaults of the app.
    runner : Runner
    output_dir : str
        Where the run folder is created, unless ``overrides`` has ``output-dir``.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    ValueError
        Before anything runs, if the config, the run folder or the data are invalid.
    RunFailedError
        If a method did not finish.
    """
    given = resolve(overrides, output_dir)
    with nullcontext() if overrides.get("name") else new_folder(given["output-dir"], "", given["name"]) as folder:
        config = parse(given | ({"name": folder.name} if folder else {}))
        runner.check(config)
        runner.check_data(config)
        runner.run(config)
        return config.run.folder(0)


@contextmanager
def new_folder(
    parent: str | Path, name: str, otherwise: str = "", advice: str = "choose another name"
) -> Iterator[Path]:
    """Create the folder of a job in one step, so that no two jobs get the same, also those of the same second.

    Parameters
    ----------
    parent : str or Path
        Its folder, which is created if it is missing.
    name : str
        What the user calls it; may be empty.
    otherwise : str
        Its name if ``name`` is empty. If that is taken, a number is added: ``-2``, ``-3`` and so on.
    advice : str
        What to do if the folder ``name`` exists; ``{folder}`` stands for its path.

    Yields
    ------
    Path
        The folder. It is removed if what happens in this context fails and leaves it empty.

    Raises
    ------
    ValueError
        The folder ``name`` exists, or a folder cannot be created.
    """
    taken = 0
    while True:
        folder = Path(parent) / (name or (f"{otherwise}-{taken + 1}" if taken else otherwise))
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            if name or not folder.exists():  # what exists otherwise is a file on the way to it
                raise ValueError(f"{folder} exists: {advice.format(folder=folder)}") from None
            taken += 1
        except OSError as error:
            raise ValueError(f"output-dir: {folder} cannot be written ({error}): choose another folder") from error
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def timed_name(kind: str) -> str:
    """The name of a job that was given none: what it is, and the time in seconds."""
    return f"{kind.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"


@dataclass(frozen=True)
class Simulation(Runner):
    """Simulated nodes.

    Parameters
    ----------
    engine : "inline" or "ray"
        ``inline`` runs all nodes in this process; ``ray`` calls ``flwr run``.
    """

    engine: str

    def check(self, config: Config) -> None:
        check_engine(self.engine, config.run)
        RunFolder.check(config, run_id=0)
        check_folder(config, config.task)

    def check_data(self, config: Config) -> None:
        check_data(config)

    def run(self, config: Config) -> None:
        path = config.run.folder(0)
        known = RunFolder(path, "").references()  # of a run that is resumed
        references = {} if known else find_references(config)
        begun = time.monotonic()
        count = len(config.methods)
        label = path.name if count == 1 else f"{path.name}, {count} methods"
        try:
            with one_bar(RunProgress(label, path, count * config.run.rounds)):
                execute(config, self.engine)
        except (RunEndedError, UnwritableError) as error:
            print(f"\n{error}", file=sys.stderr)
        add_references(path, references)
        seconds = time.monotonic() - begun
        conclude(config, self.engine, begun)
        if self.engine == "ray" and not config.run.resume:
            from .estimate import inline_advice

            if advice := inline_advice(config, seconds):
                print(advice)


def check_engine(engine: str, run: RunConfig) -> None:
    """Raise ``ValueError`` for an unknown engine, or for a run config that the engine cannot run."""
    if engine not in ENGINES:
        raise ValueError(f"engine = {engine!r}: must be one of {', '.join(map(repr, ENGINES))}")
    if engine != "inline":
        run.check_separate_nodes()


def conclude(config: Config, engine: str, begun: float) -> None:
    """Print the results of a run.

    Parameters
    ----------
    config : Config
    engine : str
        Name of the engine, for the message.
    begun : float
        ``time.monotonic()`` at the start, in seconds.

    Raises
    ------
    RunFailedError
        If a method or the report is missing.
    """
    path = config.run.folder(0)
    if missing := unfinished(config):
        where = ", ".join(missing)
        raise RunFailedError(f"the run failed in: {where}. See the log above; trained models are in {path}")
    print()
    folder = RunFolder(path, "")
    print(summary_table(folder))
    finals = {label: facts["final"] for label, facts in folder.summary()["methods"].items()}
    for note in below_floors(config.run.task, finals, folder.references()):
        print(f"  {note}")
    for label, method in config.methods.items():
        print(f"  {label}: {method.line}")
    if remark := _without_main_metric(config):
        print(remark)
    print(f"\nfinished in {(time.monotonic() - begun) / 60:.1f} minutes on {engine}")
    print(f"summary: {path / 'summary.json'}\nreport:  {path / 'report.html'}")


def _without_main_metric(config: Config) -> str:
    """Why the table of results has no main metric of the task; empty if it has one, or test data are withheld."""
    finals = [facts["final"] for facts in RunFolder(config.run.folder(0), "").summary()["methods"].values()]
    headline = config.profiles.headline
    if config.run.withhold_test or any(name in final for final in finals for name in headline):
        return ""
    found = sorted({name for final in finals for name in final if name.startswith(("test.", "validation."))})
    reason = (
        f"evaluate gives {', '.join(found)}; name one of them in `headline` of the task's class"
        if found
        else "no evaluation gave a metric; the log above has the reason"
    )
    return f"\nno main metric of the task ({', '.join(headline)}): {reason}"


def unfinished(config: Config) -> list[str]:
    """The methods without results in the run folder; if there are none, ``its report`` if that is missing."""
    path = config.run.folder(0)
    missing = [method for method in config.methods if not RunFolder(path, "").finished(method)]
    return missing or ([] if (path / "report.html").exists() else ["its report"])


def check_data(config: Config) -> None:
    """Read the data of all nodes once. Raises ``DataError`` if data are missing or invalid."""
    if config.run.clock.on:
        devices_of(config.run.clock, config.run.num_nodes, config.run.seed)
    task = config.task
    task.check_nodes(config.run.num_nodes)
    check_folder(config, task)
    if config.run.data_dir:
        for partition in range(config.run.num_nodes):
            task.load_node(Path(config.run.data_dir), partition, config.run.num_nodes)


def check_folder(config: Config, task: Task) -> None:
    """Raise ``DataError`` if ``data-dir`` does not exist, or is empty and the task has no simulated world."""
    if not config.run.data_dir and not task.has_world:
        simulated = f", or --set {config.run.task}.source=simulated for simulated data"
        raise DataError(
            "data-dir = '': this recipe needs recorded data; add --set data-dir=FOLDER"
            + (simulated if hasattr(config.options, "source") else "")
        )
    if config.run.data_dir and not Path(config.run.data_dir).is_dir():
        raise DataError(f"data-dir = {config.run.data_dir!r}: no such folder; give the folder with the data files")


def execute(config: Config, engine: str) -> None:
    """Run a federation with the engine ``inline`` (in this process) or ``ray`` (``flwr run``)."""
    if engine == "inline":
        from flwr.common.logger import update_console_handler

        from fedapps.app.client_app import app as client_app
        from fedapps.app.server_app import app as server_app

        update_console_handler(colored=sys.stderr.isatty())
        flat = config.flat()
        run_inprocess(
            server_app,
            client_app,
            num_nodes=config.run.num_nodes,
            run_config=flat,
            errors="reply",
            batch=config.run.node_batch,
        )
    else:
        fleet = Fleet(config.run.num_nodes, cpus=config.run.node_cpus, gpus=_gpus_per_node(config))
        with app_folder() as app:
            flower_run(app, for_flower(config.flat()), fleet)


def resolve(overrides: Mapping[str, Any], output_dir: str) -> dict[str, Any]:
    """The run config with absolute paths, a name, and what the data of a simulation answer.

    Flower's processes have other working directories, so relative paths would not work there.
    """
    resolved = dict(overrides)
    resolved.setdefault("output-dir", os.path.abspath(output_dir))
    for key in ("output-dir", "data-dir", "cache-dir"):
        if resolved.get(key):
            resolved[key] = str(Path(str(resolved[key])).expanduser().absolute())
    for key in path_keys() & resolved.keys():
        names = str(resolved[key]).split(",")
        resolved[key] = ",".join(_absolute(name.strip()) for name in names)
    if resolved.get("data-dir"):
        found, line = found_in_data(resolved, Path(resolved["data-dir"]))
        resolved |= found
        if line:
            print(line, file=sys.stderr)
    if not resolved.get("name"):
        task = resolved.get("task", RunConfig.task)
        resolved["name"] = timed_name(str(task))
    return resolved


def found_in_data(given: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """The keys of the task that are not given and that the data in a folder answer, such as the labels of texts; and a
    line for the user, empty if there are none.

    Raises
    ------
    DataError
        The data are missing or malformed.
    """
    task = str(given.get("task", RunConfig.task))
    if task not in task_names():
        return {}, ""
    prefix = f"{task}."
    own = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
    found, line = profiles_class(task).found_keys(own, folder)
    return {prefix + key: value for key, value in found.items()}, line


def _absolute(name: str) -> str:
    """The absolute path of an existing file or folder, or of one with placeholders; other names, such as those on a
    model hub, unchanged."""
    path = Path(name).expanduser()
    return str(path.absolute()) if name and ("{" in name or path.exists()) else name


def _gpus_per_node(config: Config) -> float:
    """GPUs that Ray reserves for each node: the available ones, divided among the nodes that run in parallel."""
    if config.run.device == "cpu":
        return 0.0
    import torch

    at_a_time = max(1, usable_cores() // config.run.node_cpus)
    return min(1.0, torch.cuda.device_count() / at_a_time)


def find_references(config: Config) -> References:
    """The references of a simulation, where one folder holds the data of all nodes.

    Returns
    -------
    mapping of str to mapping of str to float
        Metrics by the name of the reference; empty for a task without references.

    Raises
    ------
    DataError
        If data are missing or invalid.
    """
    place = {"partition-id": 0, "num-partitions": config.run.num_nodes}
    folder = config.run.source(config.profiles, place).folder
    of_nodes = config.task.node_references(folder, config.run.num_nodes)
    return {
        **config.task.references(folder),
        **{name: found for name, nodes in of_nodes.items() if (found := _over_nodes(config, nodes))},
    }


def _over_nodes(config: Config, nodes: Sequence[Metrics]) -> dict[str, float]:
    """The metrics of a reference over all nodes, combined as those of methods; of stages, also their average.

    Nodes have equal weight, but for metrics with a count.
    """
    mean = MetricMean(config.task.metric_means)
    for metrics in nodes:
        mean.add(MetricRecord(dict(metrics)), 1.0)
    found = {name: float(value) for name, value in mean.result().items() if isinstance(value, int | float)}
    rows = [{"round": stage, "evaluate": found} for stage in range(1, config.num_stages + 1)]
    averages = {measure_names(metric)[0] for metric in stage_metrics(rows)}
    measured = continual_metrics(rows, config.num_stages) if averages else {}
    return {**found, **{name: value for name, value in measured.items() if name in averages}}


def add_references(path: Path, references: References) -> None:
    """Write the references into a run folder, and again its report, which then shows them.

    Nothing is written if there are no references or the run did not begin. An unfinished run has no report.
    """
    if not references or not path.is_dir():
        return
    RunFolder(path, "").save_references(references)
    if (path / "report.html").exists():
        write_report(path)
