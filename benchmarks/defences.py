"""What defences of texts cost: the words that attacks read from a node's updates, beside the accuracy of the run.

Every defence is a method with some settings (:data:`DEFENCES`). The attacked node trains on few sentences, as the run
config says, and sends the change of its weights; the attacks are those of ``fedapps audit`` that read updates. The
attacker is on the server, knows the method and all its settings, and has the word vectors that all nodes start from,
unless they start from vectors of their own. The table shows how many words the strongest of these attacks reads.

    python -m benchmarks.defences --recipe fedvocab-small --seeds 3 --plot defences.png --set data-dir=FOLDER
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from fedapps.audit import AuditPlan, recipe_subject
from fedapps.audit.run import audit_recipe
from fedapps.cli.commands import assignments
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.launch.launch import check_data, resolve
from sim.matrix import Lines, run_matrix

from .defence_table import Cost, cost_figure, cost_table
from .final_metrics import final_metrics
from .recipe_command import exit_status, recipe_parser


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
    return {"dp": "local", "dp-clip": 1.0, "dp-noise": noise, "dp-seeded": True}


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
    return exit_status("defences", lambda: _run(parser().parse_args(arguments)))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recipe_parser("defences", __doc__.partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=64, help="sentences to attack (default 64)")
    parser.add_argument("--per-update", type=int, default=16, help="sentences that a node trains on (default 16)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of the accuracy (default 1)")
    parser.add_argument("--plot", default="", metavar="FILE", help="draw the table as a picture")
    return parser


def _run(given: argparse.Namespace) -> None:
    recipe, changed = Path(given.recipe), assignments(given.set)
    settings = {
        defence.name: resolve(
            {**read_recipe(recipe), **changed, **defence.settings, "methods": defence.method, "name": "defences"}, "."
        )
        for defence in DEFENCES
    }
    first = parse(settings[DEFENCES[0].name])
    for config in map(parse, settings.values()):
        check_data(config)
    words = {defence.name: _words_read(given, defence, recipe, changed) for defence in DEFENCES}
    seeds = range(first.run.seed, first.run.seed + given.seeds)
    cells = [{"settings": settings[defence.name], "seed": seed} for defence in DEFENCES for seed in seeds]
    finals = iter(run_matrix(cells, final_metrics, jobs=given.jobs, watch=Lines(len(cells))))
    costs = []
    for defence in DEFENCES:
        own = [next(finals) for _ in seeds]
        accuracy = {
            name: [final[f"test.{name}_accuracy"] for final in own if f"test.{name}_accuracy" in final]
            for name in ("global", "local")
        }
        costs.append(Cost(defence.name, defence.attacker, words[defence.name], accuracy["global"], accuracy["local"]))
    print(f"\n{cost_table(costs)}")
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")
    if given.plot:
        cost_figure(costs, Path(given.plot))


def _words_read(given: argparse.Namespace, defence: Defence, recipe: Path, changed: dict[str, Value]) -> float:
    """The recall of the strongest attack on updates."""
    attacks = ("rows",) if defence.shares == "lg-fedavg" else ("subspace", "rows")
    plan = AuditPlan(
        subject=recipe_subject(recipe, changed),
        methods=(defence.shares,),
        attackers=(defence.attacker,),
        attacks=attacks,
        on=("update",),
        batch_sizes=(given.per_update,),
        sentences=given.sentences,
        steps=1,
        restarts=1,
    )
    print(f"{defence.name}:", flush=True)
    with TemporaryDirectory(prefix="fedapps-defences-") as folder:
        found = audit_recipe(recipe, plan, jobs=1, overrides={**changed, **defence.settings}, output_dir=folder)
    return max(float(row["recall"]) for row in found["rows"])


if __name__ == "__main__":
    sys.exit(main())
