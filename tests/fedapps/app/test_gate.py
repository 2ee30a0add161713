"""The gate: two models on the same nodes, a decision, and which model each node uses."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import tomli_w
from fedapps.sim.inprocess import run_inprocess
from killed_processes import KilledError, killed_before, killed_in
from small_runs import LQR, run_inline, with_changes

from fedapps.app.client_app import app as client_app
from fedapps.app.gate import _Model, deliver, run_gate
from fedapps.app.server_app import app as server_app
from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.deployment.gate import steer
from fedapps.report.generations import read_fleet
from fedapps.runs.champions import Registry
from fedapps.runs.owner import OWNER_FILE, FolderInUseError, owned
from fedapps.runs.run_folder import read_config
from fedapps.runs.tables import RefusedNodesError


@pytest.fixture(scope="module")
def weeks(tmp_path_factory):
    """Three weekly runs: the third one is worse than the second."""
    folder = tmp_path_factory.mktemp("weeks")
    keys = LQR | {
        "cache-dir": str(folder / "worlds"), "methods": "apfl", "track-metric": "test.total_loss", "rounds": 2,
        "held-back": 0.25, "epochs": 5,
    }  # fmt: skip
    run_inline(with_changes(keys, {"name": "week-1"}), folder)
    run_inline(with_changes(keys, {"name": "week-2", "start": "week-1", "rounds": 6}), folder)
    run_inline(with_changes(keys, {"name": "week-3", "start": "week-1", "learning_rate": 3.0}), folder)
    return folder


#: Any challenger is promoted.
ANY = {"gate_margin": 1e9, "gate_group_margin": 1e9}


def gate(weeks, registry, run, action="compare", nodes=None, node_config=None, **keys):
    """Let all robots, or some of them, do what ``action`` says."""

    def some(config):
        configs = [{"partition-id": node, "num-partitions": 3, **(node_config or {})} for node in nodes]
        run_inprocess(server_app, client_app, node_configs=configs, run_config=config.flat(), errors="reply")

    keys = {"node-wait": 0.0} | {key.replace("_", "-"): value for key, value in keys.items()}
    steer(registry, weeks / run if run else None, action, "", keys, *([some] if nodes else []))
    return Registry.read(registry)


def decisions(registry):
    return [json.loads(path.read_text()) for path in sorted((registry / "decisions").glob("*.json"))]


def in_use(registry):
    """The generation that each robot's program uses, by robot."""
    links = registry.glob("models/champions/*/*/current")
    return {path.parent.name: int(os.readlink(path).partition("generation")[2]) for path in links}


def everywhere(generation):
    return dict.fromkeys(("robot-00", "robot-01", "robot-02"), generation)


@pytest.fixture
def second(weeks, tmp_path):
    """The registry after two promotions."""
    registry = tmp_path / "champions"
    gate(weeks, registry, "week-1")
    assert gate(weeks, registry, "week-2", gate_margin=30.0).champion == 2
    return registry


def test_a_robot_with_a_new_key_pair_takes_part_in_the_next_generation_and_its_gate(weekly, monkeypatch):
    _, registry, command = weekly
    public_keys, bound, evaluated = "fedapps.strategies.profiles._public_keys", [], _Model.evaluated

    def noting(model, grid):
        report = evaluated(model, grid)
        bound.append(model.strategy.registry.admission.owners)
        return report

    monkeypatch.setattr("fedapps.app.gate._Model.evaluated", noting)
    monkeypatch.setattr(public_keys, lambda grid: dict.fromkeys(grid.get_node_ids(), "first"))
    keys = ["--set", "bind-keys=true"]
    assert main([*command, *keys]) == 0
    monkeypatch.setattr(public_keys, lambda grid: dict.fromkeys(grid.get_node_ids(), "second"))
    assert main([*command, *keys]) == 0
    (decision,) = decisions(registry)[1:]
    assert (set(decision["nodes"]), decision["refused"]) == (set(everywhere(0)), {})
    assert in_use(registry) == everywhere(2)
    assert bound == [dict.fromkeys(everywhere(0), "second")] * 2
    assert bound[0] is bound[1], "the two models of a gate share the owners of keys"


