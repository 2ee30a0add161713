"""What one update reveals in any task: label counts, the inputs of the head, and the examples, beside each defence."""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.base.atomic import write_whole
from fedapps.base.seeding import derive_seed, torch_seed
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.inputs import resolve
from fedapps.launch.plan import new_folder, timed_name
from fedapps.runs.owner import owned
from fedapps.sim.matrix import Lines, run_matrix
from fedapps.tasks.base import Batch, Task

from .counts import head_layer, input_errors, label_counts, linear_inputs, mean_answers, right_share
from .matching import PIXELS, Search, decibels, errors, matched, vector
from .membership import FINAL, explaining, membership_rows
from .observed import (
    SITUATIONS,
    Audited,
    Changes,
    Situation,
    aligned,
    fisher_terms,
    joined,
    mean_of_rows,
    observed,
    parts,
    roots,
    run_in,
    separate,
    simulated,
    simulated_sum,
)
from .text import leakage_text

#: The attacker of label counts has public examples: at most the first number from each of the second number of nodes.
_PUBLIC, _PUBLIC_NODES = 64, 8
#: An input of the head counts as read up to this relative distance.
_NEAR = 0.1
#: The name of these attacks beside those on words.
LEAKAGE = "leakage"
#: What is attacked: each situation of an update, and the models at the end.
_UPDATES = (*(situation.name for situation in SITUATIONS), FINAL)
LABELS, FEATURES = "label counts", "inputs of the head"
#: At most so many examples of other nodes, among which those of an update are looked for.
_CANDIDATES = 64
CANDIDATES = "named among others"
#: The parts of examples are taken to add up to an update if they differ from it by at most this share of its norm.
_SAME = 0.05
#: What is measured of an attack.
MEASURES = ("error", "guess", "read", "another")
Row = dict[str, Any]


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
    of_nodes = [audited.batches(situation, node) for node in range(situation.nodes)]
    sent = own if situation.nodes == 1 else [joined([batches[0] for batches in of_nodes])]
    seen = [
        observed(task, audited.model_of(node), of, run, fisher=situation.fisher, node=node)
        for node, of in enumerate(of_nodes)
    ]
    changes = {name: sum((one[name] for one in seen), torch.zeros(())) / len(seen) for name in seen[0]}
    rows: list[Row] = []
    layer = head_layer(model, task.roles.head)
    templates = [dict(batch) for batch in sent]
    if task.num_classes and layer and not situation.fisher:
        counts = _counted(audited, situation, run, changes, layer, sum(len(batch["label"]) for batch in sent))
        labels_of = (torch.cat([batch["label"] for batch in batches]) for batches in (own, other))
        true, another = (torch.bincount(labels, minlength=task.num_classes) for labels in labels_of)
        shares = right_share(counts, true), right_share(counts, another)
        rows.append({"attack": LABELS, "unit": ""} | dict(zip(MEASURES[2:], shares, strict=True)))
        labels = torch.repeat_interleave(torch.arange(task.num_classes), counts)
        for index, template in enumerate(templates):
            template["label"] = labels[index :: len(templates)]
    if layer and task.roles.features and not situation.fisher:
        read = linear_inputs(changes[f"{layer}.weight"], changes[f"{layer}.bias"])
        with torch_seed(run.seed, "audit", "train"), torch.no_grad():
            models = model, audited.model_of(1)
            inputs = (
                torch.cat([task.features(one, batch) for batch in of])
                for one, of in zip(models, (own, other), strict=True)
            )
            gaps = [input_errors(of, read) for of in inputs]
        rows.append(_row(FEATURES, "relative", gaps, _NEAR, float(gaps[0].median())))
    rows.append(_among_candidates(audited, situation, changes, own, other))
    if not task.secrets:
        return rows
    return rows + _searched(audited, situation, run, changes, templates, own, other, search)


