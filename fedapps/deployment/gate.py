"""``fedapps gate`` and ``fedapps rollback``: runs that change the model in use, on a federation or simulated nodes."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.common import log

from fedapps.base.atomic import UnwritableError, remove_folder, remove_leftovers
from fedapps.base.errors import RunFailedError
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.launch import execute
from fedapps.report import write_report
from fedapps.runs.champions import Registry
from fedapps.runs.owner import check_free
from fedapps.runs.run_folder import RunFolder, begun, changed_keys, read_config
from fedapps.strategies import RunEndedError

from .fleet import check_deployable, submit

#: What stands for the default connection of Flower's config.
DEFAULT = "-"
#: Runs a config on simulated nodes.
Simulate = Callable[[Config], object]
_inline: Simulate = partial(execute, engine="inline")


def steer(
    registry: Path,
    run: Path | None,
    action: str,
    federation: str,
    overrides: Mapping[str, Any],
    simulate: Simulate = _inline,
) -> None:
    """Let the nodes do what the key ``gate`` says.

    Parameters
    ----------
    registry : Path
    run : Path or None
        The folder of the challenger's run; by default that of the newest champion, whose config the nodes get.
    action : str
        A value of the key ``gate``.
    federation : str
        The name of a connection; empty for simulated nodes.
    overrides : mapping
        Keys that replace those of the run.
    simulate : function of a config
        Runs it without a federation, by default on as many nodes as it says in this process.

    Raises
    ------
    ValueError
        There is no champion yet, or none to go back to, or the run folder or a key is invalid.
    RunFailedError
        The run failed.
    """
    folder = registry.expanduser().absolute()
    known = Registry.read(folder)
    if run is None:
        if not known.generations:
            raise ValueError(f"{folder} has no champion yet: promote one with `fedapps gate RUN --registry {registry}`")
        run = Path(known.generations[-1].run)
    if action == "rollback":
        known.rolled_back()  # before a run starts that could only fail
    path = run.expanduser().absolute()
    if not (path / "config.toml").is_file():
        raise ValueError(f"{path} is no run folder: give the folder of a finished run")
    paths = {"name": path.name, "output-dir": str(path.parent), "start": str(path), "registry": str(folder)}
    keys = {**read_config(path), "resume": False, **paths, "gate": action, **overrides}
    _run(keys, federation, simulate)


def generation(
    recipe: Path, federation: str, overrides: Mapping[str, Any], output_dir: str = "runs", simulate: Simulate = _inline
) -> Path:
    """Train a recipe from the champion, and let the nodes use the better model: the next week of a fleet.

    A generation whose process ended early is completed first: a run that has not finished is resumed, in place of a new
    one, one without a decision is compared, and a model that was promoted is brought to the nodes. If the recipe has
    changed since, a run that has not finished is given up with a warning, and a new one begins; this is not so for keys
    ``gate-*`` and keys that do not change the results, which take effect at once. At the end, the checkpoints of old
    generations and the private state of their simulated nodes are removed: all but the last ``keep-runs``, and the
    champions. The report of all generations is then ``report.html`` in the registry. Runs for another registry, which
    can have the same names, are left alone.

    Parameters
    ----------
    recipe : Path
        With ``registry``, ``track-metric`` and the keys ``gate-*``. Runs are called by its name, or its key ``name``,
        and a number.
    federation : str
        As in :func:`steer`.
    overrides : mapping
        Keys that override the recipe.
    output_dir : str
        The folder of the runs, unless the recipe has ``output-dir``.
    simulate : function of a config
        As in :func:`steer`.

    Returns
    -------
    Path
        The folder of the run.

    Raises
    ------
    ValueError
        A key is missing or invalid, a decision of the registry is damaged, or another process owns the unfinished run.
    RunFailedError
        A run failed.
    """
    keys = read_recipe(recipe, overrides)
    if missing := [key for key in ("registry", "track-metric") if not keys.get(key)]:
        raise ValueError(f"{recipe}: {', '.join(missing)} must be set for a generation (docs/fleet_over_time.md)")
    registry = Path(str(keys["registry"])).expanduser().absolute()
    output = Path(str(keys.get("output-dir") or output_dir)).expanduser().absolute()
    stem = str(keys.get("name") or recipe.stem)
    gate_keys = {key: value for key, value in keys.items() if key.startswith("gate-")}
    begun(output / f"{stem}-{max(_numbers(output, stem), default=0)}")  # a run without a config is removed
    path = [output / f"{stem}-0", *_runs(output, stem, registry)][-1]
    champions = Registry.read(registry)
    left = begun(path) and not champions.decided(path)
    unfinished = left and not _finished(path)
    if unfinished:
        set_here = ("registry", "start") if champions.champion else ("registry",)
        stored = {key: each for key, each in read_config(path).items() if key in set_here or key.startswith("gate-")}
        resumed = keys | stored | {"name": path.name, "output-dir": str(output), "resume": True}
        if changed := changed_keys(path, parse(resumed)):
            check_free(path)
            lines = "\n  ".join(changed)
            log(WARNING, "%s has not finished and is given up, because the recipe has changed:\n  %s", path, lines)
            left = unfinished = False
        else:
            _train(path, resumed, federation, simulate)
    if left:
        steer(registry, path, "compare", federation, gate_keys, simulate)
    elif champions.delivered != champions.champion:  # a gate that ended after its decision
        steer(registry, None, "deliver", federation, gate_keys, simulate)
    if not unfinished:
        champions = Registry.read(registry)
        start = champions.of(champions.champion).run if champions.champion else str(keys.get("start", ""))
        path = output / f"{stem}-{max(_numbers(output, stem), default=0) + 1}"
        week = {"name": path.name, "output-dir": str(output), "start": start, "registry": str(registry)}
        _train(path, keys | week, federation, simulate)
        steer(registry, path, "compare", federation, gate_keys, simulate)
    _remove_old(path, stem, Registry.read(registry))
    log(INFO, "report of the generations: %s", write_report(registry))
    return path


def _train(path: Path, keys: Mapping[str, Any], federation: str, simulate: Simulate) -> None:
    """Run what trains. A node of which nothing can be used keeps no other from the better model."""
    try:
        _run(keys, federation, simulate)
    except RunFailedError as error:
        if not (begun(path) and _finished(path)):
            raise
        log(WARNING, "the run has finished, and its model is compared: %s", error)


def _numbers(output: Path, stem: str) -> list[int]:
    """The numbers of the runs of a recipe, ascending."""
    names = (re.fullmatch(re.escape(stem) + r"-([1-9]\d*)", path.name) for path in output.glob("*"))
    return sorted(int(name[1]) for name in names if name)


def _runs(output: Path, stem: str, registry: Path) -> list[Path]:
    """The folders of the runs of a recipe for a registry, in the order of their numbers."""
    paths = [output / f"{stem}-{number}" for number in _numbers(output, stem)]
    return [path for path in paths if (path / "config.toml").exists() and _registry_of(path) == registry.resolve()]


def _registry_of(path: Path) -> Path:
    return Path(str(read_config(path).get("registry", ""))).expanduser().resolve()


def _finished(path: Path) -> bool:
    """Whether a run has completed all of its methods."""
    methods = parse(read_config(path), on_node=True).methods
    return all(RunFolder(path, "").finished(label) for label in methods)


def _remove_old(last: Path, stem: str, registry: Registry) -> None:
    """Remove the checkpoints and the state of simulated nodes of the runs before, as ``keep-runs`` says.

    Those that have not finished were given up.
    """
    keep = parse(read_config(last), on_node=True).run.keep_runs
    champions = {Path(one.run).resolve() for one in registry.generations}  # perhaps by way of a link
    paths = _runs(last.parent, stem, registry.folder)
    for path in [path for path in paths if path.resolve() not in champions][:-keep] if keep else ():
        remove_leftovers(path)
        for name in ("checkpoints", "nodes"):
            remove_folder(path / name)


def _run(keys: Mapping[str, Any], federation: str, simulate: Simulate) -> None:
    config = parse(keys)
    if federation:
        check_deployable(config)
        submit(keys, "" if federation == DEFAULT else federation, stream=True)
        return
    try:
        simulate(config)
    except (RunEndedError, UnwritableError) as error:
        raise RunFailedError(str(error)) from error
