"""Robust aggregations under attack: a recipe with a share of Byzantine nodes, for every aggregation, attack and seed.

The attackers are nodes drawn at random with the seed: the share of all nodes, rounded down. A larger share contains the
attackers of a smaller one. They train and evaluate honestly, but reply to TRAIN messages as in
:mod:`benchmarks.attacks`. If not all nodes train in a round, the number of attackers among them varies from round to
round. The defender assumes the largest share of attackers in all runs, also in those without attackers; ``--set
byzantine-fraction=0.1`` sets another assumption. The metric is the recipe's ``track-metric``. A run that fails, because
its model has diverged for example, has no value.

    python -m benchmarks.byzantine --recipe fedvocab-small --seeds 3 --set data-dir=FOLDER
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from math import floor
from pathlib import Path

from fedapps.sim.inprocess import InProcessGrid
from fedapps.sim.matrix import Lines, run_matrix
from fedapps.strategies import RunEndedError

from fedapps.app.client_app import app as client_app
from fedapps.base.seeding import generator
from fedapps.comparison.matrix import assignments
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.config.run_config import AGGREGATION_NAMES
from fedapps.launch.inputs import check_data, resolve

from .attacks import ATTACKS, Attack, AttackedGrid
from .commands import add_seeds, recipe_parser, run, show_methods
from .recipe_runs import final_metrics, honest_grid

NO_ATTACK = "none"
SHARES = (0.1, 0.2, 0.4)
CONDITIONS = [(NO_ATTACK, 0.0), *((attack, share) for attack in ATTACKS for share in SHARES)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if the settings are invalid, else 0."""
    parser = recipe_parser("byzantine", __doc__)
    add_seeds(parser, jobs=True)
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    assumed: dict[str, Value] = {"methods": "fedavg", "byzantine-fraction": max(SHARES), "name": "byzantine"}
    recipe = {**read_recipe(Path(options.recipe)), **assumed, **assignments(options.set), "in-flight": 0}
    settings = {name: resolve({**recipe, "aggregation": name}, ".") for name in AGGREGATION_NAMES}
    first, *_ = [parse(keys) for keys in settings.values()]
    check_data(first)
    metric = first.run.track_metric or first.task.headline[0]
    conditions = [(name, *condition) for name in settings for condition in CONDITIONS]
    cells = [
        {"attack": attack, "attackers": share, "seed": seed, "metric": metric, "config": settings[name]}
        for name, attack, share in conditions
        for seed in range(first.run.seed, first.run.seed + options.seeds)
    ]
    values = iter(run_matrix(cells, run_under_attack, jobs=options.jobs, watch=Lines(len(cells))))
    measured = {
        f"{name} at {attack} {share:g}": {metric: [next(values) for _ in range(options.seeds)]}
        for name, attack, share in conditions
    }
    finished = {name: {metric: [v for v in of[metric] if v is not None]} for name, of in measured.items()}
    show_methods(finished, options.json)


def run_under_attack(
    *, attack: str, attackers: float, seed: int, metric: str, config: Mapping[str, Value]
) -> float | None:
    """Run one method: the metric of its last evaluation, or ``None`` if the run failed."""
    forge = None if attack == NO_ATTACK else ATTACKS[attack]()
    try:
        return final_metrics(config, seed, lambda parsed: attacked_grid(parsed, forge, attackers))[metric]
    except RunEndedError:
        return None


def attackers_of(seed: int, count: int, share: float) -> list[int]:
    """The attackers among the partitions: ``share`` of them, rounded down, drawn with the seed."""
    drawn = generator(seed, "attackers").permutation(count)[: floor(share * count + 1e-9)]
    return [int(node) for node in drawn]


def attacked_grid(config: Config, attack: Attack | None, share: float) -> InProcessGrid:
    """The nodes of a run, of which a share attack."""
    if attack is None:
        return honest_grid(config)
    nodes, seed = config.run.num_nodes, config.run.seed
    attackers = attackers_of(seed, nodes, share)
    return AttackedGrid(client_app, [{}] * nodes, config.flat(), attack=attack, attackers=attackers, seed=seed)


if __name__ == "__main__":
    sys.exit(main())