def test_a_better_model_is_promoted_on_every_node_and_a_worse_one_is_not(weeks, tmp_path):
    registry = tmp_path / "champions"
    assert gate(weeks, registry, "week-1").champion == 1
    assert in_use(registry) == everywhere(1)
    assert gate(weeks, registry, "week-2", "dry-run", gate_margin=30.0).champion == 1
    assert gate(weeks, registry, "week-2").champion == 1  # three robots are few
    assert gate(weeks, registry, "week-2", gate_margin=30.0).champion == 2
    assert in_use(registry) == everywhere(2)
    assert gate(weeks, registry, "week-3", gate_margin=1e6).champion == 2
    first, unsure, better, worse = decisions(registry)
    assert first["reason"] == "there is no champion yet"
    assert unsure["reason"].startswith("the interval of the gain begins at -")
    assert better["promote"]
    assert [better["champion"]["round"], better["challenger"]["round"]] == [2, 8]
    assert set(better["nodes"]) == set(everywhere(0))
    assert better["groups"]["worst tenth"] == min(of["gain"] for of in better["nodes"].values()) > 0
    assert "worst tenth" in worse["reason"]


def test_a_run_that_has_not_finished_is_not_compared(weeks, tmp_path):
    shutil.copytree(weeks / "week-1", tmp_path / "week-1")
    (tmp_path / "week-1" / "summary.json").unlink()
    with pytest.raises(ValueError, match="the run has not finished 'apfl': resume it first"):
        gate(tmp_path, tmp_path / "champions", "week-1")
    assert not decisions(tmp_path / "champions")


def test_two_gates_at_once_do_not_change_one_registry(weeks, tmp_path, monkeypatch):
    registry = tmp_path / "champions"

    def meanwhile(*arguments):
        monkeypatch.undo()
        for action in ("compare", "deliver"):
            with pytest.raises(FolderInUseError, match=rf"{registry} is in use by process {os.getpid()} on .*, since"):
                gate(weeks, registry, "week-2", action, gate_margin=1e9)
        return deliver(*arguments)

    monkeypatch.setattr("fedapps.app.gate.deliver", meanwhile)
    assert gate(weeks, registry, "week-1").champion == 1
    assert (in_use(registry), len(decisions(registry))) == (everywhere(1), 1)
    assert gate(weeks, registry, "week-2", gate_margin=30.0).champion == 2


def test_the_models_are_compared_on_examples_that_neither_trained_on(weeks, second):
    on_test = {
        row["node"]: row["metrics"]["test.total_loss"]
        for line in (weeks / "week-2" / "nodes.jsonl").read_text().splitlines()
        if (row := json.loads(line))["phase"] == "evaluate" and row["round"] == 8
    }
    compared = {node: of["challenger"] for node, of in decisions(second)[-1]["nodes"].items()}
    assert compared.keys() == on_test.keys()
    assert all(compared[node] != on_test[node] for node in on_test)


def test_all_nodes_go_back_at_once_and_those_that_were_off_when_they_return(weeks, second):
    gate(weeks, second, "week-2", "rollback", nodes=[0, 2])
    assert decisions(second)[-1]["rollback"] == {"before": 2, "after": 1, "nodes": []}
    assert in_use(second) == {"robot-00": 1, "robot-01": 2, "robot-02": 1}
    gate(weeks, second, None, "deliver")
    assert in_use(second) == everywhere(1)
    with pytest.raises(ValueError, match="there is no champion before generation 1 to go back to"):
        steer(second, None, "rollback", "", {}, pytest.fail)  # no run is started


