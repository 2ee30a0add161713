"""The Python interface: functions to run and compare, and to open what they left.

The functions call what the commands of ``python -m fedapps`` call, print what these print, and raise their errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.base.errors import accept_all_text
from fedapps.base.options import key_of
from fedapps.base.text_files import flattened
from fedapps.methods.base import Method
from fedapps.registry.expressions import split_expressions
from fedapps.registry.methods import named
from fedapps.results import ComparisonResult, PipelineResult, RunResult, opened

from .comparison.compare import compare_recipe, resume_comparison
from .comparison.matrix import Vary
from .launch.launch import Simulation
from .launch.recipe import launch_recipe


def run(
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    engine: str = "auto",
    output_dir: str | Path = "runs",
    **keys: Any,
) -> RunResult | PipelineResult:
    """Run one federation in simulation, as ``python -m fedapps run``.

    Parameters
    ----------
    recipe : str or Path, optional
        Name of a recipe, or path of a run-config file; by default the app's config.
    overrides : mapping, optional
        Keys of the run config that override the recipe, such as ``{"lqr.horizon": 20}``.
    engine : "auto", "inline" or "ray"
        ``inline`` runs all nodes in this process; ``ray`` starts a SuperLink and runs the nodes in parallel; ``auto``
        is the faster of the two.
    output_dir : str or Path
        Where the run folder is created.
    **keys
        More keys, written with underscores; see :func:`run_keys`. The items of ``methods`` can be classes, as in
        :func:`compare`.

    Returns
    -------
    RunResult or PipelineResult
        The latter if the recipe is a pipeline.

    Raises
    ------
    ValueError
        Before anything runs, if the recipe, a key, the run folder or the data are invalid.
    RunFailedError
        If a method did not finish.
    """

    accept_all_text()
    if "methods" in keys:
        keys["methods"] = named(keys["methods"])
    keys_of_run = run_keys(overrides, keys)
    path = Path(recipe).expanduser() if recipe else None
    folder = launch_recipe(path, keys_of_run, Simulation(engine), _folder(output_dir))
    return RunResult(folder) if (folder / "config.toml").exists() else PipelineResult(folder)


def compare(
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    methods: str | Sequence[str | Method | type[Method]] = (),
    seeds: int = 3,
    first_seed: int = 0,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seed_keys: Sequence[str] = (),
    against: str = "",
    engine: str = "inline",
    jobs: int = 0,
    cluster: str = "",
    resume: str | Path | None = None,
    output_dir: str | Path = "runs",
    **keys: Any,
) -> ComparisonResult:
    """Run methods with several seeds, as ``python -m fedapps compare``.

    The runs are spawned processes, so a script that compares needs the line ``if __name__ == "__main__":``.

    Parameters
    ----------
    recipe, overrides, output_dir, **keys
        As in :func:`run`; the recipe is required unless ``resume`` is given.
    methods : str, or sequence of str, Method or subclass of Method
        Methods such as ``fedprox(mu=0.1)``; if empty, the recipe's methods. A class or an instance of one, such as
        ``MyMethod(mu=0.1)``, needs no package; it can be defined in a script or a notebook.
    seeds, first_seed : int
        The number of seeds, at least 1, and the first of them.
    vary : mapping of str to sequence
        Repeats the comparison for each of these values of a key, and of several keys for each combination of their
        values; by default those that the recipe varies, if any.
    seed_keys : sequence of str
        Keys that take the value of the seed in each run, such as ``text.partition-seed``; by default the recipe's.
    against : str
        The baseline, by its label or display name: each other method is tested against it alone; by default, pairs are.
    engine : "inline" or "ray"
        ``inline`` runs each run in one process; ``ray`` runs nodes in processes of Ray.
    jobs : int
        Number of parallel runs; 0: one per CPU core of this machine or of the cluster.
    cluster : str
        Address of a Ray cluster on which the runs are executed, ``HOST:PORT`` or ``auto``; empty: this machine.
    resume : str or Path, optional
        Folder of a comparison that was interrupted, or of which runs failed; it has the recipe, the methods, the keys
        and the values.

    Returns
    -------
    ComparisonResult

    Raises
    ------
    ValueError
        Before anything runs, if the recipe, a method, a key or a varied value is invalid.
    RunFailedError
        If all runs fail; ``failed`` of the result has the runs that did, if only some did.
    """

    accept_all_text()
    if resume:
        if recipe or overrides or methods or vary or seed_keys or against or keys:
            raise ValueError("resume: the folder has the recipe, methods, keys and values; leave them out")
        return ComparisonResult(resume_comparison(Path(resume).expanduser(), jobs=jobs, cluster=cluster))
    if not recipe:
        raise ValueError("recipe: name a recipe or a run-config file, or give the folder of a comparison as resume")
    folder = compare_recipe(
        Path(recipe).expanduser(),
        methods=split_expressions(named(methods)),
        seeds=seeds,
        first_seed=first_seed,
        engine=engine,
        jobs=jobs,
        cluster=cluster,
        overrides=run_keys(overrides, keys),
        vary=_varied(vary or {}),
        seed_keys=seed_keys,
        against=against,
        output_dir=_folder(output_dir),
    )
    return ComparisonResult(folder)


def open_run(folder: str | Path) -> RunResult | PipelineResult | ComparisonResult:
    """Read the folder of a run, a pipeline or a comparison, which may be of an earlier process.

    Returns
    -------
    RunResult, PipelineResult or ComparisonResult
        What :func:`run` or :func:`compare` returned. A run may be unfinished, a comparison may not.

    Raises
    ------
    ValueError
        If there is no such folder, nothing of this kind in it, or a file is malformed.
    """
    return opened(Path(folder).expanduser())


def run_keys(overrides: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The flat keys of a run config from a mapping and from keyword arguments.

    In keywords, an underscore stands for a hyphen: ``num_nodes=3`` is ``num-nodes``. A table such as
    ``lqr={"horizon": 20}`` has the keys of a task or a method. Paths become strings, and the items of a sequence are
    joined by commas.

    Raises
    ------
    ValueError
        If a key is given twice.
    """
    first = flattened(overrides or {})
    second = {".".join(map(key_of, key.split("."))): value for key, value in flattened(keywords).items()}
    if twice := sorted(first.keys() & second.keys()):
        raise ValueError(f"{', '.join(twice)}: given in overrides and as a keyword; leave one of them out")
    return {key: _value(value) for key, value in (first | second).items()}


def _folder(path: str | Path) -> str:
    return str(Path(path).expanduser())


def _value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _varied(vary: Mapping[str, Sequence[Any]]) -> list[Vary]:
    for key, values in vary.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise ValueError(
                f"vary: {key!r} = {values!r}: must be a list of values; write it as {{{key!r}: [{values!r}]}}"
            )
    axes = [Vary(key, tuple(map(_value, values))) for key, values in vary.items()]
    if empty := [axis.key for axis in axes if not axis.values]:
        raise ValueError(f"vary: {empty[0]!r} has no value; write it as {{'lqr.trajectories': [4, 8]}}")
    return axes
