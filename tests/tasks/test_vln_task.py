"""The task: nodes of houses, stages, and evaluation."""

import json

import numpy as np
import pytest
import torch
from drawn_houses import EDGES, NAMES, PATHS, THINGS, message_of, path_entry, saved, task_with, write_graph, write_world
from fedapps.tasks.vln.agent import Agent, Rollout, Step, actor_critic_loss, discounted_returns, imitation_loss, sampled
from fedapps.tasks.vln.instructions import END
from fedapps.tasks.vln.nodes import _shuffled
from fedapps.tasks.vln.options import Options, Sizes
from fedapps.tasks.vln.walks import METRICS

from fedapps.base.errors import DivergedError


def text_of(array):
    return array.tobytes().decode()


# -- nodes -----------------------------------------------------------------------------------------------------


def test_a_house_is_a_node_and_unseen_ones_come_last(homes):
    nodes = [task_with().load_node(homes, partition, 3) for partition in range(3)]
    assert [node.key for node in nodes] == ["houseA", "houseB", "houseC"]
    assert [dict(node.groups) for node in nodes] == [
        {"house": "houseA", "seen": "true"},
        {"house": "houseB", "seen": "true"},
        {"house": "houseC", "seen": "false"},
    ]
    assert [set(node.splits) for node in nodes] == [{"train", "val_seen"}] * 2 + [{"val_unseen"}]
    assert [node.count("train") for node in nodes] == [12, 12, 0]
    assert task_with().sizes(nodes[2]) == {"houses": 1, "viewpoints": 13, "val_unseen instructions": 6}
    assert task_with(houses="unseen").load_node(homes, 0, 1).key == "houseC"


def test_pooled_data_are_the_nodes_data_together(homes):
    pooled = task_with().load_all(homes)
    nodes = [task_with().load_node(homes, partition, 3) for partition in range(3)]
    assert pooled.key == homes.name
    assert not pooled.groups
    for split in ("train", "val_seen", "val_unseen"):
        here = [node for node in nodes if split in node.splits]
        assert pooled.count(split) == sum(node.count(split) for node in here)
        texts = [tuple(row) for node in here for row in node.splits[split]["tokens"].tolist()]
        assert [tuple(row) for row in pooled.splits[split]["tokens"].tolist()] == texts


def test_one_house_is_pooled_data(homes):
    one, pooled = (task_with(houses="unseen").load_node(homes, 0, 1), task_with(houses="unseen").load_all(homes))
    for name, tensor in one.splits["val_unseen"].items():
        assert torch.equal(tensor, pooled.splits["val_unseen"][name])
    assert torch.equal(one.extra["houses"].features, pooled.extra["houses"].features)


def test_words_are_those_of_all_training_instructions(homes):
    words = task_with().load_node(homes, 2, 3).extra["vocabulary"]
    assert {"walk", "stop", "the"} <= set(words.words)
    assert len(words) <= 30
    assert task_with().build_model().encoder.embedding.weight.shape == (30, 8)