def _among_candidates(
    audited: Audited, situation: Situation, changes: Changes, own: Sequence[Batch], other: Sequence[Batch]
) -> Row:
    task, known = audited.task, replace(audited.run, dp="none")  # the attacker does not know the noise
    run = run_in(known, replace(SITUATIONS[0], optimizer=situation.optimizer))
    strangers = {node: _singles(audited, node) for node in _others(audited)}

    def parted(node: int, singles: Iterable[Batch], counts: Sequence[int]) -> list[Tensor]:
        model, key = audited.model_of(node), task.model_key(audited.data(node))
        # A model that knows the node's houses, for example, reads no other node's examples.
        fillers = strangers[1] if key == () else strangers.get(node) or _singles(audited, node)
        filler = min(fillers, key=lambda single: sum(tensor.numel() for tensor in single.values()))
        return [parts(task, model, one, filler, counts, run, fisher=situation.fisher) for one in singles]

    # The other node's update shows whether draws depend on places, and whether parts then add up. They do not where
    # draws depend on the other examples, as those of walks do, or where a batch is normalised: updates alone are near.
    sent = vector(observed(task, audited.model_of(1), other[:1], run, fisher=situation.fisher))

    def gap(counts: Sequence[int]) -> float:
        rows = parted(1, separate(other[0]), counts)
        total = sum((row[place % len(row)].double() for place, row in enumerate(rows)), torch.zeros(()))
        return float((total * sum(counts) / len(rows) - sent).norm())

    counts, places, most = [1], [len(separate(batch)) for batch in own], _SAME * float(sent.norm())
    if gap(counts) > most >= gap(places[:1]):
        counts = places
    foreign = [one for node, singles in strangers.items() for one in parted(node, singles, counts)]

    def share(node: int, batches: Sequence[Batch]) -> float:
        singles = parted(node, [single for batch in batches for single in separate(batch)], counts)
        named = explaining(vector(changes), torch.stack(singles + foreign), len(singles))
        return float(named[: len(singles)].double().mean())

    return {"attack": CANDIDATES, "unit": "", "read": share(0, own), "another": share(1, other)}