def test_named_nodes_go_back_until_the_next_promotion(weeks, second):
    registry = gate(weeks, second, None, "rollback", gate_nodes="robot-01")
    assert (registry.champion, dict(registry.nodes)) == (2, {"robot-01": 1})
    assert read_fleet(second).generations[-1].decision.outcome == "robot-01 back from generation 2 to 1"
    assert in_use(second) == {"robot-00": 2, "robot-01": 1, "robot-02": 2}
    registry = gate(weeks, second, "week-3", **ANY)
    assert [one.generation for one in registry.generations] == [2, 3]
    assert in_use(second) == everywhere(3)


def test_another_registry_of_the_same_name_brings_its_own_model(weeks, tmp_path):
    def model():
        (link,) = (tmp_path / "state" / "models" / "champions" / "champions" / "robot-00").glob("current")
        return Path(os.readlink(link)).name

    node_config = {"state-dir": str(tmp_path / "state")}
    first, second = tmp_path / "a" / "champions", tmp_path / "b" / "champions"
    labels = [gate(weeks, first, "week-1", nodes=[0, 1, 2], node_config=node_config).label]
    assert model() == "round-000002-generation1"
    labels.append(gate(weeks, second, "week-2", nodes=[0, 1, 2], node_config=node_config).label)
    assert model() == "round-000008-generation1"
    shutil.rmtree(first)
    labels.append(gate(weeks, first, "week-1", nodes=[0, 1, 2], node_config=node_config).label)
    assert model() == "round-000002-generation1"
    assert len(set(labels)) == 3
    assert gate(weeks, first, None, "deliver", nodes=[0, 1, 2], node_config=node_config).label == labels[-1]
    assert model() == "round-000002-generation1"


def test_a_node_to_go_back_must_be_known_from_a_decision_or_be_connected(weeks, second, monkeypatch):
    before = {path: path.read_bytes() for path in second.rglob("*.json")}
    with pytest.raises(
        ValueError, match=r"gate-nodes = .*: no node has the key 'robot-O1'; did you mean 'robot-0\d'.*"
    ):
        gate(weeks, second, None, "rollback", gate_nodes="robot-01, robot-O1")
    assert {path: path.read_bytes() for path in second.rglob("*.json")} == before
    assert in_use(second) == everywhere(2)
    assert "robot-02" in Registry.read(second).known_nodes()
    registry = gate(weeks, second, None, "rollback", nodes=[0, 1], gate_nodes="robot-02")  # it is off
    assert (dict(registry.nodes), in_use(second)) == ({"robot-02": 1}, everywhere(2))
    gate(weeks, second, None, "deliver")
    assert in_use(second) == everywhere(2) | {"robot-02": 1}
    monkeypatch.setattr(Registry, "known_nodes", lambda registry: set())
    registry = gate(weeks, second, None, "rollback", gate_nodes="robot-00")  # it has been in no comparison
    assert dict(registry.nodes) == {"robot-00": 1, "robot-02": 1}


def test_a_node_keeps_its_model_if_its_command_refuses_the_new_one(weeks, second):
    accept = {"accept-model": "false"}
    registry = gate(weeks, second, "week-3", nodes=[0, 1, 2], node_config=accept, **ANY)
    assert (registry.champion, in_use(second)) == (3, everywhere(2))
    gate(weeks, second, None, "deliver")
    assert in_use(second) == everywhere(3)


def test_a_node_that_may_not_work_goes_back_at_once_and_gets_a_new_model_later(weeks, second):
    resting = {"eligible": "false"}
    gate(weeks, second, "week-2", "rollback", nodes=[0, 1, 2], node_config=resting, node_wait=600.0)
    assert in_use(second) == everywhere(1)
    registry = gate(weeks, second, "week-3", **ANY)
    assert (registry.champion, in_use(second)) == (3, everywhere(3))
    gate(weeks, second, "week-3", nodes=[0, 1, 2], node_config=resting, node_wait=0.0)
    states = {of.node: of.state for of in read_fleet(second).nodes}
    assert states == dict.fromkeys(in_use(second), "may not work: eligible: the command ended with exit status 1")


