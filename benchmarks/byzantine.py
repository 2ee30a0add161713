"""Robust aggregations under attack: a recipe with a share of Byzantine nodes, for every aggregation, attack and seed.

The attackers are nodes drawn at random with the seed: the share of all nodes, rounded down. A larger share contains the
attackers of a smaller one. They train and evaluate honestly, but reply to TRAIN messages as in
:mod:`benchmarks.attacks`. If not all nodes train in a round, the number of attackers among them varies from round to
round. The defender assumes the largest share of attackers in all runs, also in those without attackers; ``--set
byzantine-fraction=0.1`` sets another assumption. A run that fails, because its model has diverged for example, is part
of the result.

    python -m benchmarks.byzantine --recipe fedvocab-small --attackers 0,0.1,0.2,0.4 --seeds 3 --set data-dir=FOLDER
"""

import argparse
import json
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

from fedapps.sim.inprocess import InProcessGrid
from fedapps.sim.matrix import Lines, run_matrix
from fedapps.strategies import RunEndedError, from_record
from fedapps.strategies.arrays import nbytes

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import initial_arrays
from fedapps.app.strategy import build_strategy
from fedapps.base.options import split_names
from fedapps.base.report.numbers import Estimate, number
from fedapps.base.report.tables import text_table
from fedapps.base.seeding import generator
from fedapps.comparison.matrix import assignments
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.config.run_config import AGGREGATION_NAMES
from fedapps.launch.inputs import check_data, resolve

from .attacks import ATTACKS, Attack, AttackedGrid
from .recipe_runs import add_jobs, exit_status, final_metrics, honest_grid, own_nodes, recipe_parser

NO_ATTACK = "none"
Settings = Mapping[str, Value]


@dataclass(frozen=True)
class Outcome:
    """One run under attack.

    Parameters
    ----------
    aggregation, attack : str
        Their names.
    attackers : float
        The share of attackers, in [0, 1).
    seed : int
        The seed of the run.
    metric : str
        The name of a metric.
    value : float or None
        The metric at the last evaluation; ``None`` if the run failed.
    error : str
        Why the run failed; empty if it did not.
    """

    aggregation: str
    attack: str
    attackers: float
    seed: int
    metric: str
    value: float | None
    error: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns 2 if the settings are invalid, else 0."""
    return exit_status("byzantine", lambda: _run(parser().parse_args(arguments)))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; it refuses values that are out of range."""
    parser = recipe_parser("byzantine", __doc__.partition("\n")[0])
    add_jobs(parser)
    parser.add_argument("--method", default="fedavg", help="the method to attack (default fedavg)")
    parser.add_argument(
        "--attackers", type=_shares, default=[0.0, 0.1, 0.2, 0.4],
        help="shares of Byzantine nodes, separated by commas (default 0,0.1,0.2,0.4)",
    )  # fmt: skip
    for option, names in (("--attacks", list(ATTACKS)), ("--aggregations", list(AGGREGATION_NAMES))):
        parser.add_argument(
            option, type=_names(names), default=names, help=f"separated by commas (default {','.join(names)})"
        )
    parser.add_argument("--seeds", type=_at_least_one, default=1, help="number of seeds (default 1)")
    parser.add_argument("--metric", default="", help="metric of the table (default: the recipe's track-metric)")
    return parser


def _run(options: argparse.Namespace) -> None:
    settings = {name: _settings(options, name) for name in options.aggregations}
    configs = {name: parse(keys) for name, keys in settings.items()}
    first = next(iter(configs.values()))
    check_data(first)
    metric = options.metric or first.run.track_metric or first.task.headline[0]
    cells = [
        {"aggregation": name, "attack": attack, "attackers": share, "seed": seed, "metric": metric, "config": keys}
        for name, keys in settings.items()
        for attack, share in _conditions(options.attacks, options.attackers)
        for seed in range(first.run.seed, first.run.seed + options.seeds)
    ]
    outcomes = run_matrix(cells, run_under_attack, jobs=options.jobs, watch=Lines(len(cells)))
    memory = {name: peak_models(config) for name, config in configs.items()}
    print(f"\n{outcome_table(outcomes)}\n")
    replies = f"models, for {first.run.training_nodes} replies"
    print(text_table(("peak memory of an aggregation", replies), [(name, number(memory[name])) for name in memory]))
    if options.json:
        peaks = [{"aggregation": name, "models": models} for name, models in memory.items()]
        lines = [{"methods": by_condition(outcomes)}, *peaks]
        Path(options.json).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def run_under_attack(
    *, aggregation: str, attack: str, attackers: float, seed: int, metric: str, config: Settings
) -> Outcome:
    """Run one method and return the metric of its last evaluation."""
    value, error = None, ""
    forge = None if attack == NO_ATTACK else ATTACKS[attack]()
    try:
        value = _metric(final_metrics(config, seed, lambda parsed: attacked_grid(parsed, forge, attackers)), metric)
    except RunEndedError as failure:
        error = str(failure).partition("\n")[0]
    return Outcome(aggregation, attack, attackers, seed, metric, value, error)


