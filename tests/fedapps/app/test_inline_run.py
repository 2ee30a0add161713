"""Whole runs in one process, of robots that learn in milliseconds."""

import json
import tomllib

import numpy as np
import pytest
from fedapps.clients.arrays import matches
from fedapps.strategies.records import under
from fedapps.tasks.lqr.world import write_world
from run_outputs import assert_same, outputs_of
from safetensors.numpy import load_file
from small_runs import LQR, power_cut
from toys import same_bits

from fedapps.config.parsing import parse
from fedapps.launch.launch import Simulation, launch
from fedapps.registry.methods import method_names
from fedapps.runs.checkpoints import read_snapshot
from fedapps.runs.run_folder import RunFolder


def runs_here(method):
    """Whether a method has no conflict with the run config of these tests."""
    try:
        parse(LQR | {"methods": method})
    except ValueError:
        return False
    return True


METHODS = [*filter(runs_here, method_names()), "spfl(rate-scale=0.2)"]
NODES = LQR["num-nodes"]
ROUNDS = LQR["rounds"]
#: How many nodes train in a round.
TRAINING = {method: 1 if method in ("centralized", "untrained") else NODES for method in METHODS}


def rows(folder, method, phase):
    return [row for row in folder.lines("nodes.jsonl") if (row["method"], row["phase"]) == (method, phase)]


def evaluations(folder, method):
    return [row["evaluate"] for row in folder.lines("metrics.jsonl") if row["method"] == method]


# -- a whole run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, worlds, reports):
    """A launched run of every method."""
    folder = tmp_path_factory.mktemp("whole")
    overrides = LQR | worlds | {"methods": ",".join(METHODS), "track-metric": "test.total_loss"}
    with reports():
        assert launch(overrides, Simulation("inline"), str(folder)) == folder / "run"
    return RunFolder(folder / "run", "")


def test_a_run_leaves_everything_it_promises(whole):
    assert {path.name for path in whole.path.iterdir()} == {
        "config.toml", "label", "metrics.jsonl", "nodes.jsonl", "checkpoints", "nodes", "summary.json", "report.html",
        "references.json",
    }  # fmt: skip
    config = tomllib.loads((whole.path / "config.toml").read_text())
    assert parse(config).flat() == config
    assert config.items() >= LQR.items()
    assert "<svg" in (whole.path / "report.html").read_text()


def test_every_method_has_a_line_per_round(whole):
    lines = whole.lines("metrics.jsonl")
    assert [(row["method"], row["round"]) for row in lines] == [(m, r) for m in METHODS for r in (1, 2, 3)]
    for row in lines:
        assert row["stage"] == "given data"
        assert row["replies"] == TRAINING[row["method"]]
        assert row["refused"] == []
        assert row["bytes_up"] > 0
        assert row["bytes_down"] > 0
        assert row["seconds"] > 0
        assert np.isfinite(row["evaluate"]["test.total_loss"])
        assert row["method"] == "untrained" or np.isfinite(row["train"]["loss"])


def test_every_node_has_a_line_per_round_and_phase(whole):
    robots = [f"robot-{robot:02d}" for robot in range(NODES)]
    for method in METHODS:
        trained = [(row["round"], row["node"]) for row in rows(whole, method, "train")]
        if method == "fedvc":  # draws with replacement
            assert [r for r, _ in trained] == [r for r in (1, 2, 3) for _ in robots]
            assert {node for _, node in trained} <= set(robots)
        else:
            assert trained == [(r, node) for r in (1, 2, 3) for node in robots[: TRAINING[method]]]
        assert [(row["round"], row["node"]) for row in rows(whole, method, "evaluate")] == [
            (r, node) for r in (1, 2, 3) for node in robots
        ]


def test_the_pooled_node_trains_on_everybodys_examples(whole):
    own = [row["num_examples"] for row in rows(whole, "fedavg", "train") if row["round"] == 1]
    assert {row["num_examples"] for row in rows(whole, "centralized", "train")} == {sum(own)}
    assert {row["num_examples"] for row in rows(whole, "centralized", "evaluate")} == {
        row["num_examples"] for row in rows(whole, "fedavg", "evaluate")
    }


def test_the_summary_sums_up(whole):
    summary = json.loads((whole.path / "summary.json").read_text())
    assert (summary["name"], summary["task"], summary["seed"]) == ("run", "lqr", 0)
    assert list(summary["methods"]) == list(METHODS)
    for method, facts in summary["methods"].items():
        lines = [row for row in whole.lines("metrics.jsonl") if row["method"] == method]
        traffic = {
            "bytes_per_client_round": sum(row["train_bytes_up"] for row in lines) / (ROUNDS * TRAINING[method]),
            "bytes_down_per_client_round": sum(row["train_bytes_down"] for row in lines) / (ROUNDS * TRAINING[method]),
        }
        steps = sum(row["metrics"]["steps"] for row in rows(whole, method, "train")) / NODES
        steps += sum(row["metrics"].get("steps.count", 0) for row in rows(whole, method, "evaluate")[-NODES:]) / NODES
        budget = {"steps_per_node": pytest.approx(steps)}
        assert facts["final"] == lines[-1]["evaluate"] | traffic | budget
        assert (facts["rounds"], facts["refused"]) == (ROUNDS, 0)
        assert facts["bytes_up"] == sum(row["bytes_up"] for row in lines)
        assert facts["bytes_down"] == sum(row["bytes_down"] for row in lines)
        assert facts["seconds"] == sum(row["seconds"] for row in lines)


