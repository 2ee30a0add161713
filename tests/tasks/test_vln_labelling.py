"""Sampled descriptions, and the agent that chooses among them."""

from dataclasses import replace
from math import log

import pytest
import torch
from drawn_houses import OPTIONS, message_of, saved, speaking, task_with, write_world
from fedapps.tasks.vln.agent import path_likelihoods
from fedapps.tasks.vln.instructions import END
from fedapps.tasks.vln.nodes import Sampling, encode, label_paths
from fedapps.tasks.vln.speaker import load_speaker
from safetensors.torch import load_file, save_file

from fedapps.base.errors import DataError
from fedapps.base.seeding import torch_seed


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """An unseen house with the paths that a test describes."""
    return task_with().load_node(write_world(tmp_path_factory.mktemp("world")), 2, 3)


@pytest.fixture
def speaker(tmp_path):
    return load_speaker(speaking(tmp_path)["speaker_file"] and tmp_path / "speaker.safetensors", 6)


def drawn_agent(seed):
    torch.manual_seed(seed)
    return task_with().build_model().eval()


def test_likelihood_of_a_path_by_hand(node):
    """An agent that finds all candidates alike; STOP and 2, 3, 2, 2 and 3 neighbours lie along the first path."""
    agent, houses = drawn_agent(0), node.extra["houses"]
    for parameter in agent.decoder.candidates.parameters():
        torch.nn.init.zeros_(parameter)
    found = path_likelihoods(agent, houses, node.splits["val_unseen"])
    assert found[:3].tolist() == pytest.approx([-log(3 * 4 * 3 * 3 * 4)] * 3)


def test_words_are_sampled_by_their_probabilities(node, speaker):
    """END and one other word have the probabilities 1/4 and 3/4; at a low temperature the likelier comes always."""
    torch.nn.init.zeros_(speaker.decoder.output.weight)
    torch.nn.init.constant_(speaker.decoder.output.bias, -torch.inf)
    speaker.decoder.output.bias.data[[END, 5]] = torch.tensor([0.25, 0.75]).log()
    paths = [node.extra["paths"]["val_unseen"][0]] * 400
    houses, words = node.extra["houses"], node.extra["vocabulary"]
    with torch_seed(0, "test"):
        drawn = label_paths(speaker, houses, words, paths, 3, Sampling(1.0))
        cold = label_paths(speaker, houses, words, paths, 3, Sampling(0.01))
    assert sum(path.instructions != ("",) for path in drawn) == pytest.approx(300, abs=35)  # 4 standard deviations
    assert cold == label_paths(speaker, houses, words, paths, 3)


def test_the_listener_keeps_the_likeliest_of_the_same_samples(node, speaker):
    houses, words, paths = node.extra["houses"], node.extra["vocabulary"], node.extra["paths"]["val_unseen"]
    agent = drawn_agent(1)
    with torch_seed(0, "test"):
        kept = label_paths(speaker, houses, words, paths, 12, Sampling(1.0, 6, agent))
    with torch_seed(0, "test"):
        apart = [label_paths(speaker, houses, words, paths, 12, Sampling(1.0)) for _ in range(6)]
    for number, path in enumerate(paths):
        texts = tuple(of_draw[number].instructions[0] for of_draw in apart)
        assert len(set(texts)) > 1
        likelihoods = path_likelihoods(
            agent, houses, encode([replace(path, instructions=texts)], houses.rows, words, 12)
        )
        assert kept[number].instructions == (texts[int(likelihoods.argmax())],)


def test_all_shortest_paths_of_a_house_are_labelled_and_the_tests_are_among_them(tmp_path):
    world = write_world(tmp_path / "world")
    task = task_with(stage="pre-exploration", sampled_paths=0, **speaking(tmp_path))
    found = {path.path for path in task.load_node(world, 2, 3).extra["paths"]["train"]}
    some = task_with(stage="pre-exploration", sampled_paths=5, **speaking(tmp_path)).load_node(world, 2, 3)
    assert {path.path for path in some.extra["paths"]["train"]} < found
    assert all(5 <= len(path) <= 7 for path in found)
    assert {path.path[0 :: len(path.path) - 1] for path in some.extra["paths"]["val_unseen"]} <= {
        path[0 :: len(path) - 1] for path in found
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speaker_samples": 2}, "vln.speaker-samples = 2 with vln.speaker-temperature = 0"),
        ({"speaker_samples": 2, "speaker_temperature": 1.0}, "name the agent that chooses"),
        ({"listener_file": "agent.safetensors"}, "there is nothing to choose from"),
    ],
)
def test_options_that_do_not_go_together(changes, said):
    assert said in message_of(replace(OPTIONS, **changes).check)


def test_a_listener_of_other_sizes_is_refused(tmp_path):
    world = write_world(tmp_path / "world")
    file = saved(task_with(hidden=8).build_model(), tmp_path / "other.safetensors")
    options = {"speaker_temperature": 1.0, "speaker_samples": 2, "listener_file": file}
    task = task_with(stage="pre-exploration", **options, **speaking(tmp_path))
    assert message_of(task.load_node, world, 2, 3).startswith(f"vln.listener-file = {file!r}: ")


def test_a_speaker_whose_weights_are_not_finite_is_refused(tmp_path):
    file = tmp_path / "speaker.safetensors"
    speaking(tmp_path)
    weights = load_file(file)
    name = next(iter(weights))
    weights[name].view(-1)[0] = torch.nan
    save_file(weights, file)
    with pytest.raises(DataError, match=f"vln.speaker-file = .*{name} has numbers that are not finite"):
        load_speaker(file, 6)
