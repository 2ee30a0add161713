"""A trained agent or speaker in houses: paths and sentences as the evaluation has them."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_houses import EDGES, NAMES, PATHS, TEXTS, THINGS, path_entry, task_with, write_graph
from fedapps.tasks.base import DataError
from fedapps.tasks.vln.evaluation import references_of, walk_all
from fedapps.tasks.vln.houses import HousePath, Start
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.speaker import moves_of
from fedapps.tasks.vln.task import VlnTask
from fedapps.tasks.vln.trained import VlnTrained
from fedapps.tasks.vln.walks import Walks, bleu, bleu_statistics, observe

from fedapps.base.seeding import torch_seed


def trained_in(homes, partition=0, seed=0, **changes):
    """An untrained model in the house of a node, with weights that are large enough for different words to matter."""
    task = task_with(**changes)
    data = task.load_node(homes, partition, 3)
    with torch_seed(seed):
        module = task.build_model_for(data)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter *= 3
    return VlnTrained(task, module, task.facts(data)), data


def starts_of(paths):
    return [Start(text, path.scan, path.path[0], path.heading) for path in paths for text in path.instructions]


# -- an agent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"ablation": "no-instructions"}, {"ablation": "angles-only"}])
def test_paths_are_those_of_the_evaluation(homes, changes):
    trained, data = trained_in(homes, 2, **changes)
    houses, episodes = data.extra["houses"], data.splits["val_unseen"]
    scores, trails = walk_all(trained.module, houses, episodes, trained.task.options.max_actions)
    expected = [tuple(houses.names[row].split("_")[1] for row in trail[trail >= 0]) for trail in trails]
    starts = starts_of(data.extra["paths"]["val_unseen"])
    together = trained.follow_all(starts)
    assert [path.viewpoints for path in together] == expected
    assert len(set(expected)) > 1
    alone = [trained.follow(start.instruction, start.scan, start.viewpoint, start.heading) for start in starts]
    assert alone == together
    goals = [path.path[-1] for path in data.extra["paths"]["val_unseen"] for _ in path.instructions]
    ends = [houses.rows[f"houseC_{path.viewpoints[-1]}"] for path in together]
    errors = houses.distances(torch.tensor(ends), torch.tensor([houses.rows[f"houseC_{goal}"] for goal in goals]))
    found = trained.evaluate(data)
    assert errors.double().mean().item() == pytest.approx(found["val_unseen.ne"])
    assert scores["sr"].mean().item() == found["val_unseen.sr"]


def test_an_agent_of_zeros_stops_at_once_and_one_that_never_stops_runs_out_of_actions(homes):
    """All candidates have the logit 0, and STOP is the first; without STOP, the first neighbour is."""
    trained, _ = trained_in(homes)
    with torch.no_grad():
        for parameter in trained.module.parameters():
            parameter.zero_()
    path = trained.follow("walk to the bed", "houseA", "v00", heading=1.0)
    assert path == HousePath("houseA", ("v00",), 1.0, ((0.0, 0.0, 1.5),), stopped=True)
    decide = trained.module.decoder.forward
    trained.module.decoder.forward = lambda seen, memory: (_never_stopping(decide(seen, memory)[0]), memory)
    path = trained.follow("walk to the bed", "houseA", "v00")
    assert path.viewpoints == ("v00", "v01", "v00", "v01", "v00", "v01", "v00")  # max_actions = 6
    assert path.positions[1] == (2.0, 0.0, 1.5)
    assert not path.stopped


def _never_stopping(logits):
    return logits.index_fill(1, torch.tensor([0]), -1.0)


def test_bad_starts_are_refused(homes):
    trained, _ = trained_in(homes)
    with pytest.raises(DataError, match=r"house 'houseC': the model is in houseA; enter\(folder\) the house"):
        trained.follow("walk", "houseC", "v00")
    with pytest.raises(DataError, match="house houseA: no viewpoint 'v99' in its graph"):
        trained.follow("walk", "houseA", "v99")
    with pytest.raises(DataError, match="house houseA, viewpoint v00: the instruction has no text"):
        trained.follow(" ", "houseA", "v00")
    with pytest.raises(DataError, match="heading = nan: must be a finite number"):
        trained.follow("walk", "houseA", "v00", float("nan"))
    with pytest.raises(DataError, match=r"viewpoint v00: heading of shape \[2\]; expected one number, in radians"):
        trained.follow("walk", "houseA", "v00", [0.0, 1.0])
    with pytest.raises(DataError, match=r"'agent' trained an agent, which describes no path: use follow\(\)"):
        trained.describe(HousePath("houseA", ("v00", "v01")))
    assert trained.follow_all([]) == []


def test_a_model_enters_the_houses_of_a_folder(homes):
    trained, data = trained_in(homes, 2)
    starts = starts_of(data.extra["paths"]["val_unseen"])
    expected = trained.follow_all(starts)
    trained.module.houses = None
    with pytest.raises(DataError, match=r"the model is in no house: enter\(folder\) those of a folder"):
        trained.follow_all(starts)
    assert trained.enter(homes).module.houses.scans == ("houseA", "houseB", "houseC")
    assert trained.follow_all(starts) == expected
    assert trained.enter(homes, ["houseC"]).follow_all(starts) == expected
    with pytest.raises(DataError, match="no graph of houseX; found houseA, houseB, houseC"):
        trained.enter(homes, ["houseX"])


def test_words_come_with_the_model(homes, tmp_path):
    """A folder with other training instructions has other words; the model keeps those that it knows."""
    trained, data = trained_in(homes, 2)
    own = tmp_path / "own"
    write_graph(own, "houseC")
    shutil.copy(homes / "features.npz", own)
    (own / "R2R_train.json").write_text(
        json.dumps([{**path_entry("houseC", PATHS[2], 1), "instructions": ["Go."] * 5}])
    )
    unseen = [path_entry("houseC", stops, 200 + number) for number, stops in enumerate(PATHS[:2])]
    (own / "R2R_val_unseen.json").write_text(json.dumps(unseen))
    assert trained.evaluate(own) == trained.evaluate(data)
    assert trained.data(homes).key == homes.name
    assert trained.data(homes, 2, 3).key == "houseC"
    unknown = VlnTrained(trained.task, trained.module)
    with pytest.raises(DataError, match=r"vln\.vocabulary-file = '': the words are those of training instructions"):
        trained.task.facts(None)
    with pytest.raises(DataError, match="the words of the model are unknown"):
        unknown.follow("walk", "houseC", "v00")


# -- a speaker -------------------------------------------------------------------------------------------------


def test_sentences_are_those_of_the_evaluation(homes):
    trained, data = trained_in(homes, 2, stage="speaker")
    given = data.extra["paths"]["val_unseen"]
    paths = [HousePath(path.scan, path.path, path.heading) for path in given]
    said = trained.describe_all(paths)
    assert [trained.describe(path) for path in paths] == said
    assert any(said)
    expected = trained.evaluate(data)
    statistics = bleu_statistics([sentence.split() for sentence in said], references_of(given))
    assert statistics.tolist() == expected["val_unseen.bleu.statistics"]
    assert bleu(statistics) == expected["val_unseen.bleu"]


def test_bad_paths_are_refused(homes):
    trained, _ = trained_in(homes, stage="speaker")
    assert (5, 6) not in EDGES
    with pytest.raises(DataError, match="house houseA: the graph has no edge from v05 to v06"):
        trained.describe(HousePath("houseA", ("v04", "v05", "v06")))
    with pytest.raises(DataError, match="house houseA: a path of 1 viewpoints; expected at least 2"):
        trained.describe(HousePath("houseA", ("v04",)))
    with pytest.raises(DataError, match=r"vln.stage = 'speaker' trained a speaker, .*: use describe\(\)"):
        trained.follow("walk", "houseA", "v00")


# -- predictions, folders and networks -------------------------------------------------------------------------


def test_a_prediction_is_the_path_of_an_instruction(homes, tmp_path):
    trained, _ = trained_in(homes)
    lines = tmp_path / "said.jsonl"
    entries = [
        {"instruction": "Walk past the sofa.", "scan": "houseA", "viewpoint": "v00", "heading": 1.5},
        {"instruction": "go", "scan": "houseA", "viewpoint": "v03"},
    ]
    lines.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    rows = list(trained.rows([lines], batch_size=1))
    expected = trained.follow("Walk past the sofa.", "houseA", "v00", 1.5)
    assert rows[0] == {
        "instruction": "Walk past the sofa.", "scan": "houseA", "path": list(expected.viewpoints), "heading": 1.5,
        "positions": [list(position) for position in expected.positions], "stopped": expected.stopped,
    }  # fmt: skip
    assert rows[1]["path"][0] == "v03"
    assert list(trained.rows([io.StringIO(lines.read_text())])) == rows
    unseen = list(trained.rows([homes, homes / "R2R_val_unseen.json"]))
    assert trained.module.houses.scans == ("houseC",)
    assert len(unseen) == 2 * len(TEXTS)
    assert unseen[0]["path"][0] == NAMES[PATHS[0][0]]
    assert THINGS[PATHS[0][0]] in unseen[0]["instruction"]


def test_a_prediction_of_a_speaker_is_a_description(homes):
    trained, _ = trained_in(homes, stage="speaker")
    (row,) = trained.rows([io.StringIO('{"scan": "houseA", "path": ["v00", "v01"], "heading": 0}\n')])
    assert row == {
        "scan": "houseA", "path": ["v00", "v01"], "heading": 0.0,
        "description": trained.describe(HousePath("houseA", ("v00", "v01"))),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"scan": "houseA", "viewpoint": "v00"}', "line 1: no instruction; expected a text instruction, or a list"),
        ('{"instruction": "go", "viewpoint": "v00"}', "line 1: scan is nothing; expected a string"),
        ('{"instruction": "go", "scan": "houseA"}', "line 1: path = None; expected names of viewpoints"),
        ('{"instruction": "go", "scan": "houseA", "viewpoint": "v00", "heading": "n"}', "heading = 'n'; expected rad"),
        ("[1]", r"<input>, line 1: '\[1\]'; expected a JSON object"),
    ],
)
def test_bad_predictions_are_named(homes, line, said):
    trained, _ = trained_in(homes)
    with pytest.raises(DataError, match=said):
        list(trained.rows([io.StringIO(line)]))
    with pytest.raises(DataError, match="there is no instruction and no path: name a file of JSON lines"):
        list(trained.rows([homes]))
    with pytest.raises(DataError, match="a second folder of houses; give one with all of them"):
        list(trained.rows([homes, homes, io.StringIO(line)]))


@pytest.mark.parametrize("stage", ["agent", "speaker"])
def test_a_model_folder_has_the_words_and_no_house(homes, tmp_path, stage):
    trained, data = trained_in(homes, stage=stage)
    trained.save(tmp_path / "model")
    again = VlnTrained.read(tmp_path / "model", lambda name: VlnTask)
    assert isinstance(again, VlnTrained)
    assert again.module.houses is None
    again.enter(homes)
    if stage == "agent":
        starts = starts_of(data.extra["paths"]["val_seen"])
        assert again.follow_all(starts) == trained.follow_all(starts)
    else:
        path = HousePath("houseA", tuple(NAMES[stop] for stop in PATHS[0]))
        assert again.describe(path) == trained.describe(path)
    assert again.evaluate(data) == trained.evaluate(data)


def test_the_agents_network_walks_as_the_agent(homes):
    """Step by step, with what is seen in the house given as tensors."""
    trained, data = trained_in(homes, 2)
    network = trained.network()
    assert network.module(*network.inputs)[0].shape == (2, 4)
    episodes = data.splits["val_unseen"]
    start = Start(TEXTS[0].format(a=THINGS[0], b=THINGS[7]), "houseC", "v00")
    walks = Walks(data.extra["houses"], {name: tensor[:1] for name, tensor in episodes.items()})
    move, state, trail = torch.zeros(1, 4), (torch.ones(1, 16), torch.ones(1, 16)), [NAMES[PATHS[0][0]]]
    for step in range(trained.task.options.max_actions):
        seen = walks.observe()
        logits, *state = network.module(
            episodes["tokens"][:1].long(), episodes["length"][:1],
            seen.views, seen.view_angles, seen.candidates, seen.candidate_angles, seen.exists,
            move, *state, torch.tensor([step == 0]),
        )  # fmt: skip
        action = logits.argmax(dim=1)
        move = seen.candidate_angles[:, action[0]]
        walks.step(action)
        if not len(walks.active):
            break
        trail.append(data.extra["houses"].names[int(walks.here[0])].split("_")[1])
    assert trained.follow(start.instruction, "houseC", "v00").viewpoints == tuple(trail)


def test_the_speakers_network_gives_the_words_of_the_speaker(homes):
    trained, data = trained_in(homes, 2, stage="speaker")
    network, speaker, houses = trained.network(), trained.module.eval(), data.extra["houses"]
    assert network.module(*network.inputs).shape == (2, 7, 30)
    episodes = {name: tensor[:2] for name, tensor in data.splits["val_unseen"].items()}
    path, length, words = episodes["path"], episodes["path_length"], episodes["tokens"].long()
    here, facing, candidate = moves_of(houses, path, length, episodes["facing"])
    seen = observe(houses, here.flatten(), facing.flatten())
    rows = torch.arange(here.numel())
    taken, angles = (each[rows, candidate.flatten()] for each in (seen.candidates, seen.candidate_angles))
    inputs = [each.unflatten(0, path.shape) for each in (taken, angles, seen.views, seen.view_angles)]
    with torch.no_grad():
        logits = network.module(*inputs, length, words)
        expected, _ = speaker.decoder(words, *speaker.look(houses, episodes))
    torch.testing.assert_close(logits, expected)


@pytest.mark.slow
@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of published datasets")
def test_published_instructions_are_followed(tmp_path):
    folder = Path(os.environ["FEDAPPS_DATA"]) / "vln"
    task = VlnTask(Options(hidden=16, word_width=8, feature_cache=str(tmp_path)))
    with torch_seed(0):
        module = task.build_model()
    trained = VlnTrained(task, module, {"vocabulary": ["walk", "stop", "the"]})
    paths = next(folder.rglob("R2R_val_unseen.json*"))
    row = next(trained.rows([folder, paths]))
    assert np.isfinite(row["positions"]).all()
