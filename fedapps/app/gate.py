"""A run that trains nothing: nodes compare a challenger with the champion, and change the model that they use.

Each node evaluates both models as it would use them, with what its method keeps on the node, on the same data. A
promotion brings the model; a node that was off gets it, or goes back, when a later run of this kind finds it connected.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.base.options import did_you_mean
from fedapps.config.parsing import Config, parse
from fedapps.runs.champions import Candidate, Registry, decide, decision_text
from fedapps.runs.owner import owned
from fedapps.runs.run_folder import RunFolder, read_config, read_label
from fedapps.runs.tracking import Tracking
from fedapps.strategies import BaseStrategy, Profile, RoundReport
from fedapps.strategies.checks import MAX_NAME_LENGTH, truncate
from fedapps.strategies.transport import NodeFailure
from fedapps.strategies.wire import CHAMPION, CHAMPION_QUERY, CONFIG, PROMOTE, REGISTRY, USE

from .round_config import RoundConfigs, tracked_results
from .server_app import initial_model, strategy_for
from .start import carry_states, with_begun


def run_gate(grid: Grid, config: Config) -> None:
    """Do what the key ``gate`` says, and bring every connected node to the model that it shall use.

    Raises
    ------
    FolderInUseError
        Another process changes the registry, or compares models for it.
    ValueError
        A run folder is missing, has other outputs or has not finished, there is no champion to go back to, or a node
        in ``gate-nodes`` is unknown.
    TooFewRepliesError
        Fewer than ``num-nodes`` nodes are connected.
    """
    folder = Path(config.run.registry)
    with owned(folder):
        _carry_out(grid, config, Registry.read(folder))


def _carry_out(grid: Grid, config: Config, registry: Registry) -> None:
    run = config.run
    aliases: dict[str, Candidate] = {}
    owners: dict[str, str] = {}
    if run.compares:
        assert run.started_from is not None
        label = run.gate_method or next(iter(config.methods))
        folder = RunFolder(run.started_from, "")
        kept = folder.checkpoints(label)
        snapshot = kept.best() if run.start_from == "best" else kept.last()
        if snapshot is None:
            raise ValueError(f"start = {run.start!r}: the run has no checkpoint of {label!r}")
        if not folder.finished(label):  # its first checkpoint is the champion, which would gain nothing and pass
            raise ValueError(f"start = {run.start!r}: the run has not finished {label!r}: resume it first")
        challenger = registry.challenger(run.started_from, label, snapshot.round)
        decision = _decision(grid, config, registry, owners, challenger)
        for line in decision_text(decision).splitlines():
            log(INFO, "%s", line)
        if run.gate == "dry-run":
            return
        log(INFO, "decision: %s", registry.record(decision))
        registry = registry.promoted(challenger) if decision["promote"] else registry
        aliases["challenger"] = challenger
    elif run.gate == "rollback":
        nodes = [name.strip() for name in run.gate_nodes.split(",") if name.strip()]
        before, registry = registry, registry.rolled_back(nodes)
        _check_nodes(grid, config, before, owners, nodes)
        back = {"before": before.champion, "after": registry.generations[0].generation, "nodes": nodes}
        facts = {"metric": run.track_metric, "promote": False, "reason": "a person has taken the model back"}
        log(INFO, "decision: %s", registry.record({**facts, "rollback": back}))
    registry = registry.labelled()
    registry.write()
    deliver(grid, config, registry, owners)
    replace(registry, delivered=registry.champion).write()
    if registry.champion:
        aliases["champion"] = registry.of(registry.champion)
    for alias, candidate in aliases.items():
        _register(config, registry.folder.name, alias, candidate)


def _check_nodes(grid: Grid, config: Config, registry: Registry, owners: dict[str, str], nodes: Sequence[str]) -> None:
    """Raise ``ValueError`` if a key is that of no connected node, and of none in a decision, which may be off."""
    known = registry.known_nodes()
    if known.issuperset(nodes):
        return
    known |= {profile.key for profile in _connected(grid, _models(config, registry, owners))}
    if unknown := [key for key in nodes if key not in known]:
        raise ValueError(
            f"gate-nodes = {config.run.gate_nodes!r}: no node has the key {unknown[0]!r}"
            f"{did_you_mean(unknown[0], known)}; the nodes that are connected or in the decisions of the registry "
            f"are {truncate(', '.join(sorted(known)), MAX_NAME_LENGTH)}"
        )


def _register(config: Config, registry: str, alias: str, candidate: Candidate) -> None:
    """Give a model its alias in the registries of the trackers; what the files of the registry say counts."""
    path = Path(candidate.run)
    trackers = {name: tracker for name, tracker in config.trackers.items() if tracker.registers}
    if not trackers:
        return
    loaded = parse(read_config(path) | {"name": path.name, "output-dir": str(path.parent)}, on_node=True)
    folder = RunFolder(path, read_label(path / "label"))
    with closing(Tracking(replace(loaded, trackers=trackers), folder, candidate.method)) as tracking:
        if folder.finished(candidate.method):
            tracking.finish(tracked_results(folder.summary()["methods"][candidate.method]))
        tracking.register(registry, alias, candidate.round)


def _decision(
    grid: Grid, config: Config, registry: Registry, owners: dict[str, str], challenger: Candidate
) -> dict[str, Any]:
    run, metric = config.run, config.run.track_metric
    facts = {"metric": metric, "challenger": vars(challenger)}
    if not registry.champion:
        return {**facts, "promote": True, "reason": "there is no champion yet", "nodes": {}}
    champion = registry.of(registry.champion)
    reports = [_Model.open(config, one, owners).evaluated(grid) for one in (champion, challenger)]
    of_champion, of_challenger = (
        {node.node: float(node.metrics[metric]) for node in report.nodes if metric in node.metrics}
        for report in reports
    )
    groups: dict[str, list[str]] = {}
    for node in reports[1].nodes:
        for kind, name in node.groups.items():
            groups.setdefault(f"{kind} {name}", []).append(node.node)
    decision = decide(
        of_champion,
        of_challenger,
        groups,
        mode=run.track_mode,
        margin=run.gate_margin,
        group_margin=run.gate_group_margin,
    )
    refused = {refusal.node: refusal.reason for report in reports for refusal in report.refused}
    resting = reports[0].ineligible | reports[1].ineligible
    return {**facts, "champion": vars(champion), "refused": refused, "ineligible": resting, **decision}


def deliver(grid: Grid, config: Config, registry: Registry, owners: dict[str, str]) -> dict[str, int]:
    """Bring every connected node to the generation that it shall use.

    Parameters
    ----------
    grid : Grid
    config : Config
    registry : Registry
    owners : dict of str to str
        By key, the public key that it belongs to in this run (:attr:`~fedapps.strategies.Admission.owners`). Keys that
        are bound are added.

    Returns
    -------
    dict of str to int
        By node, the generation that it uses now; 0 for none. A node that refuses one stays with its own.
    """
    if not registry.generations:
        return {}
    models = _models(config, registry, owners)
    strategy = models[max(models)].strategy
    targets = {profile: registry.target(profile.key) for profile in _connected(grid, models)}
    queries = [
        Message(
            RecordDict({CONFIG: ConfigRecord({USE: target, REGISTRY: registry.label})}), profile.node_id, CHAMPION_QUERY
        )
        for profile, target in targets.items()
    ]
    using: dict[str, int] = {}
    for arrival in strategy.send(grid, queries, config.run.timeout):
        number = None
        if not isinstance(arrival.outcome, NodeFailure):
            number = arrival.outcome.content.config_records.get(CHAMPION, ConfigRecord()).get(USE)
        if type(number) is int:
            using[arrival.flight.profile.key] = number
        else:
            log(WARNING, "node %s does not say which model it uses", arrival.flight.profile.key)
    changes = [
        models[target].promotion(profile, target, registry.label)
        for profile, target in targets.items()
        if using.get(profile.key, target) != target and not profile.ineligible
    ]
    for arrival in strategy.send(grid, changes, config.run.timeout):
        key = arrival.flight.profile.key
        if isinstance(arrival.outcome, NodeFailure):
            log(WARNING, "node %s keeps generation %s: %s", key, using[key], arrival.outcome.reason)
        else:
            using[key] = registry.target(key)
    log(INFO, "in use: %s", ", ".join(f"{key}: generation {number}" for key, number in sorted(using.items())))
    return using


def _models(config: Config, registry: Registry, owners: dict[str, str]) -> "dict[int, _Model]":
    """The champions by generation. A node changes its model also where all others are off, or may not work now."""
    alone = replace(config, run=replace(config.run, num_nodes=1, min_replies=0))
    return {one.generation: _Model.open(alone, one, owners) for one in registry.generations}


def _connected(grid: Grid, models: "Mapping[int, _Model]") -> list[Profile]:
    """The connected nodes, also those that may not work now: to go back to a model that they keep is no work."""
    strategy = models[max(models)].strategy
    return [strategy.label(node) for node in strategy.registry.connected(grid) if not node.no_data]


@dataclass(frozen=True)
class _Model:
    """A candidate, with its strategy in the state after its round."""

    round: int
    timeout: float
    settings: Mapping[str, Any]
    strategy: BaseStrategy
    arrays: ArrayRecord

    @classmethod
    def open(cls, config: Config, candidate: Candidate, owners: dict[str, str]) -> "_Model":
        """Restore it. Raises ``ValueError`` if its run is not here, or does not fit the task of this one.

        ``owners`` says which public key each key of a node belongs to. It replaces what the model's run knew, and all
        models of a gate share it.
        """
        path, run = Path(candidate.run), config.run
        if not (path / "config.toml").is_file():
            raise ValueError(f"generation {candidate.generation}: {path} is no run folder; the registry needs it")
        loaded = parse(read_config(path) | {"name": path.name, "output-dir": str(path.parent)}, on_node=True)
        if (loaded.run.task, loaded.options) != (run.task, config.options):
            raise ValueError(f"generation {candidate.generation}: the run {path} has other options of its task")
        snapshot = RunFolder(path, "").checkpoints(candidate.method).of_round(candidate.round)
        if snapshot is None:
            raise ValueError(f"generation {candidate.generation}: {path} has no checkpoint of round {candidate.round}")
        evaluation = replace(
            loaded.run,
            num_nodes=run.num_nodes,
            min_replies=run.min_replies,
            node_wait=run.node_wait,
            in_flight=run.in_flight,
            fraction_evaluate=1.0,
            held_out_nodes="",
        )
        loaded = with_begun(replace(loaded, run=evaluation), path)
        label = read_label(path / "label")
        carry_states(path, label, run.folder(0), label, candidate.method)
        strategy, initial = strategy_for(loaded, candidate.method, initial_model(loaded, candidate.method))
        strategy.registry.admission.owners = owners
        arrays = strategy.restore(snapshot, strategy.share(initial))
        settings = {
            **RoundConfigs(loaded, candidate.method, label).of_checkpoint(snapshot),
            "final": False,
            "collect": False,
        }
        return cls(snapshot.round, loaded.run.timeout, settings, strategy, arrays)

    def evaluated(self, grid: Grid) -> RoundReport:
        """Let all nodes evaluate it."""
        report = self.strategy.report = RoundReport(self.round)
        messages = self.strategy.configure_evaluate(self.round, self.arrays, ConfigRecord({**self.settings}), grid)
        self.strategy.aggregate_evaluate(self.round, self.strategy.send(grid, messages, self.timeout))
        return report

    def promotion(self, node: Profile, generation: int, registry: str) -> Message:
        """The message with which a node uses it as a generation of the champions of a registry, by its label."""
        config = ConfigRecord({**self.settings, PROMOTE: generation, REGISTRY: registry})
        return self.strategy.evaluate_message(self.round, node, self.arrays, config)
