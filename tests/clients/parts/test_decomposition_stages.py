"""A node with a decomposed model, from stage to stage: what it keeps, how a stage begins, what the drift holds."""

import numpy as np
import pytest
import torch
from decomposed_nodes import PENALTIES, WEIGHTS, initial, kept, knowledge, model_at, node
from fedapps.clients.state import ContextState
from flwr.app import RecordDict
from toy_nodes import at, staged
from toys import ToyTask, same_bits


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_parts_persist_across_rounds_and_stages(tmp_path, kind):
    received = initial()
    for server_round, stage in ((1, 0), (2, 0), (3, 1), (4, 1)):
        client = node(tmp_path, kind, mask_share=1.0, **PENALTIES)  # a new one for each message
        received = client.train_round(received, at(server_round, stage)).arrays
    first, second, third, fourth = (kept(client, r) for r in (1, 2, 3, 4))
    assert fourth["stages"].tolist() == [0, 1]
    assert [len(fourth[name]) for name in ("adaptive", "mask", "own", "old")] == [2, 2, 2, 1]
    assert not np.array_equal(first["adaptive"], second["adaptive"])
    assert np.array_equal(third["old"], fourth["old"])
    assert np.array_equal(fourth["own"][0], second["own"][0])
    # Only APD goes on training what earlier stages have.
    for name in ("adaptive", "mask"):
        assert np.array_equal(fourth[name][0], second[name][0]) == (kind == "fedweit")


def test_a_context_keeps_the_same_as_a_disk(tmp_path):
    context = ContextState(RecordDict())
    for state in (tmp_path, context):
        for server_round, stage in ((1, 0), (2, 1), (3, 2)):
            node(state, **PENALTIES).train_round(initial(), at(server_round, stage))
    assert same_bits(kept(node(tmp_path), 3), kept(node(context), 3))


def test_the_same_message_twice_gives_the_same(tmp_path):
    node(tmp_path, "fedweit", **PENALTIES).train_round(initial(), at(1, 0))
    borrowing = [node(tmp_path, "fedweit", knowledge=knowledge(1), **PENALTIES) for _ in range(2)]
    replies = [client.train_round(initial(), at(2, 1)) for client in borrowing]
    assert same_bits(replies[0].arrays, replies[1].arrays)


def test_a_stage_begins_at_the_base_with_the_last_stages_biases(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0))
    received = {name: array + 0.5 for name, array in initial().items()}
    begun = model_at(client, received, at(1, 1), stage=1)
    for name in WEIGHTS:
        np.testing.assert_allclose(begun[name], received[name], rtol=1e-6)
    np.testing.assert_array_equal(begun["head.bias"], kept(client, 1)["own"][0])


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_stages_are_evaluated_with_their_own_parameters_unmet_ones_with_the_current(tmp_path, kind):
    node(tmp_path, kind).train_round(initial(), at(1, 0))
    client = node(tmp_path, kind, **PENALTIES)
    client.train_round(initial(), at(2, 1))
    received = {name: array + 0.1 for name, array in initial().items()}
    metrics = client.evaluate_round(received, at(2, 1)).metrics
    parts, flat = kept(client, 2), np.concatenate([received[name].ravel() for name in WEIGHTS])
    units = np.array([0, 0, 1, 1, 2, 2])
    for stage, index in ((0, 0), (1, 1), (2, 1)):
        theta = flat / (1 + np.exp(-parts["mask"][index]))[units] + parts["adaptive"][index]
        model = ToyTask().build_model().eval()
        with torch.no_grad():
            model.encoder.weight.copy_(torch.from_numpy(theta[:4].reshape(2, 2)))
            model.head.weight.copy_(torch.from_numpy(theta[4:].reshape(1, 2)))
            model.head.bias.copy_(torch.from_numpy(parts["own"][index]))
        expected = ToyTask().loss(model, staged(1).stages[stage]["test"]).item()
        assert metrics[f"stage-{stage + 1}.test.loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["test.loss"] == metrics["stage-2.test.loss"]


def test_the_learning_rate_falls_by_the_validation_loss_of_the_current_stage(tmp_path):
    client, one_epoch = node(tmp_path), at(1, 0, plateau_patience=5, epochs=1)
    trained = client.train_round(initial(), one_epoch).arrays
    rate, best, stale = client.private.load(2)["memory.plateau"]
    plain = ToyTask().build_model().eval()
    found = model_at(client, trained, one_epoch, 0)
    plain.load_state_dict({name: torch.from_numpy(array) for name, array in found.items()}, strict=False)
    validation = staged(1).stages[0]["validation"]
    assert (rate, stale) == (0.05, 0)
    assert best == pytest.approx(ToyTask().loss(plain, validation).item())


def test_apd_keeps_the_past_better_than_no_drift_penalty(tmp_path):
    moved = {}
    for drift in (0.0, 10.0):
        client = node(tmp_path / str(drift), drift=drift)
        base = client.train_round(initial(), at(1, 0)).arrays
        old = model_at(client, base, at(1, 0), 0)
        base = client.train_round(base, at(2, 1, epochs=40)).arrays
        new = model_at(client, base, at(2, 1), 0)
        moved[drift] = sum(float(np.square(new[name] - old[name]).sum()) for name in WEIGHTS)
    assert moved[10.0] < 0.1 * moved[0.0]
