"""What defences of texts cost: the words that attacks read from a node's updates, beside the accuracy of the run.

Every defence is a method with some settings (:data:`DEFENCES`). The attacked node trains on few sentences, as the run
config says, and sends the change of its weights; the attacks are those of ``fedapps audit`` that read updates. The
attacker is on the server, knows the method and all its settings, and has the word vectors that all nodes start from,
unless each node starts from its own vectors. The table shows how many words each of these attacks reads, and how many a
guess finds, which names as many of the most frequent words of public texts.

    python -m benchmarks.defences --recipe fedvocab-small --seeds 3 --plot defences.png --set data-dir=FOLDER
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedapps.sim.matrix import Lines, run_matrix
from matplotlib.figure import Figure

from fedapps.audit.plan import AuditPlan
from fedapps.audit.run import audit_recipe
from fedapps.audit.victim import recipe_subject
from fedapps.base.report.metrics import plot_styles
from fedapps.base.report.numbers import Estimate
from fedapps.comparison.matrix import assignments
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.launch.inputs import check_data, resolve

from .commands import add_seeds, recipe_parser, run, show_methods
from .recipe_runs import final_metrics

#: The key of the words that a guess finds without an update.
GUESS = "frequency"
(_STYLE,) = plot_styles(["accuracy"]).values()
#: The accuracies on common test examples and on the nodes' own, by seed.
Accuracies = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Defence:
    """A method with settings that may hide words.

    Parameters
    ----------
    name : str
        What it does, in a few words.
    method : str
        A method, with arguments.
    shares : str
        The method of the audit that shares the same parameters.
    settings : dict
        Keys of the run config.
    attacker : str
        The strongest attacker that the defence permits: "public" has the vectors that all nodes start from, "foreign"
        has others.
    """

    name: str
    method: str
    shares: str
    settings: dict[str, Value] = field(default_factory=dict)
    attacker: str = "public"


def _local_privacy(noise: float) -> dict[str, Value]:
    return {"dp": "local", "dp-clip": 1.0, "dp-noise": noise, "dp-seeded": True, "weighting": "uniform"}


_LARGEST: dict[str, Value] = {"compression": "top-k", "compression-share": 0.01}
DEFENCES = (
    Defence("none", "fedavg", "fedavg"),
    Defence("private vectors", "fedvocab", "fedvocab"),
    Defence("private vectors, batches of 8", "fedvocab", "fedvocab", {"batch-size": 8}),
    Defence("private vectors, batches of 128", "fedvocab", "fedvocab", {"batch-size": 128}),
    Defence("private vectors, 5 epochs", "fedvocab", "fedvocab", {"epochs": 5}),
    Defence("private encoder", "lg-fedavg", "lg-fedavg"),
    Defence("own start", "fedvocab(own-start=true)", "fedvocab", {}, "foreign"),
    Defence("noise .001", "fedavg", "fedavg", _local_privacy(0.001)),
    Defence("noise .01", "fedavg", "fedavg", _local_privacy(0.01)),
    Defence("int8", "fedavg", "fedavg", {"compression": "int8"}),
    Defence("top 1 %", "fedavg", "fedavg", _LARGEST),
    Defence("private vectors, int8", "fedvocab", "fedvocab", {"compression": "int8"}),
    Defence("private vectors, top 1 %", "fedvocab", "fedvocab", _LARGEST),
    Defence("private vectors, noise .001", "fedvocab", "fedvocab", _local_privacy(0.001)),
    Defence("private vectors, noise .01", "fedvocab", "fedvocab", _local_privacy(0.01)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if the settings are invalid, else 0."""
    parser = recipe_parser("defences", __doc__)
    add_seeds(parser, jobs=True)
    parser.add_argument("--sentences", type=int, default=64, help="sentences to attack (default 64)")
    parser.add_argument("--per-update", type=int, default=16, help="sentences that a node trains on (default 16)")
    parser.add_argument("--accuracies", default="", metavar="FILE", help="take the accuracies from a file of --json")
    parser.add_argument("--plot", default="", metavar="FILE", help="draw the table as a picture")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    recipe, changed = Path(options.recipe), assignments(options.set)
    settings = {
        defence.name: resolve(
            {**read_recipe(recipe), **changed, **defence.settings, "methods": defence.method, "name": "defences"}, "."
        )
        for defence in DEFENCES
    }
    first = parse(settings[DEFENCES[0].name])
    for config in map(parse, settings.values()):
        check_data(config)
    words = {defence.name: _words_read(options, defence, recipe, changed) for defence in DEFENCES}
    if options.accuracies:
        accuracies = read_accuracies(Path(options.accuracies))
    else:
        accuracies = _accuracies(settings, range(first.run.seed, first.run.seed + options.seeds), options.jobs)
    costs = [Cost(one.name, words[one.name], *accuracies[one.name]) for one in DEFENCES]
    show_methods({cost.name: cost.measured() for cost in costs}, options.json)
    if options.plot:
        cost_figure(costs, Path(options.plot))