def _singles(audited: Audited, node: int) -> list[Batch]:
    """Examples of a node, each a batch of one, as many of each node as make all candidates of other nodes."""
    with torch_seed(audited.run.seed, "audit", "candidates", node):
        drawn = audited.task.training_batches(audited.model_of(node), audited.data(node), 1)
        return list(islice(drawn, _CANDIDATES // len(_others(audited))))


def _others(audited: Audited) -> range:
    """Nodes other than the attacked one, whose examples the attacker has."""
    return range(1, min(len(audited.nodes), 1 + _PUBLIC_NODES))


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
    model, start = deepcopy(audited.model).double(), [_doubled(batch) for batch in templates]
    # Otherwise the mean of the updates of nodes with an example each is that of one node with all of these.
    apart = situation.nodes > 1 and not mean_of_rows(task, model, start[0], seed=run.seed)

    def simulate(batches: Sequence[Batch]) -> Tensor:
        if situation.fisher:
            return vector(roots(fisher_terms(task, model, batches[0], seed=run.seed)))
        if apart:
            return vector(simulated_sum(task, model, batches[0], run))
        return vector(simulated(task, model, batches, run))

    read, _ = matched(
        simulate,
        vector(roots(changes) if situation.fisher else changes),
        start,
        secrets,
        search,
        torch.Generator().manual_seed(derive_seed(run.seed, "audit", situation.name)),
        parts=run.compression == "top-k",
    )
    rows = []
    compared = aligned([joined(own), joined(other), joined(read), _public(audited)])
    for secret in secrets:
        true, another, guessed, public = (secret.view(_doubled(batch)) for batch in compared)
        mean = public.nanmean(0, keepdim=True).nan_to_num().expand_as(true)
        pairs = (true, guessed), (another, guessed), (true, mean)
        gaps = [one[~one.isnan()] for one in (errors(secret, *pair) for pair in pairs)]
        if len(gaps[0]):
            shown = [fmean(map(decibels, of.tolist()) if secret.unit == PIXELS else of.tolist()) for of in gaps[::2]]
            rows.append({**_row(secret.what, secret.unit, gaps[:2], secret.near, shown[0]), "guess": shown[1]})
    return rows


def _row(attack: str, unit: str, gaps: Sequence[Tensor], near: float, error: float) -> Row:
    own, other = (float((gap <= near).double().mean().nan_to_num()) for gap in gaps)
    return {"attack": attack, "unit": unit, "error": error, "read": own, "another": other}


def _counted(
    audited: Audited, situation: Situation, run: RunConfig, changes: Changes, layer: str, count: int
) -> Tensor:
    """The counts of labels; the probabilities are the mean of those before and after several steps."""
    task, public = audited.task, _public(audited)
    after = deepcopy(audited.model)
    with torch.no_grad():
        for name, one in after.named_parameters():
            if name in changes:
                one.sub_(changes[name])
    models = [audited.model, after] if situation.steps > 1 else [audited.model]
    answers = torch.stack([_answers(task, model, layer, public) for model in models]).mean(0)
    gradient = changes[f"{layer}.bias"] / run.training.learning_rate / situation.steps
    return label_counts(gradient, answers, count, scaled=run.dp != "none" or run.training.optimizer != "sgd")


def _public(audited: Audited) -> Batch:
    """Examples of other nodes."""
    with torch_seed(audited.run.seed, "audit", "public"):
        datas = map(audited.data, _others(audited))
        drawn = (audited.task.training_batches(audited.model, data, _PUBLIC) for data in datas)
        return joined([next(batches) for batches in drawn])


def _answers(task: Task, model: nn.Module, layer: str, public: Batch) -> Tensor:
    """The mean probabilities of the examples of each class, in evaluation mode."""
    logits: list[Tensor] = []
    local = deepcopy(model).eval()
    local.get_submodule(layer).register_forward_hook(lambda module, inputs, output: logits.append(output))
    with torch.no_grad():
        task.loss(local, public)
    return mean_answers(logits[0], public["label"])


def _doubled(batch: Batch) -> Batch:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}


def measure(update: str, seed: int, config: Mapping[str, Any]) -> None:
    """Attack one node with one seed, and write the rows as JSON; ``update`` is the name of a situation."""
    torch.set_num_threads(1)
    number = _UPDATES.index(update)
    audited = Audited(config["flat"], seed)
    if update == FINAL:
        nodes = [audited.data(node) for node in range(len(audited.nodes))]
        rows = membership_rows(audited.task, audited.model, nodes, audited.run)
    else:
        (situation,) = (one for one in SITUATIONS if one.name == update)
        rows = attack(audited, situation, config["search"])
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


def audit_leakage(
    recipe: Path,
    *,
    seeds: int,
    steps: int = 200,
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
        The attack sees FedAvg's update of the first round, and the final model.
    seeds : int
        Number of victims, each with its own model and examples, at least 1.
    steps, restarts : int
        Steps of L-BFGS, after twice as many of Adam, and random starts of the search, each at least 1.
    jobs, overrides, output_dir, json_path
        As in :func:`.run.audit_recipe`.

    Returns
    -------
    mapping
        ``recipe`` and ``rows``.

    Raises
    ------
    ValueError
        Before anything runs, if the config is invalid or a number is out of range, or a node has too few examples.
    """
    numbers = {"seeds": seeds, "steps": steps, "restarts": restarts}
    if least := [f"--{key} {value}: must be at least 1" for key, value in numbers.items() if value < 1]:
        raise ValueError("; ".join(least))
    keys = read_recipe(recipe, overrides)
    name = timed_name(f"audit-{recipe_name(recipe)}")
    config = parse(resolve(keys | {"name": name}, output_dir))
    for seed in range(seeds):
        Audited(config.flat(), seed).check()
    named = str((overrides or {}).get("name", ""))
    with new_folder(config.run.output_dir, named, name) as folder, owned(folder):
        cells_folder = folder / "cells"
        cells_folder.mkdir()
        shared = {"flat": config.flat(), "folder": str(cells_folder), "search": Search(2 * steps, steps, restarts)}
        cells = [
            {"update": update, "seed": seed, "config": shared} for update in reversed(_UPDATES) for seed in range(seeds)
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