def test_ablations(homes):
    plain = task_with().load_node(homes, 0, 3)
    blind = task_with(ablation="angles-only").load_node(homes, 0, 3)
    assert not blind.extra["houses"].features.any()
    silent = task_with(ablation="no-instructions").load_node(homes, 0, 3)
    assert silent.splits["train"]["length"].eq(2).all()
    assert silent.splits["val_seen"]["tokens"][:, -1].eq(END).all()
    shuffled = task_with(ablation="shuffled-instructions").load_node(homes, 2, 3)
    unseen = task_with().load_node(homes, 2, 3)
    assert torch.equal(plain.splits["train"]["tokens"], task_with().load_node(homes, 0, 3).splits["train"]["tokens"])
    assert torch.equal(shuffled.splits["val_unseen"]["path"], unseen.splits["val_unseen"]["path"])
    assert not torch.equal(shuffled.splits["val_unseen"]["tokens"], unseen.splits["val_unseen"]["tokens"])
    rows = [sorted(map(tuple, each.splits["val_unseen"]["tokens"].tolist())) for each in (shuffled, unseen)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("stage", ["agent", "speaker", "augmented", "pre-exploration"])
def test_a_profile_says_what_the_loaded_data_say(homes, speaker, stage):
    task = task_with(stage=stage, **speaker)
    for node in range(3):
        assert task.node_profile(homes, node, 3) == task.load_node(homes, node, 3).profile()


# -- stages ----------------------------------------------------------------------------------------------------


def test_augmented_training_adds_labelled_paths_in_seen_houses(homes, speaker):
    task = task_with(stage="augmented", **speaker)
    nodes = [task.load_node(homes, partition, 3) for partition in range(3)]
    assert [node.count("train") for node in nodes] == [12 + 5, 12 + 5, 0]
    assert nodes[0].splits["train"]["weight"].tolist() == pytest.approx([0.2] * 12 + [0.6] * 5)
    again = task.load_node(homes, 0, 3)
    assert all(torch.equal(tensor, again.splits["train"][name]) for name, tensor in nodes[0].splits["train"].items())
    paths = nodes[0].extra["paths"]["train"]
    assert len(paths) == 4 + 5
    assert {path.path for path in paths[4:]} != {path.path for path in nodes[1].extra["paths"]["train"][4:]}


def test_a_house_without_a_path_to_sample_trains_on_its_own_instructions(homes, speaker, monkeypatch):
    monkeypatch.setattr("fedapps.tasks.vln.dataset.sample_paths", lambda graph, count, rng: [])
    assert task_with(stage="augmented", **speaker).load_node(homes, 0, 3).count("train") == 12
    task = task_with(stage="pre-exploration", **speaker)
    assert task.load_node(homes, 0, 3).count("train") == 12
    said = message_of(task.load_node, homes, 2, 3)
    assert said.startswith(
        "house houseC: too small for vln.stage = 'pre-exploration': no shortest path of 4 to 6 edges"
    )


def test_pre_exploration_pools_unseen_houses_only(tmp_path, speaker):
    homes = write_world(tmp_path / "world", unseen=("houseC", "houseD"))
    pooled = task_with(stage="pre-exploration", **speaker).load_all(homes)
    assert pooled.extra["houses"].scans == ("houseC", "houseD")
    assert pooled.count("train") == 5 + 5
    seen = task_with(stage="pre-exploration", houses="seen", **speaker)
    said = message_of(seen.load_all, homes)
    assert "no house with paths for vln.houses = 'seen' in vln.stage = 'pre-exploration'" in said


def test_pre_exploration_trains_unseen_houses_on_labelled_paths_alone(homes, speaker):
    task = task_with(stage="pre-exploration", **speaker)
    seen, unseen = task.load_node(homes, 0, 3), task.load_node(homes, 2, 3)
    assert seen.count("train") == 12
    assert unseen.count("train") == 5
    assert unseen.count("val_unseen") == 6
    human = {path.instructions for path in unseen.extra["paths"]["val_unseen"]}
    assert not human & {path.instructions for path in unseen.extra["paths"]["train"]}


def test_pre_exploration_on_a_share_of_peoples_instructions_leaves_them_out_of_the_tests(homes):
    whole = {path.path_id for path in task_with().load_node(homes, 2, 3).extra["paths"]["val_unseen"]}
    task = task_with(stage="pre-exploration", described_share=0.5)
    paths = task.load_node(homes, 2, 3).extra["paths"]
    trained, tested = ({path.path_id for path in paths[split]} for split in ("train", "val_unseen"))
    assert trained
    assert tested
    assert not trained & tested
    assert trained | tested == whole
    assert task.load_node(homes, 0, 3).count("train") == 12
    said = message_of(task_with(stage="pre-exploration", described_share=0.1).load_node, homes, 2, 3)
    assert "vln.described-share = 0.1: house houseC has" in said


def test_the_next_stage_begins_with_the_agent_of_the_last(homes, tmp_path):
    torch.manual_seed(5)
    first = task_with().build_model()
    task = task_with(agent_file=saved(first, tmp_path / "agent.safetensors"))
    again = task.build_model_for(task.load_node(homes, 0, 3))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in first.state_dict().items())
    assert {name.partition(".")[0] for name in again.state_dict()} == {"encoder", "decoder", "critic"}
    said = message_of(task_with(agent_file=task.options.agent_file, hidden=8).build_model)
    assert "parameters do not fit: " in said
    assert said.endswith("to those that the file was trained with")


def test_the_speaker_is_the_model_of_its_stage(homes):
    task = task_with(stage="speaker")
    data = task.load_node(homes, 0, 3)
    model = task.build_model_for(data)
    assert {name.partition(".")[0] for name in model.state_dict()} == {"encoder", "decoder"}
    batch = next(task.batches(data, "train", 4))
    assert task.loss(model, batch) > 0


