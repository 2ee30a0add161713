"""A node whose data comes in stages: what it trains on, what it is evaluated on, and its learning rate."""

from dataclasses import replace

import pytest
import torch
from fedapps.tasks.base import DataError
from toy_nodes import at, initial, staged
from toy_nodes import node as node_of
from toys import ToyTask, same_bits


def node(folder):
    return node_of(folder, data=staged(1))


def test_a_stage_is_trained_on_its_own_data(tmp_path):
    plain = node_of(tmp_path / "plain", data=replace(ToyTask().data(4), key="toy-1"))
    expected = plain.train_round(initial(), at(1, 0))
    assert same_bits(node(tmp_path / "staged").train_round(initial(), at(1, 1)).arrays, expected.arrays)


def test_a_stage_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(DataError, match="toy-1 has 3 stages of data: there is no stage 4"):
        node(tmp_path).train_round(initial(), at(1, 3))


def test_every_evaluation_covers_all_stages(tmp_path):
    client = node(tmp_path)
    trained = client.train_round(initial(), at(1, 1)).arrays
    metrics = client.evaluate_round(trained, at(1, 1)).metrics
    model = ToyTask().build_model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trained.items()})
    model.eval()
    for stage, splits in enumerate(staged(1).stages):
        expected = ToyTask().loss(model, splits["test"]).item()
        assert metrics[f"stage-{stage + 1}.test.loss"] == pytest.approx(expected)
    assert metrics["test.loss"] == metrics["stage-2.test.loss"]


def test_only_the_final_evaluation_repeats_the_current_stage(tmp_path, monkeypatch):
    finals, evaluate = [], ToyTask.evaluate

    def counted(self, model, data, *, seed, final):
        finals.append(final)
        return evaluate(self, model, data, seed=seed, final=final)

    monkeypatch.setattr(ToyTask, "evaluate", counted)
    node(tmp_path).evaluate_round(initial(), at(1, 1))
    assert finals == [False, False, False]
    finals.clear()
    metrics = node(tmp_path).evaluate_round(initial(), at(1, 1, final=True)).metrics
    assert finals == [True, False, False, False]
    assert "test.final" in metrics
    assert "stage-2.test.final" not in metrics


def test_the_learning_rate_falls_across_rounds_and_starts_again_with_a_stage(tmp_path):
    client, seen = node(tmp_path), []
    for server_round, stage in ((1, 0), (2, 0), (3, 0), (4, 1)):
        # No step can improve anything: every epoch is stale but the first of a stage.
        rates = {"learning_rate": 1e-30, "min_learning_rate": 0.0}
        client.train_round(initial(), at(server_round, stage, plateau_patience=2, epochs=1, **rates))
        seen.append(float(client.private.load(server_round + 1)["memory.plateau"][0]))
    assert seen == [1e-30, 1e-30, 0.5e-30, 1e-30]


def test_a_plateau_needs_validation_examples(tmp_path):
    with pytest.raises(ValueError, match="plateau-patience = 2: node toy-1 has no validation examples"):
        node_of(tmp_path).train_round(initial(), at(1, 0, plateau_patience=2))
