"""Passes over all examples without a draw."""

import numpy as np
import pytest
import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.social.networks import compact_graphs
from fedapps.tasks.social.scenes import RatedScene
from fedapps.tasks.social.task import SocialTask
from toys import ToyTask


def social_data(counts):
    rng = np.random.default_rng(0)
    scenes = [
        RatedScene(str(i), 50.0, tuple(map(tuple, rng.normal(size=(humans, 3)))), (), (), ())
        for i, humans in enumerate(counts)
    ]
    score = torch.linspace(0, 1, len(counts))
    return NodeData("node", {"train": {**compact_graphs(scenes, "cartesian"), "score": score}})


@pytest.mark.parametrize("size", [1, 4, 100])
def test_every_example_comes_once(size):
    task = ToyTask()
    data = task.data(1)
    before = torch.get_rng_state()
    found = list(task.examples(data, "train", size))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.cat([batch["x"] for batch in found]), data.splits["train"]["x"])
    assert {len(batch["x"]) for batch in found[:-1]} <= {size}


def test_graphs_of_like_size_come_together_and_score_the_same():
    task, data = SocialTask(), social_data([9, 0, 3, 9, 1, 0, 5])
    batches = list(task.examples(data, "train", 2))
    assert [batch["nodes"].shape[1] for batch in batches] == [1, 4, 10, 10]
    model = task.build_model()
    whole = data.splits["train"]
    expected = dict(zip(whole["score"].tolist(), model(whole["nodes"], whole["adjacency"]).tolist(), strict=True))
    for batch in batches:
        scores = model(batch["nodes"], batch["adjacency"]).tolist()
        assert scores == pytest.approx([expected[score] for score in batch["score"].tolist()], abs=1e-6)
    assert sorted(torch.cat([batch["score"] for batch in batches]).tolist()) == whole["score"].tolist()