def test_a_speaker_of_fewer_words(homes, speaker):
    task = task_with(vocabulary_size=40, stage="pre-exploration", **speaker)
    assert task.load_node(homes, 2, 3).count("train") == 5  # 30 rows are enough for the words that there are


# -- learning and evaluation -----------------------------------------------------------------------------------


def test_an_agent_is_evaluated_on_what_its_node_has(homes):
    task = task_with()
    torch.manual_seed(0)
    for partition, split in ((0, "val_seen"), (2, "val_unseen")):
        data = task.load_node(homes, partition, 3)
        model = task.build_model_for(data)
        found = task.evaluate(model, data, seed=0, final=True)
        counts = {f"{split}.{name}.count" for name in METRICS}
        assert set(found.metrics) == {f"{split}.{name}" for name in METRICS} | counts
        assert {found.metrics[name] for name in counts} == {float(data.count(split))}
        assert found.traces["viewpoints"].shape == (13, 3)
        assert found.traces["edges"].shape == (len(EDGES), 2)
        assert found.traces[f"{split}.0.reference"].tolist() == data.splits[split]["path"][0, :5].tolist()
        assert text_of(found.traces[f"{split}.0.instruction"]).startswith("Walk past the")
        assert found.traces[f"{split}.0.success"] == (found.traces[f"{split}.0.error"] < 3)
        assert not task.evaluate(model, data, seed=0, final=False).traces


def test_nodes_means_weigh_as_the_pooled_mean(homes):
    task = task_with()
    torch.manual_seed(0)
    model = task.build_model()
    nodes = [task.load_node(homes, partition, 3) for partition in range(2)]
    parts = []
    for node in nodes:
        model.houses = node.extra["houses"]
        parts.append(task.evaluate(model, node, seed=0, final=False).metrics)
    pooled = task.load_all(homes)
    model.houses = pooled.extra["houses"]
    whole = task.evaluate(model, pooled, seed=0, final=False).metrics
    for name in METRICS:
        total = sum(part[f"val_seen.{name}"] * part[f"val_seen.{name}.count"] for part in parts)
        assert whole[f"val_seen.{name}"] == pytest.approx(total / whole[f"val_seen.{name}.count"])


def test_a_speaker_is_evaluated_by_bleu(homes):
    task = task_with(stage="speaker")
    data = task.load_node(homes, 2, 3)
    torch.manual_seed(0)
    found = task.evaluate(task.build_model_for(data), data, seed=0, final=True)
    assert found.metrics["val_unseen.bleu.count"] == 2
    assert len(found.metrics["val_unseen.bleu.statistics"]) == 10
    assert 0 <= found.metrics["val_unseen.distinct"] <= 1
    assert "val_unseen.1.said" in found.traces
    assert text_of(found.traces["val_unseen.1.instruction"]) == "Walk past the plant and stop at the piano."


def test_examples_go_through_a_split_once(homes):
    task, data = task_with(), task_with().load_node(homes, 0, 3)
    for batches in (task.examples(data, "train", 5), task.batches(data, "train", 5)):
        assert sorted(int(n) for batch in batches for n in batch["record"]) == sorted(list(range(4)) * 3)


def test_rxr_goes_the_same_ways(tmp_path):
    """Several annotators and languages to a path, in JSON lines, of which one language is read."""
    for scan in ("houseA", "houseC"):
        write_graph(tmp_path, scan)
    rng = np.random.default_rng(0)
    features = {
        f"{scan}_{name}": rng.random((36, 6), dtype=np.float32) for scan in ("houseA", "houseC") for name in NAMES
    }
    np.savez(tmp_path / "features.npz", **features)
    for split, scan in (("train", "houseA"), ("val_seen", "houseA"), ("val_unseen", "houseC")):
        lines = [
            {
                **path_entry(scan, stops, number),
                "language": language,
                "instruction": f"{language} go to the {THINGS[stops[-1]]}",
            }
            for number, stops in enumerate(PATHS[:3])
            for language in ("en-US", "en-IN", "hi-IN")
        ]
        (tmp_path / f"rxr_{split}_guide.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = task_with(max_length=160)
    nodes = [task.load_node(tmp_path, partition, 2) for partition in range(2)]
    assert [dict(node.groups)["seen"] for node in nodes] == ["true", "false"]
    assert nodes[0].splits["train"]["record"].tolist() == [0, 0, 1, 1, 2, 2]
    assert task_with(languages="hi").load_node(tmp_path, 1, 2).count("val_unseen") == 3
    found = task.references(tmp_path)["shortest path"]  # the third path is a detour, which the teacher follows
    assert found["val_unseen.ndtw"] == 1
    assert found["val_unseen.spl"] < 1


# The losses of the agent, by hand.


SIZES = Sizes(vocabulary=20, features=6, words=16, hidden=32, action=8)


def test_returns_by_hand():
    """Two episodes: 1, -1, then STOP with 2; and 1, 1, 1 cut off where the critic says 5."""
    rewards = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [2.0, 1.0], [0.0, 0.0]])
    walked = torch.tensor([[True, True], [True, True], [True, True], [False, False]])
    found = discounted_returns(rewards, walked, torch.tensor([0.0, 5.0]))
    expected = [
        [1 + 0.9 * (-1 + 0.9 * 2), 1 + 0.9 * (1 + 0.9 * (1 + 0.9 * 5))],
        [-1 + 0.9 * 2, 1 + 0.9 * (1 + 0.9 * 5)],
        [2, 1 + 0.9 * 5],
        [0, 0],
    ]
    torch.testing.assert_close(found, torch.tensor(expected))


