"""What one update reveals in any task: label counts, the inputs of the head, and the examples, beside each defence."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.base.atomic import write_whole
from fedapps.base.report.tables import text_table
from fedapps.base.seeding import derive_seed, torch_seed
from fedapps.clients.data import cached_load
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.inputs import check_folder, resolve
from fedapps.launch.plan import new_folder, timed_name
from fedapps.registry.tasks import task_class
from fedapps.runs.owner import owned
from fedapps.sim.matrix import Lines, run_matrix
from fedapps.tasks.base import Batch, NodeData, Task

from .counts import (
    head_layer,
    input_errors,
    label_counts,
    linear_inputs,
    mean_answers,
    right_share,
)
from .matching import Search, decibels, errors, matched, vector
from .observed import (
    SITUATIONS,
    Changes,
    Situation,
    drawn_batches,
    fisher_terms,
    joined,
    observed,
    roots,
    run_in,
    simulated,
)

#: The attacker of label counts has public examples: at most the first number from each of the second number of nodes.
_PUBLIC, _PUBLIC_NODES = 64, 8
#: An input of the head counts as read up to this relative distance.
_NEAR = 0.1
#: The name of these attacks beside those on words.
LEAKAGE = "leakage"
LABELS, FEATURES = "label counts", "inputs of the head"
#: What is measured of an attack.
MEASURES = ("error", "read", "another")
Row = dict[str, Any]


class Audited:
    """A task, its first model, and the data of its nodes, of which the first is attacked."""

    def __init__(self, flat: Mapping[str, Any], seed: int) -> None:
        config = parse(dict(flat))
        self.run: RunConfig = replace(config.run, seed=config.run.seed + seed)
        self.task: Task = config.task
        if self.run.num_nodes < 2:
            raise ValueError("num-nodes = 1: must be at least 2, because attacks are compared with another node's data")
        check_folder(config, self.task)
        with torch_seed(self.run.seed, "model"):
            self.model: nn.Module = self.task.build_model_for(self.data(0))

    def data(self, node: int) -> NodeData:
        """The data of a node; they are repeated after the last one."""
        number = node % self.run.num_nodes
        source = self.run.source(self.task, {"partition-id": number, "num-partitions": self.run.num_nodes})
        return cached_load(source, self.task, False)

    def batches(self, situation: Situation, node: int) -> list[Batch]:
        """What a node trains on, for each step; another draw for a node with a number below 0."""
        return drawn_batches(self.task, self.model, self.data(abs(node)), situation, self.run.seed, node)


def attack(audited: Audited, situation: Situation, search: Search) -> list[Row]:
    """Attack what the server gets of the first node in a situation.

    Returns
    -------
    list of dict
        One for each attack that the task allows: ``attack``; ``error`` in ``unit``; ``read``, the share of the node's
        examples that were read; and ``another``, the share of another node's examples that are as near to the result.
    """
    task, model, run = audited.task, audited.model, run_in(audited.run, situation)
    own, other = audited.batches(situation, 0), audited.batches(situation, -1)
    sent = own
    if situation.nodes > 1:
        sent = [joined([own[0], *(audited.batches(situation, node)[0] for node in range(1, situation.nodes))])]
    changes = observed(task, model, sent, run, fisher=situation.fisher)
    rows: list[Row] = []
    layer = head_layer(model, task.roles.head)
    templates = [dict(batch) for batch in sent]
    if task.num_classes and layer and not situation.fisher:
        counts = _counted(audited, situation, run, changes, layer, sum(len(batch["label"]) for batch in sent))
        true, another = (_tallied(batches, task.num_classes) for batches in (own, other))
        shares = right_share(counts, true), right_share(counts, another)
        rows.append({"attack": LABELS, "unit": ""} | dict(zip(MEASURES[1:], shares, strict=True)))
        labels = torch.repeat_interleave(torch.arange(task.num_classes), counts)
        for index, template in enumerate(templates):
            template["label"] = labels[index :: len(templates)]
    if layer and task.roles.features and not situation.fisher:
        read = linear_inputs(changes[f"{layer}.weight"], changes[f"{layer}.bias"])
        with torch_seed(run.seed, "audit", "train"), torch.no_grad():
            gaps = [input_errors(torch.cat([task.features(model, one) for one in of]), read) for of in (own, other)]
        rows.append(_row(FEATURES, "relative", gaps, _NEAR, float(gaps[0].median())))
    return rows + _searched(audited, situation, run, changes, templates, own, other, search)


def _searched(
    audited: Audited,
    situation: Situation,
    run: RunConfig,
    changes: Changes,
    templates: Sequence[Batch],
    own: Sequence[Batch],
    other: Sequence[Batch],
    search: Search,
) -> list[Row]:
    task, secrets = audited.task, audited.task.secrets
    model = deepcopy(audited.model).double()

    def simulate(batches: Sequence[Batch]) -> Tensor:
        if situation.fisher:
            return vector(roots(fisher_terms(task, model, batches[0], seed=run.seed)))
        return vector(simulated(task, model, batches, run))

    read, _ = matched(
        simulate,
        vector(roots(changes) if situation.fisher else changes),
        [_doubled(batch) for batch in templates],
        secrets,
        search,
        torch.Generator().manual_seed(derive_seed(run.seed, "audit", situation.name)),
        parts=run.compression == "top-k",
    )
    rows = []
    for secret in secrets:
        gaps = [errors(joined(of)[secret.tensor], joined(read)[secret.tensor]) for of in (own, other)]
        single = [decibels(float(gap)) for gap in gaps[0]]
        rows.append(_row(secret.what, "dB", gaps, secret.near, fmean(single)))
    return rows


def _row(attack: str, unit: str, gaps: Sequence[Tensor], near: float, error: float) -> Row:
    own, other = (float((gap <= near).double().mean()) for gap in gaps)
    return {"attack": attack, "unit": unit, "error": error, "read": own, "another": other}


def _counted(
    audited: Audited, situation: Situation, run: RunConfig, changes: Changes, layer: str, count: int
) -> Tensor:
    """The counts of labels; the probabilities are the mean of those before and after several steps."""
    task = audited.task
    nodes = range(1, min(audited.run.num_nodes, 1 + _PUBLIC_NODES))
    public = joined([next(task.examples(audited.data(node), "train", _PUBLIC)) for node in nodes])
    after = deepcopy(audited.model)
    with torch.no_grad():
        for name, one in after.named_parameters():
            if name in changes:
                one.sub_(changes[name])
    models = [audited.model, after] if situation.steps > 1 else [audited.model]
    answers = torch.stack([_answers(task, model, layer, public) for model in models]).mean(0)
    gradient = changes[f"{layer}.bias"] / run.training.learning_rate / situation.steps
    return label_counts(gradient, answers, count, scaled=run.dp != "none" or run.training.optimizer != "sgd")


def _answers(task: Task, model: nn.Module, layer: str, public: Batch) -> Tensor:
    """The mean probabilities of the examples of each class, in evaluation mode."""
    logits: list[Tensor] = []
    local = deepcopy(model).eval()
    local.get_submodule(layer).register_forward_hook(lambda module, inputs, output: logits.append(output))
    with torch.no_grad():
        task.loss(local, public)
    return mean_answers(logits[0], public["label"])


def _tallied(batches: Sequence[Batch], classes: int) -> Tensor:
    return torch.bincount(torch.cat([batch["label"] for batch in batches]), minlength=classes)


def _doubled(batch: Batch) -> Batch:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}


def measure(update: str, seed: int, config: Mapping[str, Any]) -> None:
    """Attack one node with one seed, and write the rows as JSON; ``update`` is the name of a situation."""
    torch.set_num_threads(1)
    (number,) = (index for index, situation in enumerate(SITUATIONS) if situation.name == update)
    rows = attack(Audited(config["flat"], seed), SITUATIONS[number], config["search"])
    named = [{"situation": update, **row} for row in rows]
    write_whole(Path(config["folder"]) / f"{number:02d}-{seed}.json", json.dumps(named).encode())


def collected(folder: Path) -> list[Row]:
    """The rows of all finished jobs, in the order of the situations, with a list over the seeds for each measure."""
    grouped: dict[tuple[str, str, str], Row] = {}
    for path in sorted(folder.glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            key = row["attack"], row["situation"], row["unit"]
            of_key = grouped.setdefault(key, dict(zip(("attack", "situation", "unit"), key, strict=True)))
            for name in MEASURES:
                if name in row:
                    of_key.setdefault(name, []).append(row[name])
    order = list(dict.fromkeys(attack for attack, _, _ in grouped))
    return sorted(grouped.values(), key=lambda row: order.index(row["attack"]))


def leakage_text(rows: Sequence[Row]) -> str:
    """The rows as a table: means over the seeds, and the least and the largest share that was read."""
    cells = [
        [
            row["attack"],
            row["situation"],
            f"{fmean(row['error']):.3g} {row['unit']}" if "error" in row else "-",
            f"{fmean(row['read']):.2f} ({min(row['read']):.2f} to {max(row['read']):.2f})",
            f"{fmean(row['another']):.2f}",
        ]
        for row in rows
    ]
    head = ["attack", "update", "error", "read (least to most)", "another node's"]
    return text_table(head, cells, [True, False, False, False])


def audit_leakage(
    recipe: Path,
    *,
    seeds: int,
    restarts: int = 1,
    jobs: int = 0,
    overrides: Mapping[str, Any] | None = None,
    output_dir: str = "runs",
    json_path: Path | None = None,
) -> Mapping[str, Any]:
    """Attack the first node of a run in every situation of :data:`.observed.SITUATIONS`, and print the table.

    The rows are saved in ``OUTPUT_DIR/audit-<recipe>-<time>/audit.json``.

    Parameters
    ----------
    recipe : Path
        Run config of a task that declares secrets. The attack sees FedAvg's update of the first round.
    seeds : int
        Number of victims, each with its own model and examples, at least 1.
    restarts : int
        Random starts of the search, at least 1.
    jobs, overrides, output_dir, json_path
        As in :func:`.run.audit_recipe`.

    Returns
    -------
    mapping
        ``recipe`` and ``rows``.

    Raises
    ------
    ValueError
        Before anything runs, if the config is invalid or a number is out of range; or a node has too few examples.
    """
    if least := [f"--{key} {value}: must be at least 1" for key, value in _numbers(seeds, restarts) if value < 1]:
        raise ValueError("; ".join(least))
    keys = read_recipe(recipe, overrides)
    if task_class(task := str(keys.get("task", ""))).secrets is Task.secrets:
        raise ValueError(
            f"recipe {recipe}: task = {task!r}: --attack {LEAKAGE} reads what a task declares in Task.secrets, and "
            "this task declares nothing; audit images, or the words of text or vln without --attack"
        )
    name = timed_name(f"audit-{recipe_name(recipe)}")
    config = parse(resolve(keys | {"name": name}, output_dir))
    Audited(config.flat(), 0)
    named = str((overrides or {}).get("name", ""))
    with new_folder(config.run.output_dir, named, name) as folder, owned(folder):
        cells_folder = folder / "cells"
        cells_folder.mkdir()
        shared = {"flat": config.flat(), "folder": str(cells_folder), "search": Search(restarts=restarts)}
        cells = [
            {"update": situation.name, "seed": seed, "config": shared}
            for situation in reversed(SITUATIONS)
            for seed in range(seeds)
        ]
        run_matrix(cells, measure, jobs=jobs, watch=Lines(len(cells), print))
        rows = collected(cells_folder)
        results = {"recipe": recipe_name(recipe), "rows": rows}
        text = json.dumps(results, indent=2) + "\n"
        for path in (folder / "audit.json", *([json_path] if json_path else [])):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
    print(f"\n{leakage_text(rows)}\n\naudit: {folder / 'audit.json'}")
    return results


def _numbers(seeds: int, restarts: int) -> Sequence[tuple[str, int]]:
    return ("seeds", seeds), ("restarts", restarts)
