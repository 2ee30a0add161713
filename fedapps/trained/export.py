"""Export a trained model: ``fedapps export``.

The folder has the model in one format, what its inputs need, and a model card. It is written completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedapps.base.atomic import whole_folder
from fedapps.base.options import matches
from fedapps.base.report.metrics import columns, describe
from fedapps.base.report.numbers import counted, format_number
from fedapps.config.keys import defaults, path_keys
from fedapps.methods.base import Method
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import method_class, resolved
from fedapps.registry.tasks import task_lines
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.base import NodeData
from fedapps.tasks.partitioners import added_logits
from fedapps.tasks.trained import Origin, TrainedModel

from .formats import Format, HuggingFace, Onnx, Request, Safetensors, TorchProgram, Written, described
from .programs import TOLERANCE

CARD = "README.md"
#: Keys that say where a run was computed and not what was learned.
_PLACES = {"name", "output-dir", "cache-dir", "trackers", "timeout", "device", "resume", "task", "methods", "seed"}
_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_environment.filters |= {"number": format_number, "cell": lambda text: str(text).replace("|", "\\|")}
_environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
FORMATS: Mapping[str, type[Format]] = {kind.name: kind for kind in (Onnx, TorchProgram, Safetensors, HuggingFace)}
#: What a card says if nobody states a licence.
UNKNOWN_LICENCE = "unknown"


def card(model: TrainedModel, target: Format, written: Written, licence: str) -> str:
    """The model card.

    Parameters
    ----------
    model : TrainedModel
    target : Format
    written : Written
        What the format wrote.
    licence : str
        An identifier of Hugging Face's list, such as ``apache-2.0``, or ``unknown``.
    """
    origin, network = model.origin, written.network
    values = {
        "model": model,
        "written": written,
        "licence": licence,
        "library": target.library,
        "pipeline": model.pipeline_tag,
        "title": " ".join(filter(None, [model.task.name, origin.method, origin.node and f"of {origin.node}"])),
        "tags": _tags(model, target),
        "whose": _whose(model),
        "facts": _facts(model, licence),
        "dataset": f"data of node {origin.node}" if origin.node else "data of the nodes",
        "measured": f"by node {origin.node}" if origin.node else "by the nodes",
        "metrics": _metrics(origin),
        "spread": bool(origin.spread),
        "private": list(_private(model)),
        "settings": _settings(origin),
        "versions": ", ".join(f"{name} {number}" for name, number in origin.versions.items()) or "not recorded",
        "inputs": [described(*pair, network) for pair in zip(network.inputs, network.input_names, strict=True)]
        if network
        else [],
    }
    return _environment.get_template("card.md").render(values)


def _tags(model: TrainedModel, target: Format) -> list[str]:
    method, kind = _method_name(model.origin), _method(model.origin)
    federated = kind is not None and not kind.pools_data and not model.private.everything
    named = [*(["federated-learning"] if federated else []), "fedapps", "flower", model.task.name]
    return [*named, *([method] if method else []), target.name]


def _method(origin: Origin) -> type[Method] | None:
    """The class of the method; ``None`` without one, and for a method of another package that is not installed here."""
    if not origin.method:
        return None
    try:
        return method_class(resolved(read_expression(origin.method)).name)
    except ValueError:
        return None


def _method_name(origin: Origin) -> str:
    kind = _method(origin)
    return kind.name if kind else read_expression(origin.method).name if origin.method else ""


def _whose(model: TrainedModel) -> str:
    origin = model.origin
    if not origin.method:
        return f"A model of the task {model.task.name}. How it was trained is not recorded."
    kind = _method(origin)
    if kind and kind.pools_data:
        return "A reference model that one node trained on the data of all nodes, without federated learning."
    if model.private.everything:
        return f"The model of node {origin.node}, which trained alone, without federated learning."
    federated = "trained by federated learning" if kind else "trained by a method that is not installed here"
    if origin.adapted_epochs:
        return (
            f"A model {federated}, which node {origin.node} fitted to its own data afterwards. The node took no part "
            "in the training."
        )
    owner = f"The personal model of node {origin.node}" if origin.node else "The model that all nodes share"
    return f"{owner}, {federated}."


def _facts(model: TrainedModel, licence: str) -> dict[str, str]:
    origin = model.origin
    kind = _method(origin)
    pooled = kind is not None and kind.pools_data
    nodes = "1, with the data of all nodes" if pooled else f"{origin.nodes:,}" if origin.nodes else ""
    whose = f" (of node {origin.node})" if origin.node else ""
    return {
        "task": f"`{model.task.name}`: {task_lines().get(model.task.name, '')}",
        "method": f"`{origin.method}`{f': {kind.summary}' if kind else ''}" if origin.method else "",
        "paper of the method": kind.citation if kind else "",
        "run": f"{origin.run}, seed {origin.seed}" if origin.run else "",
        "round": f"{origin.round} of {origin.rounds}" if origin.rounds else "",
        "nodes": nodes,
        "epochs of adaptation": f"{origin.adapted_epochs}{whose}" if origin.adapted_epochs else "",
        "training examples": f"{origin.examples:,}{whose}" if origin.examples else "",
        "parameters": f"{sum(each.numel() for each in model.module.parameters()):,}",
        "licence": licence if licence != UNKNOWN_LICENCE else "not stated: the terms of the training data and of "
        "pretrained weights apply; fedapps is Apache-2.0",
    }  # fmt: skip


def _metrics(origin: Origin) -> list[dict[str, Any]]:
    metrics = []
    for name in columns(name for name in origin.metrics if not name.startswith(STALE_METRICS_PREFIX)):
        value, over = origin.metrics[name], origin.spread.get(name, {})
        if isinstance(value, (int, float)):
            shown = describe(name)
            limits = [format_number(over[limit]) for limit in ("low", "high") if limit in over]
            metrics.append(
                {
                    "name": name,
                    "label": shown.label,
                    "title": shown.title,
                    "value": value,
                    "mean": format_number(over["mean"]) if over else "",
                    "interval": " to ".join(limits),
                    "nodes": str(int(over["nodes"])) if over else "",
                }
            )
    return metrics


def _private(model: TrainedModel) -> Iterator[str]:
    origin = model.origin
    kept = [
        (name, each.numel())
        for name, each in model.module.state_dict().items()
        if matches(name, model.private.patterns)
    ]
    kind = _method(origin)
    if not origin.method:
        yield "What was shared in the training is not recorded."
    elif kind and kind.pools_data:
        yield "Nothing: one node had the data of all nodes."
    elif model.private.everything:
        yield "Nothing was shared: each node trained alone."
    elif model.private.patterns:
        yield f"Parameters that stayed on the nodes in training: {', '.join(f'`{p}`' for p in model.private.patterns)}."
    else:
        yield "All trained parameters were shared."
    if origin.node:
        counts = f" ({counted(len(kept), 'tensor')}, {sum(size for _, size in kept):,} numbers)" if kept else ""
        what = f"this node's private parameters{counts}, and " if kept else ""
        yield (
            f"This is the model of one node. It has {what}what the method fitted to this node's data before an "
            "evaluation, if it fits anything. Whoever has the model can try to draw conclusions about these data."
        )
        if added_logits(model.module) is not None:
            yield (
                "Its logits have the logarithms of this node's label shares added, as in the evaluation on the node's "
                "own examples."
            )
        if model.facts:
            names = ", ".join(f"`{name}`" for name in model.facts)
            yield f"Facts of this node that inputs need are in the files, too: {names}."
    elif kept:
        yield f"This model has {counted(len(kept), 'tensor')} of the private parameters."
    if origin.guarantee:
        yield f"Differential privacy: {origin.guarantee}."
        if origin.node:
            yield "The guarantee covers what the node sent. It does not cover what is personal in this model."
    elif (dp := origin.settings.get("dp", "none")) != "none":
        yield (
            f"Differential privacy: the training had `dp = {dp}`. Its guarantee is not recorded in this model; the "
            "folder of the run has it."
        )
    else:
        yield "The record of the training has no guarantee of differential privacy."


def _settings(origin: Origin) -> Mapping[str, Any]:
    """The keys that differ from their defaults. A card is published, so a path is shown without its folders."""
    usual, paths = defaults(origin.settings), path_keys(origin.settings)
    method = _method_name(origin)

    def shown(key: str, value: Any) -> Any:
        is_path = isinstance(value, str) and (key in paths or PurePath(value).is_absolute())
        return PurePath(value).name if is_path else value

    def concerns(key: str) -> bool:
        block, dot, _ = key.partition(".")
        return not dot or block in (origin.settings.get("task"), method)

    return {
        key: shown(key, value)
        for key, value in origin.settings.items()
        if key not in _PLACES and usual.get(key) != value and concerns(key)
    }


@dataclass(frozen=True)
class Export:
    """An exported model.

    Parameters
    ----------
    folder : Path
    written : Written
        Its files, and how far the network is from the model when it is run back.
    """

    folder: Path
    written: Written

    def __str__(self) -> str:
        lines = [f"{self.folder}: {', '.join([*self.written.files, CARD])}"]
        if self.written.difference:
            lines.append(f"run back, the largest absolute difference is {self.written.difference.absolute:.3g}")
        if self.written.network and self.written.network.outside:
            lines.append(self.written.network.outside)
        return "\n".join(lines)


def export(
    model: TrainedModel,
    format: str,
    folder: str | Path,
    *,
    tolerance: float = TOLERANCE,
    licence: str = UNKNOWN_LICENCE,
    data: str | Path | NodeData | None = None,
) -> Export:
    """Write a trained model in a format of other programs, with a model card.

    What does not compute with tensors alone, such as a planner or the splitting of texts into words, stays outside; the
    card says so.

    Parameters
    ----------
    model : TrainedModel
        As :func:`fedapps.load` returns it.
    format : "onnx", "torch", "safetensors" or "huggingface"
        ONNX for onnxruntime; a program of ``torch.export``; the model folder, which :func:`fedapps.load` reads; or a
        model of the library transformers.
    folder : str or Path
        It must not exist, or be empty.
    tolerance : float
        An exported network is run back on random inputs with other batch sizes. It is refused if the largest absolute
        difference of an output from the model's is more than this share of the output's largest absolute value.
    licence : str
        An identifier of Hugging Face's list for the card, such as ``apache-2.0``.
    data : str, Path or NodeData, optional
        Data of a node, or a folder with them in the format of a node's own data, for a task that does not describe the
        inputs of its network. By default the data of the model's node in the run.

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
    if format not in FORMATS:
        raise ValueError(f"format = {format!r}: must be one of {', '.join(map(repr, FORMATS))}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance = {tolerance}: must be at least 0")
    path, target = Path(folder).expanduser(), FORMATS[format]()
    target.check()
    example = model.data(data) if isinstance(data, str | Path) else data or model.own
    with whole_folder(path) as unfinished:
        written = target.write(Request(model, unfinished, tolerance, example))
        (unfinished / CARD).write_text(card(model, target, written, licence), encoding="utf-8")
    return Export(path, written)