class FixedCritic(Agent):
    """Values that are the first number of the hidden state."""

    def value(self, hidden):
        return hidden[:, 0]


def test_actor_critic_by_hand():
    """One episode of a move and STOP; probabilities 3/4, 1/4, then 1/2, 1/2; values 0.5 and 1; rewards 1 and 2."""
    logits = torch.tensor([[0.0, np.log(3.0)]]), torch.zeros(1, 2)
    hidden = torch.tensor([[0.5]]), torch.tensor([[1.0]])
    steps = [
        Step(torch.tensor([0]), logits[n], torch.tensor([0]), torch.tensor([1 - n]), hidden[n], torch.tensor([n + 1.0]))
        for n in range(2)
    ]
    rollout = Rollout(steps, torch.zeros(1, 3), torch.tensor([2]), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1))
    errors = 1 + 0.9 * 2 - 0.5, 2 - 1
    policy = -np.log(3 / 4) * errors[0] - np.log(1 / 2) * errors[1]
    entropy = -(3 / 4 * np.log(3 / 4) + 1 / 4 * np.log(1 / 4)) + np.log(2)
    expected = (policy + 0.5 * (errors[0] ** 2 + errors[1] ** 2) - 0.01 * entropy) / 2
    assert actor_critic_loss(FixedCritic(SIZES), rollout).item() == pytest.approx(expected, rel=1e-5)


def test_imitation_by_hand():
    """Two episodes, the second of weight 0.5; the first goes on for a second step."""
    both = Step(
        torch.tensor([0, 1]), torch.tensor([[0, np.log(3)], [0, 0]]), torch.tensor([1, 0]), *[torch.zeros(2)] * 3
    )
    one = Step(torch.tensor([0]), torch.tensor([[0, np.log(4)]]), torch.tensor([0]), *[torch.zeros(1)] * 3)
    rollout = Rollout([both, one], torch.zeros(2, 3), torch.zeros(2), torch.zeros(0), torch.zeros(0, 1))
    expected = (-np.log(3 / 4) - np.log(1 / 5) - 0.5 * np.log(1 / 2)) / 2
    assert imitation_loss(rollout, torch.tensor([1.0, 0.5])).item() == pytest.approx(expected)


def test_an_agent_whose_probabilities_are_not_finite_has_diverged():
    with pytest.raises(DivergedError, match="probabilities are not finite"):
        sampled(torch.arange(2), torch.tensor([[0.0, -torch.inf], [0.0, torch.nan]]), torch.zeros(2))


@pytest.mark.parametrize("records", [[0, 0, 0, 1, 1, 1], [2, 0, 1, 0, 1, 0, 2, 1], [0, 1, 2]])
def test_no_shuffled_instruction_is_of_its_own_path(records):
    record = torch.tensor(records)
    mixed = _shuffled({"record": record, "tokens": record[:, None] + 5, "length": record + 1}, "house", Options())
    assert (mixed["tokens"][:, 0] != record + 5).all()
    assert sorted(mixed["tokens"][:, 0].tolist()) == sorted((record + 5).tolist())
    assert torch.equal(mixed["length"], mixed["tokens"][:, 0] - 4)


def test_a_house_with_one_path_has_no_shuffled_instructions():
    record = torch.tensor([0, 0, 0, 1])
    assert _shuffled({"record": record, "tokens": record[:, None], "length": record}, "house", Options()) is None
