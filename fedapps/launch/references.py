"""The references of a run: floors and ceilings that the task finds on the data of all nodes, without training."""

from collections.abc import Mapping
from pathlib import Path

from fedapps.config.parsing import Config
from fedapps.report import write_report
from fedapps.runs.run_folder import RunFolder

References = Mapping[str, Mapping[str, float]]


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
    return config.task.references(config.run.source(config.profiles, place).folder)


def add_references(path: Path, references: References) -> None:
    """Write the references into a run folder, and again its report, which then shows them.

    Nothing is written if there are no references or the run did not begin. An unfinished run has no report.
    """
    if not references or not path.is_dir():
        return
    RunFolder(path, "").save_references(references)
    if (path / "report.html").exists():
        write_report(path)