def _accuracies(settings: dict[str, dict[str, Any]], seeds: Sequence[int], jobs: int) -> dict[str, Accuracies]:
    """Run every defence with every seed."""
    cells = [{"settings": run_config, "seed": seed} for run_config in settings.values() for seed in seeds]
    finals = iter(run_matrix(cells, final_metrics, jobs=jobs, watch=Lines(len(cells))))
    measured: dict[str, Accuracies] = {}
    for name in settings:
        of_defence = [next(finals) for _ in seeds]
        by_test = [
            [final[key] for final in of_defence if key in final]
            for key in ("test.global_accuracy", "test.local_accuracy")
        ]
        measured[name] = (by_test[0], by_test[1])
    return measured


def read_accuracies(path: Path) -> dict[str, Accuracies]:
    """Read the accuracies of all defences from a file of an earlier run. Raise ``ValueError`` if one is missing."""
    measured = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["methods"]
    if missing := [defence.name for defence in DEFENCES if defence.name not in measured]:
        raise ValueError(f"--accuracies {path}: has no {', '.join(missing)}")
    return {name: (of["global_accuracy"], of["local_accuracy"]) for name, of in measured.items()}


def _words_read(
    options: argparse.Namespace, defence: Defence, recipe: Path, changed: dict[str, Value]
) -> dict[str, float]:
    """The recall of each attack on updates, and of a guess."""
    attacks = ("rows",) if defence.shares == "lg-fedavg" else ("subspace", "sparse", "sparse-prior", "rows")
    plan = AuditPlan(
        subject=recipe_subject(recipe, changed),
        methods=(defence.shares,),
        attackers=(defence.attacker,),
        attacks=(*attacks, GUESS),
        on=("update",),
        batch_sizes=(options.per_update,),
        sentences=options.sentences,
        steps=1,
        restarts=1,
    )
    print(f"{defence.name}:", flush=True)
    with TemporaryDirectory(prefix="fedapps-defences-") as folder:
        measured = audit_recipe(recipe, plan, jobs=1, overrides={**changed, **defence.settings}, output_dir=folder)
    return {row["attack"]: float(row["recall"]) for row in measured["rows"]}


@dataclass(frozen=True)
class Cost:
    """What one defence hides, and what it costs.

    Parameters
    ----------
    name : str
        The defence.
    words : mapping of str to float
        The share of words that each attack reads from an update, in [0, 1], and that of a :data:`GUESS`.
    global_accuracy, local_accuracy : sequence of float
        The final accuracy on the common test examples and on the nodes' own, one per seed, in the order of the seeds.
    """

    name: str
    words: Mapping[str, float]
    global_accuracy: Sequence[float]
    local_accuracy: Sequence[float]

    def measured(self) -> dict[str, Sequence[float]]:
        """All values by metric; the share of words that an attack reads is the metric ``words, ATTACK``."""
        words = {f"words, {attack}": [share] for attack, share in self.words.items()}
        return {**words, "global_accuracy": self.global_accuracy, "local_accuracy": self.local_accuracy}

    @property
    def strongest(self) -> str:
        """The attack that reads the most words."""
        return max((name for name in self.words if name != GUESS), key=self.words.__getitem__)


def cost_figure(costs: Sequence[Cost], path: Path) -> None:
    """Draw a row for each defence: the share of words read, and the changes of both accuracies with their intervals."""
    figure = Figure(figsize=(9, 0.9 + 0.28 * len(costs)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    rows = range(len(costs))
    # No attack here reads an update without embedding and encoder.
    attacked = [cost.words[cost.strongest] if set(cost.words) - {"rows", GUESS} else nan for cost in costs]
    panels[0].plot(attacked, rows, "o", color=_STYLE.colour)
    panels[0].plot([cost.words[GUESS] for cost in costs], rows, "|", color="grey")
    panels[0].set(title="words read from an\nupdate (grey: by a guess)", xlim=(-0.04, 1.04))
    first = costs[0]
    changes = {
        "global": [_changes(cost.global_accuracy, first.global_accuracy) for cost in costs],
        "local": [_changes(cost.local_accuracy, first.local_accuracy) for cost in costs],
    }
    for panel, (name, measured) in zip(panels[1:], changes.items(), strict=True):
        for row, values in enumerate(measured):
            if values:
                change = Estimate.of(values)
                panel.errorbar(change.mean, row, xerr=change.half or 0.0, color=_STYLE.colour, marker="o", capsize=3)
        panel.axvline(0, color="grey", linewidth=1)
        panel.set(title=f"change of\n{name} accuracy")
    panels[0].set_yticks(rows, [cost.name for cost in costs])
    panels[0].invert_yaxis()
    for panel in panels:
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def _changes(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """The differences of each seed; none if a run lacks the accuracy."""
    return [a - b for a, b in zip(values, reference, strict=True)] if len(values) == len(reference) else []


if __name__ == "__main__":
    sys.exit(main())