def test_a_node_without_private_parameters_of_a_model_neither_judges_nor_uses_it(weeks, tmp_path):
    keys = read_config(weeks / "week-1") | {"methods": "fedper", "start": "", "output-dir": str(tmp_path)}
    for name, more in {"week-1": {}, "week-2": {"start": "week-1"}}.items():
        run_inline(keys | more | {"name": name}, tmp_path)
    registry = tmp_path / "champions"
    gate(tmp_path, registry, "week-1")
    for run in ("week-1", "week-2"):
        (state,) = (tmp_path / run / "nodes").glob("*/fedper/robot-01")
        shutil.rmtree(state)
    for links in registry.glob("models/champions/*/robot-01"):
        shutil.rmtree(links)
    gate(tmp_path, registry, "week-2", **ANY)
    last = decisions(registry)[-1]
    assert last["promote"]
    assert set(last["nodes"]) == {"robot-00", "robot-02"}
    assert "policy.* of the model would be untrained on node robot-01" in last["refused"]["robot-01"]
    assert in_use(registry) == {"robot-00": 2, "robot-02": 2}


@pytest.mark.parametrize("step", ["Registry.record", "Registry.write", "Registry.target"])
def test_a_server_that_is_killed_has_decided_or_has_not(weeks, second, step):
    with killed_in(f"runs.champions.{step}"):
        gate(weeks, second, "week-3", **ANY)
    assert in_use(second) == everywhere(2)
    gate(weeks, second, None, "deliver")
    decided = step != "Registry.record"
    assert (in_use(second), len(decisions(second))) == (everywhere(2 + decided), 2 + decided)


@pytest.mark.parametrize("action", ["compare", "rollback"])
def test_a_server_that_is_killed_before_any_write_goes_on_with_one_decision_and_one_champion(
    weeks, tmp_path, monkeypatch, action
):
    promote = {"promote": True, "reason": "better", "nodes": {}}
    monkeypatch.setattr(
        "fedapps.app.gate._decision", lambda *given: promote | {"challenger": vars(given[-1]), "champion": {}}
    )
    monkeypatch.setattr("fedapps.app.gate.deliver", lambda *given: served.append(given[2].target("a")))
    path, seen = weeks / "week-3", set()
    for write in count():
        folder, served = tmp_path / str(write), []
        before = Registry(folder)
        for week in ("week-1", "week-2"):
            before = before.promoted(before.challenger(weeks / week, "apfl", 2))
        before.write()
        place = {"name": path.name, "output-dir": str(weeks), "start": str(path), "registry": str(folder)}
        config = parse({**read_config(path), **place, "gate": action})
        finished = False
        with killed_before(write), suppress(KilledError):
            run_gate(None, config)
            finished = True
        (folder / OWNER_FILE).unlink(missing_ok=True)  # it names this process, which lives
        after = Registry.read(folder)
        seen.add(after.champion)
        assert [one.run for one in after.generations][-1] == str(path if after.champion == 3 else weeks / "week-2")
        # what was not decided is done again, as by the next `fedapps generation`, and by the operator
        if not (after.decided(path) if action == "compare" else after.champion == 1):
            run_gate(None, config)
        run_gate(None, replace(config, run=replace(config.run, gate="deliver")))
        new = 3 if action == "compare" else 1
        assert (served[-1], Registry.read(folder).champion, len(decisions(folder))) == (new, new, 1)
        if finished:
            break
    assert seen == {2, new}


