"""A node whose stages have parameters of their own: what it must be equal to, what it counts, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decomposed_nodes import ORDERS, PENALTIES, WEIGHTS, at, fedweit, initial, kept, knowledge, node
from toy_nodes import staged
from toys import ToyTask, same_bits

from clients.base import FederatedClient
from clients.decomposed_client import Knowledge
from clients.state import DiskState
from tasks.social.networks import GraphConvolutions

# -- what it must be equal to ----------------------------------------------------------------------------------


def test_one_step_of_sgd_by_the_chain_rule(tmp_path):
    """θ = B σ(m) + A from σ = 2/3, A = B/3: each part moves by its share of the plain model's gradient."""
    batch = staged(1).stages[0]["train"]
    model = ToyTask().build_model()
    model.load_state_dict({n: torch.from_numpy(a) for n, a in initial([*WEIGHTS, "head.bias", "passes"]).items()})
    ToyTask().loss(model, batch).backward()
    gradient = model.encoder.weight.grad.numpy()
    base = initial()["encoder.weight"]

    client = node(tmp_path)
    orders = at(1, 0, epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.1, l1_adaptive=0.01, l1_mask=0.02)
    sent = client.train_round(initial(), orders).arrays["encoder.weight"]
    np.testing.assert_allclose(sent, base - 0.1 * 2 / 3 * gradient, rtol=1e-4, atol=1e-6)
    parts = kept(client, 1)
    expected = base / 3 - 0.1 * (gradient + 0.01 * np.sign(base))
    np.testing.assert_allclose(parts["adaptive"][0, :4].reshape(2, 2), expected, rtol=1e-4, atol=1e-6)
    slope = 2 / 3 * (1 / 3) * (gradient * base).sum(1)
    np.testing.assert_allclose(parts["mask"][0, :2], np.log(2) - 0.1 * (slope + 0.02), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        parts["own"][0], initial(["head.bias"])["head.bias"] - 0.1 * model.head.bias.grad.numpy(), rtol=1e-4
    )


def test_with_all_units_sent_the_first_stage_of_fedweit_is_apd_bit_for_bit(tmp_path):
    apd, weit = node(tmp_path / "a"), node(tmp_path / "w")
    received = initial()
    for server_round in (1, 2, 3):
        mine = apd.train_round(received, at(server_round, 0, **PENALTIES))
        other = weit.train_round(received, fedweit(server_round, 0, mask_share=1.0, **PENALTIES))
        assert same_bits(mine.arrays, other.arrays)
        assert same_bits(kept(apd, server_round), kept(weit, server_round))
        assert mine.metrics == other.metrics
        received = mine.arrays


def test_without_drift_later_stages_are_alike_too_and_the_past_is_untouched(tmp_path):
    apd, weit = node(tmp_path / "a"), node(tmp_path / "w")
    received = initial()
    for server_round in (1, 2, 3):
        stage = server_round - 1
        mine = apd.train_round(received, at(server_round, stage))
        other = weit.train_round(received, fedweit(server_round, stage, mask_share=1.0))
        assert same_bits(mine.arrays, other.arrays)
        assert same_bits(kept(apd, server_round), kept(weit, server_round))
        received = mine.arrays


def test_an_untrained_node_is_the_received_model(tmp_path):
    """A round of no learning gives back what came, and evaluates as a plain node with the same model."""
    client, orders = node(tmp_path), at(1, 0, learning_rate=0.0)
    reply = client.train_round(initial(), orders)
    assert same_bits(reply.arrays, initial())
    plain = FederatedClient(
        ToyTask(), staged(1), DiskState(tmp_path / "plain"), ORDERS, seed=3, device=torch.device("cpu")
    )  # fmt: skip
    expected = plain.evaluate_round(initial(), orders).metrics
    found = client.evaluate_round(initial(), orders).metrics
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


def test_fedprox_holds_the_base_alone(tmp_path):
    """Overwhelming µ at a learning rate of 1/µ: every step of SGD lands the base next to where it came from."""
    client = node(tmp_path)
    sent = client.train_round(initial(), at(1, 0, proximal=1e3, optimizer="sgd", learning_rate=1e-3)).arrays
    free = node(tmp_path / "free")
    free.train_round(initial(), at(1, 0, optimizer="sgd", learning_rate=1e-3))
    for name in WEIGHTS:
        np.testing.assert_allclose(sent[name], initial()[name], atol=5e-3)
    np.testing.assert_allclose(kept(client, 1)["adaptive"], kept(free, 1)["adaptive"], atol=1e-3)
    assert np.abs(kept(client, 1)["adaptive"][0, :4] - initial()["encoder.weight"].ravel() / 3).max() > 1e-4


