"""The Python interface: functions to run, compare and open runs, and to load, adapt, export and watch trained models.

The functions call what the commands of ``python -m fedapps`` call, print what these print, and raise their errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.base.errors import accept_all_text
from fedapps.base.options import key_of
from fedapps.registry.expressions import split_expressions

if TYPE_CHECKING:
    import torch

    from fedapps.methods.base import Method
    from fedapps.results import ComparisonResult, PipelineResult, RunResult
    from fedapps.tasks.trained import TrainedModel

    from .comparison.matrix import Vary
    from .trained.export import Export
    from .trained.watch import ModelWatch


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

    from fedapps.registry.methods import named

    from .launch.launch import Simulation
    from .launch.recipe import launch_recipe

    accept_all_text()
    if "methods" in keys:
        keys["methods"] = named(keys["methods"])
    keys_of_run = run_keys(overrides, keys)
    folder = launch_recipe(Path(recipe) if recipe else None, keys_of_run, Simulation(engine), str(output_dir))
    from fedapps.results import PipelineResult, RunResult  # imports Matplotlib, which a run needs only at its end

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

    from fedapps.registry.methods import named
    from fedapps.results import ComparisonResult

    from .comparison.compare import compare_recipe, resume_comparison

    accept_all_text()
    if resume:
        if recipe or overrides or methods or vary or seed_keys or against or keys:
            raise ValueError("resume: the folder has the recipe, methods, keys and values; leave them out")
        return ComparisonResult(resume_comparison(Path(resume), jobs=jobs, cluster=cluster))
    if not recipe:
        raise ValueError("recipe: name a recipe or a run-config file, or give the folder of a comparison as resume")
    folder = compare_recipe(
        Path(recipe),
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
        output_dir=str(output_dir),
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
    from fedapps.results import opened

    return opened(Path(folder))


def load(
    run: str | Path,
    method: str | None = None,
    node: str | None = None,
    round: int | str | None = None,
    device: str = "auto",
) -> TrainedModel:
    """Load a trained model.

    The model of a node is the one that the node evaluates in an evaluation round: the shared parameters that it
    receives (those of its cluster, under methods with clusters), its private parameters, and what the method does
    before an evaluation, such as personalisation. Its own data give the metrics that the run reported for it, to the
    bit. Simulated data that are not in the ``cache-dir`` of the run are made in ``~/fedapps/worlds``.

    Parameters
    ----------
    run : str or Path
        A run folder, or a model folder (:meth:`fedapps.tasks.trained.TrainedModel.save`).
    method : str, optional
        The label of the method; may be left out if there is only one.
    node : str, optional
        The key of the node. By default the model that all nodes share.
    round : int or "best", optional
        A round whose checkpoint is kept: one of the last two, or the best by ``track-metric``. By default the last.
    device : "auto", "cpu" or "cuda"
        ``auto`` is the device of the run, for a model folder a GPU; the CPU if there is no GPU.

    Returns
    -------
    TrainedModel
        Of the task's class: its module, what users do with it, metrics, provenance.

    Raises
    ------
    ValueError
        The folder, the method, the node or the round is unknown, which the message lists; the method has no model that
        all nodes share; a checkpoint or a private state is damaged or missing; or the node's data cannot be read, or
        would have to be simulated for far more nodes than the records of the run name. Or a model folder has a link, a
        special file or a file that is too large.
    """
    from .trained.load import load_model

    return load_model(run, method, node, round, device)


def adapt(
    run: str | Path,
    data_dir: str | Path,
    method: str | None = None,
    *,
    epochs: int,
    learning_rate: float = 0.0,
    round: int | str | None = None,
    device: str = "auto",
    output: str | Path | None = None,
) -> TrainedModel:
    """Let a node that took no part in a run fit its personal part to its data, as ``python -m fedapps adapt``.

    The node starts from what the method would send it, and from the initial private parameters. It trains the
    parameters that the method does not share, with the shared ones frozen; where all are shared, it trains all. The
    settings are those of local training, or those with which the method personalises before an evaluation.

    Parameters
    ----------
    run : str or Path
        A run folder, or the model folder of a shared model.
    data_dir : str or Path
        The node's data, in the format of a deployed node's folder.
    method, round, device
        As in :func:`load`.
    epochs : int
        ≥ 0, passes over the node's training data; 0 gives the model that the node receives.
    learning_rate : float
        Above 0, in place of the method's; 0 = the method's.
    output : str or Path, optional
        Where to write the model folder.

    Returns
    -------
    TrainedModel
        Of the task's class; ``origin.metrics`` are its metrics on the node's own data.

    Raises
    ------
    ValueError
        Before training, if an argument is out of range, the run, the method or the round is unknown, the data are
        missing or malformed, a model folder lacks what the method sends beside its model, or ``output`` is a folder
        with other content.
    """
    from .trained.adapt import adapt_model

    return adapt_model(
        run,
        data_dir,
        method,
        epochs=epochs,
        learning_rate=learning_rate,
        round=round,
        device=device,
        output=output,
    )


def watch(folder: str | Path, poll: float = 1.0, device: str | torch.device = "cpu") -> ModelWatch:
    """Follow the models that a deployed node keeps (``keep-model = true`` in its node config).

    ``for model in watch(folder)`` waits for each model; :meth:`~fedapps.trained.watch.ModelWatch.newest` never waits,
    for a control loop. It needs no Flower and no run folder.

    Parameters
    ----------
    folder : str or Path
        ``STATE-DIR/models/RUN/METHOD/NODE``, with the name of the run; or ``STATE-DIR/models/champions/REGISTRY/NODE``,
        which ``fedapps gate`` changes. It need not exist yet.
    poll : float
        Seconds between two looks for a newer model, above 0.
    device : str or torch.device
        Where the models are put.

    Returns
    -------
    ModelWatch
        An iterator over the models as they arrive, from the one that is there on.

    Raises
    ------
    ValueError
        ``poll`` is not above 0.
    """
    from .trained.watch import ModelWatch

    return ModelWatch(Path(folder).expanduser(), poll, device)


def export(
    model: TrainedModel,
    format: str,
    folder: str | Path,
    *,
    tolerance: float = 1e-5,
    licence: str = "unknown",
    data: str | Path | None = None,
) -> Export:
    """Write a trained model in a format of other programs, with a model card.

    What does not compute with tensors alone, such as a planner or the splitting of texts into words, stays outside; the
    card says so.

    Parameters
    ----------
    model : TrainedModel
        As :func:`load` returns it.
    format : "onnx", "torch", "safetensors" or "huggingface"
        ONNX for onnxruntime; a program of ``torch.export``; the model folder, which :func:`load` reads; or a model of
        the library transformers.
    folder : str or Path
        It must not exist, or be empty.
    tolerance : float
        An exported network is run back on random inputs with other batch sizes. It is refused if the largest absolute
        difference of an output from the model's is more than this share of the output's largest absolute value.
    licence : str
        An identifier of Hugging Face's list for the card, such as ``apache-2.0``.
    data : str or Path, optional
        A folder in the format of a node's own data, for a task that does not describe the inputs of its network. By
        default the data of the model's node in the run.

    Returns
    -------
    Export
        ``folder``, and ``written``: its files, and the largest ``difference``. Printed, it says what was written.

    Raises
    ------
    ValueError
        The format is unknown, or the model has no such form; the folder is not empty; a package is missing; or the
        difference is above the tolerance. Nothing is written.
    """
    from .trained.export import export_model

    example = None if data is None else model.data(data)
    return export_model(model, format, folder, tolerance=tolerance, licence=licence, example=example)


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
    from fedapps.base.text_files import flattened  # imports NumPy

    first = flattened(overrides or {})
    second = {".".join(map(key_of, key.split("."))): value for key, value in flattened(keywords).items()}
    if twice := sorted(first.keys() & second.keys()):
        raise ValueError(f"{', '.join(twice)}: given in overrides and as a keyword; leave one of them out")
    return {key: _value(value) for key, value in (first | second).items()}


def _value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _varied(vary: Mapping[str, Sequence[Any]]) -> list[Vary]:
    from .comparison.matrix import Vary

    axes = [Vary(key, tuple(map(_value, values))) for key, values in vary.items()]
    if empty := [axis.key for axis in axes if not axis.values]:
        raise ValueError(f"vary: {empty[0]!r} has no value; write it as {{'lqr.trajectories': [4, 8]}}")
    return axes