def test_decisions_are_never_overwritten(tmp_path):
    registry = Registry(tmp_path)
    first, second = (registry.record({"promote": False, "challenger": {"run": name}}) for name in "ab")
    first.unlink()
    assert registry.record({"promote": False, "challenger": {"run": "c"}}).name == "000003.json"
    registry.record({"promote": False, "rollback": {"before": 2, "after": 1, "nodes": []}})
    assert [registry.decided(Path(name)) for name in ("a", "b", "c")] == [False, True, True]
    assert second.exists()


def test_what_a_registry_needs_is_said(weeks, tmp_path, capsys):
    assert main(["gate", "--registry", str(tmp_path / "none")]) == 2
    assert "has no champion yet: promote one with `fedapps gate RUN" in capsys.readouterr().err
    assert main(["gate", str(tmp_path), "--registry", str(tmp_path / "none")]) == 2
    assert "is no run folder: give the folder of a finished run" in capsys.readouterr().err
    with pytest.raises(ValueError, match="has other options of its task"):
        gate(weeks, tmp_path / "none", "week-1", **{"lqr.horizon": 9})
    with pytest.raises(
        ValueError, match=r"gate = 'compare': needs start, .* and track-metric, .*: --set track-metric="
    ):
        gate(weeks, tmp_path / "none", "week-1", track_metric="")


def test_the_command_promotes_and_takes_back(weeks, tmp_path):
    registry = tmp_path / "champions"
    assert main(["gate", str(weeks / "week-1"), "--registry", str(registry)]) == 0
    assert main(["gate", str(weeks / "week-2"), "--registry", str(registry), "--margin", "30"]) == 0
    assert main(["rollback", "--registry", str(registry)]) == 0
    assert in_use(registry) == everywhere(1)


@pytest.fixture
def weekly(weeks, tmp_path):
    """A recipe of generations, its registry, and the command that trains the next one."""
    recipe, registry = tmp_path / "weekly.toml", tmp_path / "champions"
    keys = read_config(weeks / "week-1")
    keys = {key: keys[key] for key in keys if key not in ("name", "output-dir", "start")}
    recipe.write_text(tomli_w.dumps(keys | {"registry": str(registry), "gate-margin": 30.0, "gate-group-margin": 9.0}))
    return recipe, registry, ["generation", str(recipe), "--output-dir", str(tmp_path / "runs")]


def test_a_model_that_was_promoted_before_the_kill_is_brought_to_the_nodes_first(weekly, monkeypatch):
    _, registry, command = weekly
    assert main(command) == 0
    with killed_in("app.gate.deliver"):
        main(command)
    assert (Registry.read(registry).champion, in_use(registry)) == (2, everywhere(1))
    used = []
    monkeypatch.setattr("fedapps.app.gate.deliver", lambda *given: used.append(deliver(*given)))
    assert main(command) == 0
    assert used == [everywhere(2), everywhere(3)]
    assert runs_of(registry)[0] == ["weekly-1", "weekly-2", "weekly-3"]


def test_a_champion_keeps_its_checkpoints_also_where_its_run_is_named_by_a_link(weekly, tmp_path):
    recipe, registry, _ = weekly
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    command = ["generation", str(recipe), "--output-dir", str(tmp_path / "runs"), "--set", "keep-runs=1"]
    assert main(command) == 0
    stored = json.loads((registry / "registry.json").read_text())
    stored["generations"][0]["run"] = str(tmp_path / "link" / "weekly-1")
    (registry / "registry.json").write_text(json.dumps(stored))
    for _ in range(3):
        assert main([*command, "--set", "gate-margin=0", "--set", "learning-rate=3.0"]) == 0
    assert Registry.read(registry).champion == 1
    assert (tmp_path / "runs" / "weekly-1" / "checkpoints").is_dir()


def runs_of(registry):
    """The runs that were decided on, and those that there are."""
    names = [one["challenger"]["run"].rpartition("/")[2] for one in decisions(registry)]
    return names, sorted(path.name for path in (registry.parent / "runs").iterdir())


