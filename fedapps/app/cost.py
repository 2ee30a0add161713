"""What a method cost: bytes, privacy, optimizer steps, simulated time, and what it took to reach a target."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf, nan, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapps.base.report import metrics
from fedapps.config.parsing import Config, parse
from fedapps.config.run_config import RunConfig
from fedapps.report.run_data import slowest
from fedapps.runs.run_folder import RunFolder, read_config
from fedapps.strategies import epsilon
from fedapps.strategies.wire import EVALUATION_STEPS, STEPS

from .privacy import sentence, spent


def traffic(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Bytes of one node in one round of training: what it sent, and what it received."""
    sent, received = (sum(row[name] for row in rounds) for name in ("train_bytes_up", "train_bytes_down"))
    replies, messages = (sum(row[name] for row in rounds) for name in ("train_replies", "train_messages"))
    return {
        "bytes_per_client_round": sent / max(replies, 1),
        "bytes_down_per_client_round": received / max(messages, 1),
    }


def guarantee_of_all(folders: Iterable[Path]) -> str:
    """ε of a node for all runs in these folders together, as a sentence; empty if none of them has a guarantee.

    The ledger of each run counts, so that also runs that failed, ended early or were repeated do. Runs that differ in
    mechanism, noise or sampling are composed as μ² = Σ μ_k² (Dong, Roth and Su 2022, Cor. 3.3), which is an upper bound
    with Poisson sampling.
    """
    groups: dict[Hashable, tuple[Config, str, Counter[tuple[int, int]]]] = {}
    number = 0
    for folder in folders:
        if not (folder / "config.toml").exists():
            continue
        config, number = parse(read_config(folder)), number + 1
        run = config.run
        for label, method in config.methods.items():
            if not method.private(config.task).everything:
                key = (run.dp, run.dp_noise, run.dp_delta, run.sampling, run.fraction_train, run.dp_seeded)
                releases = RunFolder(folder, "").releases(label).by_round()
                group = groups.setdefault(key, (config, label, Counter()))
                group[2].update({(run.seed, server_round): count for server_round, count in releases.items()})
    budgets = [spent(config, label, dict(enumerate(counts.values()))) for config, label, counts in groups.values()]
    if not any(budgets):
        return ""
    runs = [config.run for config, _, _ in groups.values()]
    totals = [counts.total() for _, _, counts in groups.values()]
    budget = budgets[0]
    if len(groups) > 1:
        squares = sum(n / run.dp_noise**2 if b else inf for n, run, b in zip(totals, runs, budgets, strict=True))
        relation, sensitivity = ("replace", 2.0) if any(run.dp == "local" for run in runs) else ("zero_out", 1.0)
        delta = min(run.dp_delta for run in runs)
        budget = {f"epsilon_{relation}": epsilon(1 / sqrt(squares), 1, delta, sensitivity) if squares else 0.0}
    together = sentence(min(runs, key=lambda run: run.dp_delta), budget, f"{sum(totals)} releases")
    return f"all {number} runs together, if nodes have the same data in each: {together}"


def steps_per_node(rows: Sequence[Mapping[str, Any]], num_nodes: int) -> dict[str, float]:
    """The local budget of a method: the mean number of optimizer steps behind the models of its last evaluation.

    These are all steps of training and those before the last evaluation, such as personalisation. Steps before earlier
    evaluations leave no trace in a model and do not count.

    Parameters
    ----------
    rows : sequence of mappings
        The lines of ``nodes.jsonl`` of one method.
    num_nodes : int
        The number of nodes of the run; nodes that never trained count, too.

    Returns
    -------
    dict
        ``steps_per_node``; empty if no node reported its steps.
    """
    trained = _numbers((row for row in rows if row["phase"] == "train"), STEPS)
    if not trained:
        return {}
    evaluated = [row for row in rows if row["phase"] == "evaluate"]
    last = [row for row in evaluated if row["round"] == evaluated[-1]["round"]]
    before = _numbers(last, EVALUATION_STEPS)
    nodes = max(num_nodes, len({row["node"] for row in rows}))
    return {metrics.STEPS_PER_NODE: sum(trained) / nodes + sum(before) / max(len(last), 1)}


