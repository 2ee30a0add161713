"""Whole runs in drawn houses: the stages one after another, each from the snapshots that the last one left."""

import pytest
from drawn_houses import message_of, run_keys, speaking, task_with, write_world
from fedapps.strategies.records import under
from fedapps.tasks.vln.speaker import load_speaker
from safetensors.numpy import load_file
from small_runs import run_inline
from toys import same_bits

pytestmark = pytest.mark.slow
SEEN, UNSEEN = ("houseA", "houseB"), ("houseC", "houseD")
HOUSES = [*SEEN, *UNSEEN]
EXPLORING = ["fedvln", "centralized", "env-based", "fed-full"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"), seen=SEEN, unseen=UNSEEN)


@pytest.fixture(scope="module")
def stages(world, tmp_path_factory, reports):
    """The run folder of each stage, and the options of its task."""
    folder = tmp_path_factory.mktemp("stages")
    found, options = {}, {}

    def run(stage, methods, metric, **changes):
        options[stage] = {"stage": stage, "feature_cache": str(folder / "cache"), **changes}
        keys = {
            "num-nodes": 4, "rounds": 1, "methods": methods, "name": stage, "server-optimizer": "momentum",
            "server-learning-rate": 0.5, "track-metric": metric, "track-mode": "max", "centralized.steps": 3,
        }  # fmt: skip
        with reports():
            found[stage] = run_inline(run_keys(world, **options[stage]) | keys, folder)

    run("agent", "fedavg,centralized", "val_seen.sr")
    agent = str(best(found["agent"], "fedavg"))
    run("speaker", "fedavg,centralized", "val_seen.bleu")
    speaker = str(best(found["speaker"], "fedavg"))
    run("augmented", "fedavg,centralized", "val_seen.sr", agent_file=agent, speaker_file=speaker)
    agent = str(found["augmented"].checkpoints("fedavg").folder / "round-000001.safetensors")
    run("pre-exploration", ",".join(EXPLORING), "val_unseen.sr", agent_file=agent, speaker_file=speaker)
    return found, options


def best(folder, method):
    return folder.checkpoints(method).folder / "best.safetensors"


def rows(folder, method, phase):
    lines = folder.lines("nodes.jsonl")
    return {row["node"]: row for row in lines if (row["method"], row["phase"]) == (method, phase)}


def test_no_reply_is_refused_and_every_stage_has_a_report(stages):
    for folder in stages[0].values():
        assert all(facts["refused"] == 0 for facts in folder.summary()["methods"].values())
        assert "<svg" in (folder.path / "report.html").read_text()


@pytest.mark.parametrize("stage", ["agent", "speaker", "augmented"])
def test_seen_houses_train_and_all_are_evaluated(stages, stage):
    folder = stages[0][stage]
    examples = {node: row["num_examples"] for node, row in rows(folder, "fedavg", "train").items()}
    assert examples == dict.fromkeys(SEEN, {"agent": 12, "speaker": 12, "augmented": 12 + 5}[stage])
    assert [row["num_examples"] for row in rows(folder, "centralized", "train").values()] == [sum(examples.values())]
    for method in ("fedavg", "centralized"):
        found = rows(folder, method, "evaluate")
        assert sorted(found) == HOUSES
        splits = {node: {name.partition(".")[0] for name in row["metrics"]} for node, row in found.items()}
        assert splits == {node: {"val_seen" if node in SEEN else "val_unseen"} for node in HOUSES}


def test_centralised_training_takes_its_steps(stages):
    for folder in stages[0].values():
        (row,) = (row for row in folder.lines("metrics.jsonl") if row["method"] == "centralized")
        assert row["train"]["steps"] == 3


def test_pre_exploration_pools_unseen_houses_and_seen_ones_take_part_by_fedvln_alone(stages):
    folder = stages[0]["pre-exploration"]
    assert [row["num_examples"] for row in rows(folder, "centralized", "train").values()] == [5 + 5]
    trained = {method: set(rows(folder, method, "train")) for method in EXPLORING}
    assert trained["fedvln"] & set(SEEN)
    assert trained["env-based"] == trained["fed-full"] == trained["fedvln"] - set(SEEN) != set()
    for node, row in rows(folder, "fedvln", "train").items():
        assert row["num_examples"] == (12 if node in SEEN else 5)


def test_the_next_stage_begins_with_the_snapshot_of_the_last(world, stages):
    found, options = stages
    for stage, before in (("augmented", "agent"), ("pre-exploration", "augmented")):
        task = task_with(**options[stage])
        arrays = load_file(options[stage]["agent_file"])
        assert any(name.startswith("state.") for name in arrays)
        expected = under("shared.", found[before].checkpoints("fedavg").latest().arrays)
        model = task.build_model_for(task.load_node(world, 0, 4))
        assert same_bits({name: tensor.numpy() for name, tensor in model.state_dict().items()}, expected)
    speaker = load_speaker(best(found["speaker"], "fedavg"), 6).state_dict()
    expected = under("shared.", found["speaker"].checkpoints("fedavg").latest().arrays)
    assert same_bits({name: tensor.numpy() for name, tensor in speaker.items()}, expected)


@pytest.mark.parametrize(("method", "kept"), [("fedvln", "encoder.*"), ("env-based", "none")])
def test_a_snapshot_without_the_whole_agent_is_no_agent(stages, method, kept):
    file = str(stages[0]["pre-exploration"].checkpoints(method).folder / "round-000001.safetensors")
    names = task_with().build_model().state_dict()
    count = sum(name.startswith("encoder.") for name in names) if method == "fedvln" else 0
    said = message_of(task_with(agent_file=file).build_model)
    assert f"vln.agent-file = {file!r}: holds {count} of the model's {len(names)} parameters ({kept}), as " in said
    assert said.endswith("such as fedavg or centralized")


@pytest.mark.parametrize("stage", ["agent", "speaker", "pre-exploration"])
def test_one_house_is_centralised_training_bit_for_bit(tmp_path, stage):
    world = write_world(tmp_path / "world", seen=("houseA",), unseen=("houseC",))
    speaker = speaking(tmp_path) if stage == "pre-exploration" else {}
    keys = run_keys(world, stage=stage, houses="unseen" if speaker else "seen", **speaker)
    folder = run_inline(keys | {"num-nodes": 1, "methods": "fedavg,centralized"}, tmp_path)
    one, other = (folder.checkpoints(method).latest().arrays for method in ("fedavg", "centralized"))
    assert same_bits(one, other)
    found = {method: rows(folder, method, "evaluate") for method in ("fedavg", "centralized")}
    assert {key: row["metrics"] for key, row in found["fedavg"].items()} == {
        key: row["metrics"] for key, row in found["centralized"].items()
    }
    assert all(row["train"]["steps"] > 0 for row in folder.lines("metrics.jsonl"))