@pytest.mark.parametrize(
    ("step", "first"), [("app.gate.run_gate", True), ("app.server_app.Recorder.after_round", False)]
)
def test_a_generation_that_was_killed_is_completed_before_the_next_one(weekly, step, first):
    _, registry, command = weekly
    with killed_in(step):
        main(command)
    assert main(command) == 0
    done = ["weekly-1", "weekly-2"] if first else ["weekly-1"]
    assert runs_of(registry) == (done, done)
    assert main(command) == 0
    assert runs_of(registry)[0] == [*done, f"weekly-{len(done) + 1}"]


@pytest.fixture
def unfinished(weekly):
    """A fleet with a champion, whose second run was killed after its first round."""
    _, registry, command = weekly
    assert main(command) == 0
    with killed_in("app.server_app.Recorder.after_round"):
        main(command)
    return registry, command, registry.parent / "runs" / "weekly-2"


def test_a_generation_that_was_killed_is_given_up_if_the_recipe_has_changed(unfinished, caplog):
    registry, command, path = unfinished
    caplog.clear()
    changed = [*command, "--set", "rounds=1", "--set", "min-replies=2", "--set", "keep-runs=1"]
    assert main(changed) == 0
    assert (
        f"{path} has not finished and is given up, because the recipe has changed:\n"
        "  min-replies: was 1, is 2\n  rounds: was 2, is 1"
    ) in caplog.messages
    assert runs_of(registry) == (["weekly-1", "weekly-3"], ["weekly-1", "weekly-2", "weekly-3"])
    assert read_config(path.with_name("weekly-3"))["start"] == str(path.with_name("weekly-1"))
    assert main(changed) == 0
    assert runs_of(registry)[0] == ["weekly-1", "weekly-3", "weekly-4"]
    outcomes = [one.decision.outcome[:17] for one in read_fleet(registry).generations]
    assert outcomes == ["weekly-1 promoted", "weekly-3 promoted", "weekly-4 promoted"]
    assert main([*changed, "--set", "learning-rate=3.0"]) == 0
    bulky = {found.parent.name for found in path.parent.glob("*/checkpoints")}
    assert bulky == {"weekly-3", "weekly-4", "weekly-5"}, "the champions and the last run"


def test_a_key_of_the_gate_or_without_effect_on_results_is_no_reason_to_give_a_generation_up(unfinished, monkeypatch):
    registry, command, _ = unfinished
    compared = []
    monkeypatch.setattr("fedapps.app.gate.run_gate", lambda grid, config: compared.append(config.run))
    assert main([*command, "--set", "gate-margin=9.0", "--set", "timeout=99.0"]) == 0
    assert runs_of(registry)[1] == ["weekly-1", "weekly-2"]
    assert [(run.name, run.gate, run.gate_margin) for run in compared] == [("weekly-2", "compare", 9.0)]


def test_a_generation_that_another_process_trains_is_not_given_up(unfinished, capsys):
    registry, command, path = unfinished
    with owned(path):
        assert main([*command, "--set", "rounds=1"]) == 2
    assert f"{path} is in use by process {os.getpid()}" in capsys.readouterr().err
    assert runs_of(registry)[1] == ["weekly-1", "weekly-2"]


def test_a_node_of_which_nothing_can_be_used_does_not_keep_the_others_from_a_new_model(weekly, monkeypatch, caplog):
    _, registry, command = weekly
    monkeypatch.setattr("fedapps.app.server_app.refused_text", lambda folder: "robot-09: refused in 2 rounds")
    assert main(command) == 0
    assert (runs_of(registry)[0], in_use(registry)) == (["weekly-1"], everywhere(1))
    assert "the run has finished, and its model is compared: robot-09" in caplog.text
    monkeypatch.setattr("fedapps.app.server_app.Recorder.before_training", ended)
    assert main(command) == 1
    assert runs_of(registry)[0] == ["weekly-1"]


def ended(*arguments):
    raise RefusedNodesError("no reply")


