"""A deployed node, whose folder has one house."""

import json
import shutil

import pytest
import torch
from drawn_houses import (
    PATHS,
    THINGS,
    message_of,
    path_entry,
    saved,
    task_with,
    write_graph,
)
from fedapps.tasks.vln.dataset import main
from fedapps.tasks.vln.instructions import Vocabulary


@pytest.fixture
def own_folder(homes, tmp_path):
    """An unseen house: its graph and features, and no instructions."""
    folder = tmp_path / "own"
    write_graph(folder, "houseC")
    shutil.copy(homes / "features.npz", folder)
    return folder


@pytest.fixture
def words(tmp_path):
    Vocabulary(("walk", "the", *THINGS)).write(tmp_path / "words.txt")
    return str(tmp_path / "words.txt")


def test_a_deployed_house_explores_without_a_word_of_its_people(own_folder, words, speaker):
    task = task_with(vocabulary_file=words, stage="pre-exploration", **speaker)
    data = task.load_own(own_folder)
    assert (data.key, data.groups["seen"], data.count("train")) == ("houseC", "false", 5)
    assert set(data.splits) == {"train"}
    assert task.evaluate(task.build_model_for(data), data, seed=0, final=False).metrics == {}
    torch.manual_seed(5)
    agent = task.build_model()
    saved(agent, own_folder / "agent.safetensors")
    with_agent = task_with(vocabulary_file=words, stage="pre-exploration", agent_file="agent.safetensors", **speaker)
    mine = with_agent.build_model_for(data).state_dict()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in agent.state_dict().items())
    entries = [path_entry("houseC", PATHS[0], 1)]
    (own_folder / "R2R_train.json").write_text(json.dumps(entries))
    data = task.load_own(own_folder)
    assert (data.groups["seen"], data.count("train")) == ("true", 3)


def test_the_words_of_a_folder_are_those_of_a_run_without_a_file(homes, tmp_path, capsys):
    file = tmp_path / "words.txt"
    main([str(homes), str(file), "--size", "30"])
    shared = task_with().load_node(homes, 0, 3).extra["vocabulary"]
    assert Vocabulary.read(file) == shared
    again = task_with(vocabulary_file=str(file)).load_node(homes, 0, 3)
    assert again.extra["vocabulary"] == shared
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(file)])
    assert f"error: {tmp_path}: " in capsys.readouterr().err
    write_graph(tmp_path / "graph", "houseC")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "graph"), str(file)])
    assert "has no training instructions whose words could be the vocabulary" in capsys.readouterr().err
    assert Vocabulary.read(file) == shared


def test_what_a_deployed_house_lacks(own_folder, words):
    task = task_with(vocabulary_file=words)
    said = message_of(task.load_own, own_folder)
    assert "house houseC has no training instructions, which vln.stage = 'agent' needs" in said
    assert "vln.vocabulary-file = ''" in message_of(task_with().load_own, own_folder)
    assert "vln.stage = 'pre-exploration': house houseC trains on paths that a speaker labels" in message_of(
        task_with(vocabulary_file=words, stage="pre-exploration").load_own, own_folder
    )
    write_graph(own_folder, "houseD")
    assert "graphs of 2 houses; expected the node's one" in message_of(task.load_own, own_folder)