def test_buffers_are_the_nodes_or_travel(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0))
    assert int(client.private.load(2)["passes"]) == 4  # 2 epochs of 2 batches
    shared = client.train_round(initial([*WEIGHTS, "passes"]), at(2, 0)).arrays
    assert int(shared["passes"]) == 4
    assert "passes" not in client.private.load(3)


def test_the_present_stages_model_collects(tmp_path):
    seen = []

    class Collecting(ToyTask):
        def collect(self, model, data, *, seed):
            seen.append(model)
            return super().collect(model, data, seed=seed)

    node(tmp_path, task=Collecting()).evaluate_round(initial(), at(1, 0, collect=True))
    assert seen[0](torch.zeros(1, 2)).shape == (1, 1)


# -- how many parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "orders", "trained", "held"),
    [
        # 6 numbers in the weights, 3 units, 1 bias; 3 stages.
        ("apd", {}, 6 + 3 * 10, 6),
        ("apd", {"proximal": 0.1}, 6 + 3 * 10, 12),
        ("fedweit", {}, 6 + 3 * 10 + 2 * 2 * 2, 6 + 12),
    ],
)
def test_parameters_are_counted(tmp_path, kind, orders, trained, held):
    node(tmp_path).train_round(initial(), at(1, 0, decomposition=kind))
    lent = knowledge(1) if kind == "fedweit" else None
    metrics = node(tmp_path, knowledge=lent).train_round(initial(), at(2, 1, decomposition=kind, **orders)).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (trained, held)


class Graphs(ToyTask):
    """The network of Elastic Transfer on one graph per example."""

    def build_model(self):
        return GraphConvolutions()

    def loss(self, model, batch):
        return (model(batch["x"], torch.eye(1).expand(len(batch["x"]), 1, 1)) - batch["y"]).square().mean()


@pytest.mark.parametrize(("kind", "trained"), [("apd", 39_176), ("fedweit", 39_257)])
def test_the_network_of_elastic_transfer_has_the_published_number_of_parameters(tmp_path, kind, trained):
    task, splits = Graphs(), {"train": {"x": torch.ones(2, 1, 7), "y": torch.ones(2)}}
    data = replace(ToyTask().data(1), splits=splits, stages=(splits,) * 4)
    weights = {n: p.detach().numpy() for n, p in task.build_model().named_parameters() if p.ndim > 1}
    lent = Knowledge(1, ("a", "b", "c"), (weights,) * 3) if kind == "fedweit" else None
    node(tmp_path, data=data, task=task).train_round(weights, at(1, 0, decomposition=kind))
    client = node(tmp_path, data=data, task=task, knowledge=lent)
    metrics = client.train_round(weights, at(2, 1, decomposition=kind)).metrics
    assert metrics["trainable_parameters"] == trained


# -- what it refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orders", "told"),
    [
        ({"decomposition": "none"}, "decomposition = 'none': must be 'apd' or 'fedweit'"),
        ({"ewc": 0.5}, r"ewc = 0.5, l2-transfer = 0.0: must be 0 with decomposition = 'apd'"),
        ({"decomposition": "fedweit", "mask_share": 0.0}, r"mask-share = 0.0: must be above 0 and at most 1"),
    ],
)
def test_orders_that_do_not_go_with_a_decomposition_are_errors(tmp_path, orders, told):
    with pytest.raises(ValueError, match=told):
        node(tmp_path).train_round(initial(), at(1, 0, **orders))


def test_a_bias_cannot_be_shared_nor_a_copy_personalised(tmp_path):
    with pytest.raises(ValueError, match=r"received head.bias: every stage has its own; only encoder.weight, head.we"):
        node(tmp_path).train_round(initial([*WEIGHTS, "head.bias"]), ORDERS)
    with pytest.raises(ValueError, match="personalise = True: must be false"):
        node(tmp_path).evaluate_round(initial(), at(1, 0, personalise=True))