def test_the_checkpoints_hold_what_is_shared(whole):
    for method in METHODS:
        snapshot = whole.checkpoints(method).latest()
        shared = {name for name in snapshot.arrays if name.startswith("shared.")}
        config = parse(LQR | {"methods": method})
        patterns = config.methods[method].private(config.task).patterns
        assert shared == {f"shared.{n}" for n in ("dynamics.A", "dynamics.B", "policy.K") if not matches(n, patterns)}
        assert snapshot.round == ROUNDS
        losses = [row["test.total_loss"] for row in evaluations(whole, method)]
        best = read_snapshot(whole.checkpoints(method).folder / "best.safetensors")
        assert best.round == 1 + int(np.argmin(losses))


def test_training_and_personalisation_do_something(whole):
    for method in METHODS:
        losses = [row["test.total_loss"] for row in evaluations(whole, method)]
        assert losses[-1] < losses[0] or (method == "untrained" and len(set(losses)) == 1)
    finals = {method: evaluations(whole, method)[-1]["test.total_loss"] for method in METHODS}
    # One stage has no past: Elastic Transfer from the past alone is FedAvg.
    assert finals["fedavg"] == finals["elastic-transfer"]
    assert len(set(finals.values())) == len(METHODS) - 1
    assert finals["spfl"] < finals["spfl(rate-scale=0.2)"] < finals["fedavg"]


# -- the same bits ---------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_does_not(federate):
    first, second = (federate(place, methods="local,apfl", fraction_train=0.7) for place in ("a", "b"))
    assert_same(first, second)
    other = federate("c", methods="local,apfl", seed=1)
    ours, theirs = (folder.checkpoints("apfl").latest().arrays for folder in (first, other))
    assert ours.keys() == theirs.keys()
    assert not any(np.array_equal(ours[name], theirs[name]) for name in ours if name.startswith("shared."))


@pytest.mark.slow
def test_the_order_of_the_nodes_does_not_matter(federate):
    backwards = [{"partition-id": index, "num-partitions": NODES} for index in reversed(range(NODES))]
    given = {"methods": "local,cloud,apfl", "fraction_train": 0.7, "server_optimizer": "adam"}
    assert_same(federate("a", **given), federate("b", node_configs=backwards, **given))


def test_private_state_in_the_context_computes_the_same(federate):
    disk, context = (federate(kind, methods="local", state_backend=kind) for kind in ("disk", "context"))
    assert not (context.path / "nodes").exists()
    assert outputs_of(disk)[2:] == outputs_of(context)[2:]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "apfl"])
@pytest.mark.parametrize("when", ["before the lines", "before the checkpoint"])
def test_a_resumed_run_ends_as_if_nothing_had_happened(federate, method, when):
    given = {"methods": "local,apfl", "server_optimizer": "momentum", "fraction_train": 0.7}
    undisturbed = federate("undisturbed", **given)
    with power_cut(2, method, while_saving=when != "before the lines"):
        federate("cut", **given)
    cut = federate("cut", resume=True, **given)
    assert_same(undisturbed, cut)
    assert list(cut.summary()["methods"]) == ["local", "apfl"]


def test_a_resumed_run_names_complete_rounds_without_a_line(federate, tmp_path, caplog):
    with power_cut(3):
        federate(methods="sfl")
    (tmp_path / "run" / "run" / "metrics.jsonl").unlink()
    resumed = federate(methods="sfl", resume=True)
    assert "metrics.jsonl lacks round 1, 2 of sfl: bytes, seconds and curves leave them out" in caplog.text
    assert [row["round"] for row in resumed.lines("metrics.jsonl")] == [3]


def test_resuming_a_finished_run_runs_nothing(federate):
    finished = federate(methods="sfl")
    before = {name: (finished.path / name).read_bytes() for name in ("metrics.jsonl", "nodes.jsonl", "summary.json")}
    federate(methods="sfl", resume=True)
    assert before == {name: (finished.path / name).read_bytes() for name in before}


def test_a_finished_run_whose_last_checkpoint_is_damaged_repeats_that_round_only(federate):
    whole, damaged = (federate(place, methods="sfl") for place in ("whole", "damaged"))
    (damaged.path / "checkpoints" / "sfl" / "round-000003.safetensors").write_bytes(b"half")
    (damaged.path / "checkpoints" / "sfl" / "history.jsonl").write_bytes(b"\0\n")
    federate("damaged", methods="sfl", resume=True)
    assert damaged.checkpoints("sfl").last().arrays.keys() == whole.checkpoints("sfl").last().arrays.keys()
    assert evaluations(damaged, "sfl") == evaluations(whole, "sfl")


# -- degenerate cases ------------------------------------------------------------------------------------------


def test_a_node_alone_learns_the_same_by_every_method(federate):
    """One node's mean is itself: federated, pooled and local training are one; its adaptive rates are all one."""
    folder = federate(methods="local,cloud,sfl,spfl,apfl", num_nodes=1)
    assert evaluations(folder, "local") == evaluations(folder, "sfl") == evaluations(folder, "cloud")
    assert evaluations(folder, "apfl") == evaluations(folder, "spfl") != evaluations(folder, "sfl")
    private = next(folder.path.glob("nodes/*/local/robot-00/round-000003.safetensors"))
    shared = under("shared.", folder.checkpoints("sfl").latest().arrays)
    assert same_bits(load_file(private), shared)


def test_a_run_reads_files_that_have_changed_since_the_last_run_of_the_process(federate, tmp_path):
    (tmp_path / "robots").mkdir()
    evaluated = []
    for place, seed in (("first", 1), ("changed", 2), ("back", 1)):
        write_world(tmp_path / "robots", NODES, seed=seed)
        run = federate(place, methods="fedavg", rounds=1, data_dir=str(tmp_path / "robots"))
        evaluated.append(evaluations(run, "fedavg"))
    assert evaluated[0] != evaluated[1]
    assert evaluated[0] == evaluated[2]