def peak_models(config: Config) -> float:
    """The largest memory that aggregating the replies of a round takes, in models; the replies do not count."""
    label = next(iter(config.methods))
    initial = initial_arrays(config, label)
    strategy = build_strategy(config, label, initial.keys())
    model = from_record(strategy.share(initial))
    tracemalloc.start()
    try:
        aggregate = strategy.new_aggregate()
        for _ in range(config.run.training_nodes):
            aggregate.add(model, 1.0)
        aggregate.result()
        return tracemalloc.get_traced_memory()[1] / max(nbytes(model), 1)
    finally:
        tracemalloc.stop()


def attackers_of(seed: int, count: int, share: float) -> list[int]:
    """The attackers among the partitions: ``share`` of them, rounded down, drawn with the seed."""
    drawn = generator(seed, "attackers").permutation(count)[: floor(share * count + 1e-9)]
    return [int(node) for node in drawn]


def attacked_grid(config: Config, attack: Attack | None, share: float) -> InProcessGrid:
    """The nodes of a run, of which a share attack."""
    if attack is None:
        return honest_grid(config)
    nodes, seed = own_nodes(config), config.run.seed
    attackers = attackers_of(seed, len(nodes), share)
    return AttackedGrid(client_app, nodes, config.flat(), attack=attack, attackers=attackers, seed=seed)


def _metric(final: Mapping[str, float], metric: str) -> float:
    if metric not in final:
        raise ValueError(f"--metric {metric}: the nodes report {', '.join(final)}")
    return final[metric]


def _settings(options: argparse.Namespace, aggregation: str) -> dict[str, Any]:
    """The run config of the recipe with this aggregation."""
    assumed: dict[str, Value] = {"byzantine-fraction": max(options.attackers)}
    recipe = {**read_recipe(Path(options.recipe)), **assumed, **assignments(options.set)}
    fixed: dict[str, Value] = {
        "methods": options.method,
        "in-flight": 0,
        "aggregation": aggregation,
        "name": "byzantine",
    }
    return resolve({**recipe, **fixed}, ".")


def _conditions(attacks: Sequence[str], shares: Sequence[float]) -> list[tuple[str, float]]:
    """Every attack with every share of attackers; without attackers there is one condition."""
    none = [(NO_ATTACK, 0.0)] if 0.0 in shares else []
    return none + [(attack, share) for attack in attacks for share in shares if share]


def _at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return int(text)


def _shares(text: str) -> list[float]:
    shares = [float(share) for share in split_names(text)]
    if not shares or not all(0 <= share < 0.5 for share in shares):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers of at least 0 and below 0.5, separated by commas")
    return shares


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> list[str]:
        if unknown := [name for name in split_names(text) if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be some of {', '.join(known)}")
        return list(split_names(text))

    return names


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """One row per attack and aggregation, one column per share of attackers.

    A cell is the mean over the seeds with the half-width of its 95 % confidence interval (Student's t), from two seeds
    on. It shows in parentheses how many runs did not fail, if any failed.
    """
    attacks = list(dict.fromkeys(o.attack for o in outcomes if o.attackers)) or [NO_ATTACK]
    aggregations = list(dict.fromkeys(outcome.aggregation for outcome in outcomes))
    shares = sorted({outcome.attackers for outcome in outcomes})
    cells: dict[tuple[str, str, float], list[Outcome]] = {}
    for outcome in outcomes:
        for attack in attacks if outcome.attack == NO_ATTACK else [outcome.attack]:
            cells.setdefault((attack, outcome.aggregation, outcome.attackers), []).append(outcome)
    rows = [
        [f"{attack}, {aggregation}", *(_cell(cells[attack, aggregation, share]) for share in shares)]
        for attack in attacks
        for aggregation in aggregations
    ]
    return text_table([f"{outcomes[0].metric} of", *(f"{share:.0%} attackers" for share in shares)], rows)


def by_condition(outcomes: Sequence[Outcome]) -> dict[str, dict[str, list[float]]]:
    """The values of the seeds by condition, such as ``median at sign-flip 0.4``, and metric, without failed runs."""
    conditions: dict[str, dict[str, list[float]]] = {}
    for one in outcomes:
        values = conditions.setdefault(f"{one.aggregation} at {one.attack} {one.attackers:g}", {}).setdefault(
            one.metric, []
        )
        if one.value is not None:
            values.append(one.value)
    return conditions


def _cell(outcomes: Sequence[Outcome]) -> str:
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    if not values:
        return "failed"
    estimate = Estimate.of(values)
    interval = "" if estimate.half is None else f" ± {number(estimate.half)}"
    finished = f" ({len(values)} of {len(outcomes)})" if len(values) < len(outcomes) else ""
    return f"{number(estimate.mean)}{interval}{finished}"


if __name__ == "__main__":
    sys.exit(main())