def test_old_generations_keep_their_records_and_the_champions_all(weekly, tmp_path):
    _, registry, command = weekly
    more = ["--set", "keep-runs=1", "--set", "rounds=1"]
    assert [main([*command, *more]) for _ in range(2)] == [0, 0]
    worse = [*command, *more, "--set", "learning-rate=3.0"]
    assert [main(worse) for _ in range(2)] == [0, 0]
    runs = tmp_path / "runs"
    assert [one["promote"] for one in decisions(registry)] == [True, True, False, False]
    bulky = {path.parent.name for name in ("checkpoints", "nodes") for path in runs.glob(f"*/{name}")}
    assert bulky == {"weekly-1", "weekly-2", "weekly-4"}
    assert all((runs / "weekly-3" / name).exists() for name in ("config.toml", "metrics.jsonl", "summary.json"))
    assert main(["rollback", "--registry", str(registry)]) == 0
    assert in_use(registry) == everywhere(1)
    with pytest.raises(ValueError, match=r"no such checkpoint of apfl; .* removes those of old runs .keep-runs"):
        run_inline(read_config(runs / "weekly-3") | {"name": "by-hand", "start": "weekly-3"}, runs)


def test_two_fleets_with_runs_of_the_same_names_have_their_own_generations(weekly, tmp_path):
    """The first fleet's command is killed after its second run has trained; the other's run is neither its nor old."""
    _, registry, command = weekly
    runs, other = tmp_path / "runs", tmp_path / "other"
    more = ["--set", "keep-runs=1", "--set", "rounds=1"]
    mine, theirs = [*command, *more], [*command, *more, "--set", f"registry={other}"]
    assert [main(mine), main(theirs)] == [0, 0]
    with killed_in("app.gate.run_gate"):
        main(mine)
    assert main(theirs) == 0
    assert [(one["challenger"]["run"], one["challenger"]["generation"]) for one in decisions(other)] == [
        (str(runs / "weekly-2"), 1), (str(runs / "weekly-4"), 2),
    ]  # fmt: skip
    worse = [*mine, "--set", "learning-rate=3.0"]
    assert main(worse) == 0
    assert [one["challenger"]["run"][-1] for one in decisions(registry)] == ["1", "3", "5"]
    assert main(worse) == 0
    bulky = {path.parent.name for path in runs.glob("*/checkpoints")}
    assert bulky == {f"weekly-{number}" for number in (1, 2, 3, 4, 6)}, "all but the first fleet's run before its last"


def test_a_generation_trains_from_the_champion_and_promotes_or_keeps(weekly, tmp_path, capsys):
    recipe, registry, command = weekly
    assert [main(command), main(command)] == [0, 0]
    assert main([*command, "--set", "learning-rate=3.0"]) == 0
    assert read_config(tmp_path / "runs" / "weekly-2")["start"] == str(tmp_path / "runs" / "weekly-1")
    first, second, worse = decisions(registry)
    assert [one["promote"] for one in (first, second, worse)] == [True, True, False]
    assert read_config(tmp_path / "runs" / "weekly-3")["start"] == str(tmp_path / "runs" / "weekly-2")
    assert in_use(registry) == everywhere(2)
    outcomes = [(one.decision.outcome[:21], one.decision.in_use) for one in read_fleet(registry).generations]
    assert outcomes == [("weekly-1 promoted", 1), ("weekly-2 promoted", 2), ("champion kept, not we", 2)]
    assert "generation 2 in use: weekly-2, apfl" in (registry / "report.html").read_text()
    (tmp_path / "empty").mkdir()
    assert main([*command, "--set", f"data-dir={tmp_path / 'empty'}"]) == 1
    assert ": 0 usable replies, but min_replies is 1" in capsys.readouterr().err
    recipe.write_text('base = "lqr"')
    assert main(command) == 2
    assert "registry, track-metric must be set for a generation" in capsys.readouterr().err