def simulated_time(rounds: Sequence[Mapping[str, Any]], since: float = 0.0) -> dict[str, float]:
    """``simulated_time``, the seconds on the devices from ``since`` until the end of the last round; empty without
    simulated time.
    """
    return {metrics.SIMULATED_TIME: rounds[-1]["clock"] - since} if rounds and "clock" in rounds[-1] else {}


def slowest_tenth(run: RunConfig, nodes: Sequence[Mapping[str, Any]], speeds: Mapping[str, float]) -> dict[str, float]:
    """What a method gives to the tenth of the nodes with the slowest devices, and takes from them.

    Parameters
    ----------
    run : RunConfig
        Its ``track_metric``.
    nodes : sequence of mappings
        The lines of ``nodes.jsonl`` of one method.
    speeds : mapping of str to float
        Seconds of a local step by node; empty without simulated time.

    Returns
    -------
    dict
        ``slowest_tenth.METRIC``, the mean of the tracked metric, whose prefix ``test.`` is left out, over these nodes
        in the last evaluation, and ``slowest_tenth.replies``, their share of the accepted train replies; empty without
        simulated time.
    """
    slow = set(slowest(speeds))
    trained = [row["node"] in slow for row in nodes if row["phase"] == "train"]
    evaluated = [row for row in nodes if row["phase"] == "evaluate"]
    last = [row for row in evaluated if row["round"] == evaluated[-1]["round"] and row["node"] in slow]
    values = _numbers(last, run.track_metric)
    found = {f"{metrics.SLOWEST_TENTH}{metrics.bare(run.track_metric)}": fmean(values)} if values else {}
    return found | ({f"{metrics.SLOWEST_TENTH}replies": fmean(trained)} if slow and trained else {})


def cost_to_target(
    run: RunConfig,
    rounds: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, Any]],
    begun: int = 0,
    since: float = 0.0,
) -> dict[str, float]:
    """What it took to reach the run's target: rounds, and bytes and optimizer steps of all nodes together.

    Parameters
    ----------
    run : RunConfig
        Its ``target``, ``track_metric`` and ``track_mode``.
    rounds : sequence of mappings
        The lines of ``metrics.jsonl`` of one method.
    nodes : sequence of mappings
        The lines of ``nodes.jsonl`` of the same method.
    begun, since : int, float
        Number of rounds and simulated seconds before the run, which do not count.

    Returns
    -------
    dict
        ``rounds_to_target``, the first evaluated round whose tracked metric reaches the target, ``steps_to_target``,
        ``bytes_to_target`` in both directions and, with simulated time, ``time_to_target`` in seconds; empty without a
        target, and if no evaluation reaches it.
    """
    if not run.target:
        return {}
    sign = 1 if run.track_mode == "max" else -1
    values = ((row, row["evaluate"].get(run.track_metric, nan)) for row in rounds if row["evaluate"])
    reached = next((row for row, value in values if sign * value >= sign * run.target), None)
    if reached is None:
        return {}
    last = reached["round"]
    steps = _numbers((row for row in nodes if row["phase"] == "train" and row["round"] <= last), STEPS)
    evaluated = (row for row in nodes if row["phase"] == "evaluate" and row["round"] == last)
    steps += _numbers(evaluated, EVALUATION_STEPS)
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in rounds if row["round"] <= last)
    time = {metrics.TIME_TO_TARGET: reached["clock"] - since} if "clock" in reached else {}
    return {
        metrics.ROUNDS_TO_TARGET: float(last - begun),
        metrics.STEPS_TO_TARGET: float(sum(steps)),
        metrics.BYTES_TO_TARGET: float(sent),
        **time,
    }


def _numbers(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The numbers that nodes reported under a name; they may report lists, too, which do not count."""
    return [value for row in rows if isinstance(value := row["metrics"].get(name), (int, float))]
